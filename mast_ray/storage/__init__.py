"""Where things lie: a local folder or S3, stage folders and manifests, leases, work units and their ledger."""
