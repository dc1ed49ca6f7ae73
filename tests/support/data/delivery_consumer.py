"""A consumer that copies a dataset by its delivery log: it reads again only what the log names."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.lifecycle.lifecycle import Bench

Copy = dict[str, str]
"""For each block, or partition key without blocks, the attempt that wrote it."""


@dataclass
class DeliveryConsumer:
    bench: Bench
    dataset: str
    cursor: str | None = None
    copy: Copy = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    """All changes that were received."""
    resets: int = 0
    read_table: Callable[[], Copy] | None = None
    """Reads the rows of a table, for a dataset without partitions."""

    def catch_up(self, limit: int = 3) -> list[dict[str, Any]]:
        """Apply all changes after the cursor. Returns them."""
        received: list[dict[str, Any]] = []
        more = True
        while more:
            params = {"limit": limit, **({"since": self.cursor} if self.cursor else {})}
            path = f"/v1/datasets/{self.dataset}/changes"
            reply = self.bench.user.get(path, params=params)
            if reply.status_code == 410:
                self.resets += 1
                self.cursor = reply.json()["cursor"]
                self.copy = self.read()
                continue
            assert reply.status_code == 200, reply.text
            page = reply.json()
            for change in page["items"]:
                self._apply(change)
            received += page["items"]
            self.cursor, more = page["cursor"], page["more"]
        self.changes += received
        return received

    def _apply(self, change: dict[str, Any]) -> None:
        now = self.read()
        if change["kind"] == "version":
            self.copy = now
        elif change["end"] is not None:
            first, last = change["start"] or 0, change["end"]
            inside = {str(block) for block in range(first, last + 1)}
            kept = {key: value for key, value in self.copy.items() if key not in inside}
            self.copy = kept | {key: value for key, value in now.items() if key in inside}
        else:
            key = change["partition_key"]
            self.copy.pop(key, None)
            self.copy |= {key: now[key]} if key in now else {}

    def read(self) -> Copy:
        """Read the whole dataset as a query sees it now."""
        if self.read_table is not None:
            return self.read_table()
        copy: Copy = {}
        for row in self.bench.rows(_PARTITIONS, self.dataset):
            if row["range_start"] is None:
                copy[row["partition_key"]] = row["written"]
            else:
                blocks = range(row["range_start"], row["range_end"] + 1)
                copy |= {str(block): row["written"] for block in blocks}
        return copy


_PARTITIONS = """
SELECT partition_key, range_start, range_end,
       coalesce(content_hash, concat_ws('/', task_id, attempt)) AS written
  FROM publications n JOIN datasets d USING (dataset_uuid) JOIN partitions p USING (dataset_version)
 WHERE n.name = %s
"""
