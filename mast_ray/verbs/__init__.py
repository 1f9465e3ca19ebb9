"""One module per `mast` verb: `add_arguments(parser)` and `run(args) -> exit code`."""
