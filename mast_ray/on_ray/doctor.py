"""What `mast doctor` asks a Ray cluster."""

from __future__ import annotations

from ray.job_submission import JobSubmissionClient


def cluster_error(address: str) -> str:
    """Why the cluster at an address does not answer, in one line; "" when it does."""
    try:
        JobSubmissionClient(address).get_version()
    except Exception as error:  # the client raises RuntimeError, ConnectionError and others alike
        return str(error).splitlines()[0][:200]
    return ""
