"""The registry of runtimes."""

from trace_etl.api.body import ListReply, Reply
from trace_etl.dag.runtimes import Language, Launcher, Trust
from trace_etl.model.task import Isolation


class RuntimeItem(Reply):
    """A runtime of the registry, and the workers that serve it now."""

    name: str
    launcher: Launcher
    trust: Trust
    queue: str | None
    """Null for the runtime of the Dispatcher."""
    language: Language | None
    isolation: Isolation | None
    """How the code of its tasks is isolated; null for code of the platform."""
    slots: int
    memory_mib: int
    processes: int
    temporary_mib: int
    max_timeout: int | None
    """Seconds; null: no limit."""
    idle_timeout: int | None
    """Seconds; null: never."""
    workers: int | None
    """Connected workers; null if the queue does not know them."""
    worker_ids: list[str]
    """The ids of these workers."""


class RuntimeList(ListReply[RuntimeItem]):
    """All runtimes, in the order of the registry."""
