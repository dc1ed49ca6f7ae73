"""Errors of the embedded stack, each with a remedy."""

from trace_etl.model.errors import TraceError


class StackError(TraceError, code="stack"):
    """The stack cannot start or continue. The message is the reason; `remedy` says what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class AlreadyRunning(StackError, code="already_running"):
    """A supervisor holds the lock of this home."""


class HomeUnusable(StackError, code="home_unusable"):
    """TRACE_HOME cannot be written, or belongs to another user."""


class DiskFull(StackError, code="disk_full"):
    """The disk of the stack is full."""


class PortTaken(StackError, code="port_taken"):
    """Another program listens on a port that the user chose."""


class BadSetting(StackError, code="bad_setting"):
    """An option or a settings file is invalid."""


class PostgresMissing(StackError, code="postgres_missing"):
    """Postgres binaries are missing, or none has the major version of the data."""


class PostgresFailed(StackError, code="postgres_failed"):
    """A Postgres program failed; the message has its output."""


class NoAccount(StackError, code="no_unprivileged_account"):
    """The root user cannot switch to another user, and Postgres does not run as root."""


class NoJava(StackError, code="no_java"):
    """Spark has no suitable JVM."""


class ServiceFailed(StackError, code="service_failed"):
    """A process of the stack did not start; the message has the end of its log."""


class BackupUnusable(StackError, code="backup_unusable"):
    """A backup cannot be made or restored; the message names the file."""
