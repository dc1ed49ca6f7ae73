"""The process's limit of open files, which also limits its connections."""

import sys

import structlog

from trace_etl.http.server.connection_limits import ConnectionLimits

_RESERVED_FILES = 256  # descriptors for files, databases and outgoing connections
_log = structlog.stdlib.get_logger()


def fit_to_descriptors(limits: ConnectionLimits, listeners: int) -> ConnectionLimits:
    """Raise the process's limit of open files, and lower the number of connections to it.

    A process without free descriptors can neither accept connections nor open files and databases.
    """
    if sys.platform == "win32":  # Windows has no such limit
        return limits
    import resource

    wanted = listeners * limits.max_connections + _RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= wanted:
        return limits
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fitting = (soft - min(_RESERVED_FILES, soft // 2)) // listeners
    if fitting >= limits.max_connections:
        return limits
    _log.warning("connections_limited_by_open_files", max_connections=fitting, open_files=soft)
    return limits.model_copy(update={"max_connections": fitting})
