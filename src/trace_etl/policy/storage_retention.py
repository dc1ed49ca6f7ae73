"""How long each kind of unused storage is kept."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class StorageRetention:
    """The time from the moment a prefix or batch becomes unused until it may be deleted."""

    retired: timedelta
    superseded: timedelta
    uncommitted: timedelta
    scratch: timedelta
    exports: timedelta
    batches: timedelta

    def values(self) -> dict[str, list[str] | list[timedelta]]:
        """Return the query parameters `kinds` and `retentions`."""
        kinds = vars(self)
        return {"kinds": list(kinds), "retentions": list(kinds.values())}
