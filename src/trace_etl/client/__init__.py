"""Python client for notebooks and scripts: `connect()`, then queries, schemas and lazy scans."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trace_etl.client.client import Client, NotScannable, connect
    from trace_etl.client.packages import MissingPackage
    from trace_etl.client.results import QueryResult
    from trace_etl.client.stack_client import NotRunning, RequestRejected, ResultIncomplete

__all__ = [
    "Client",
    "MissingPackage",
    "NotRunning",
    "NotScannable",
    "QueryResult",
    "RequestRejected",
    "ResultIncomplete",
    "connect",
]
_MODULES = ("client", "packages", "results", "stack_client")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the command line uses a part, and must start quickly."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    return next(getattr(module, name) for module in modules if hasattr(module, name))
