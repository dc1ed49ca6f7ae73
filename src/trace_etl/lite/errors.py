"""What the embedded stack refuses, each with what to do about it."""

from trace_etl.model.errors import TraceError


class StackError(TraceError):
    """The stack cannot go on: the message says why, `remedy` says what to do."""

    code = "stack"

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class AlreadyRunning(StackError):
    """A supervisor holds this home's lock."""

    code = "already_running"


class HomeUnusable(StackError):
    """TRACE_HOME cannot be written, or belongs to somebody else."""

    code = "home_unusable"


class DiskFull(StackError):
    """No space is left where the stack keeps its files."""

    code = "disk_full"


class PortTaken(StackError):
    """Another program listens on a port the user chose."""

    code = "port_taken"


class BadSetting(StackError):
    """An option or a file of settings that cannot be meant."""

    code = "bad_setting"


class PostgresMissing(StackError):
    """No Postgres binaries, or none of the data's major version."""

    code = "postgres_missing"


class PostgresFailed(StackError):
    """A Postgres program failed; the message carries its own words."""

    code = "postgres_failed"


class NoAccount(StackError):
    """Root can become nobody else, so Postgres cannot run."""

    code = "no_unprivileged_account"


class NoJava(StackError):
    """No JVM that Spark can use."""

    code = "no_java"


class PartFailed(StackError):
    """A part never came up; the message carries the end of its log."""

    code = "part_failed"
