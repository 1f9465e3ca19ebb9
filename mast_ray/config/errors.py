"""Errors a user can act on, and the exit codes they end with (docs/troubleshooting.md lists them).

The text of a MastError is at most three lines: what is wrong, where, and what to do about it.
"""

OK, CONFIG, DATA, PARTIAL, ACTIVE, DIVERGED, TEMPORARY, INTERRUPTED = 0, 2, 3, 4, 5, 6, 75, 130


class MastError(Exception):
    """Shown to the user without a traceback; ends the process with `exit_code`."""

    exit_code = 1


class ConfigError(MastError):
    """A setting or an argument is wrong."""

    exit_code = CONFIG


class DataError(MastError):
    """What the user pointed at cannot be used as it is."""

    exit_code = DATA


class PartialError(MastError):
    """The work is done, but some recordings were quarantined."""

    exit_code = PARTIAL


class RunActiveError(MastError):
    """Another run holds the lease on this output."""

    exit_code = ACTIVE


class TemporaryError(MastError):
    """Storage, network or cluster are unavailable for now: run the same command again later."""

    exit_code = TEMPORARY
