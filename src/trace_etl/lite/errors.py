"""Errors of the embedded stack, each with a remedy."""

from trace_etl.model.errors import TraceError


class StackError(TraceError):
    """The stack cannot start or continue. The message is the reason; `remedy` says what to do."""

    code = "stack"

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class AlreadyRunning(StackError):
    """A supervisor holds the lock of this home."""

    code = "already_running"


class HomeUnusable(StackError):
    """TRACE_HOME cannot be written, or belongs to another user."""

    code = "home_unusable"


class DiskFull(StackError):
    """The disk of the stack is full."""

    code = "disk_full"


class PortTaken(StackError):
    """Another program listens on a port that the user chose."""

    code = "port_taken"


class BadSetting(StackError):
    """An option or a settings file is invalid."""

    code = "bad_setting"


class PostgresMissing(StackError):
    """Postgres binaries are missing, or none has the major version of the data."""

    code = "postgres_missing"


class PostgresFailed(StackError):
    """A Postgres program failed; the message has its output."""

    code = "postgres_failed"


class NoAccount(StackError):
    """The root user cannot switch to another user, and Postgres does not run as root."""

    code = "no_unprivileged_account"


class NoJava(StackError):
    """Spark has no suitable JVM."""

    code = "no_java"


class PartFailed(StackError):
    """A process of the stack did not start; the message has the end of its log."""

    code = "part_failed"
