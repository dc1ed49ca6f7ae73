"""Attempts with stored objects for tests of the storage sweeper, and what must never be deleted."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

from support.lifecycle.lifecycle import Attempt, Bench, Dag, parquet_file
from trace_etl.dispatcher.loops.storage_sweeper import StorageSweeper
from trace_etl.policy.storage_retention import StorageRetention

ORG = "00000000-0000-0000-0000-000000000001"
RETENTION = StorageRetention(
    retired=timedelta(days=30),
    superseded=timedelta(days=1),
    uncommitted=timedelta(days=7),
    scratch=timedelta(days=7),
    exports=timedelta(days=30),
    batches=timedelta(days=1),
)


class Died(Exception):
    """The process that sweeps died here."""


@contextmanager
def dying_after(steps: int) -> Generator[None]:
    """Let a sweep die at its step number `steps`: an unlinked file or a write to Postgres."""
    left = [steps]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return call(*args, **kwargs)

        return step

    names = (
        "trace_etl.objects.file_store._unlink",
        "trace_etl.state.storage.unused_prefixes.forget",
        "trace_etl.state.storage.written_batches.mark_swept",
        "trace_etl.state.storage.retired_generations._delete_rows",
    )
    patches = [mock.patch(name, counted(_resolve(name))) for name in names]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _resolve(name: str) -> Callable[..., Any]:
    module, _, function = name.rpartition(".")
    return getattr(__import__(module, fromlist=[function]), function)


@dataclass
class StoredObjects:
    """The objects of a Dispatcher's store, with the attempts that wrote them."""

    bench: Bench
    files: dict[Path, bytes] = field(default_factory=dict[Path, bytes])
    """Everything that was written, except foreign files."""
    foreign: dict[Path, bytes] = field(default_factory=dict[Path, bytes])

    @property
    def bucket(self) -> Path:
        return self.bench.live.objects / "trace"

    # --- writes -----------------------------------------------------------------------------

    def write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.files[path] = content

    def write_data(self, attempt: Attempt, files: int = 2) -> None:
        """Write the files of an output without its marker, and the draft of another file."""
        for n in range(files):
            self.write(self.bench.prefix(attempt) / f"out_{n}.parquet", parquet_file(n + 1))
        (self.bench.prefix(attempt) / "out_9.parquet#3").write_bytes(b"draft")

    def write_output(self, attempt: Attempt, files: int = 2) -> dict[str, Any]:
        """Write a whole output. Returns the publication to send."""
        self.write_data(attempt, files)
        sizes = [len(parquet_file(n + 1)) for n in range(files)]
        names = [f"out_{n}.parquet" for n in range(files)]
        listed = [
            {"name": name, "rows": n + 1, "bytes": size}
            for n, (name, size) in enumerate(zip(names, sizes, strict=True))
        ]
        rows = sum(range(1, files + 1))
        marker = {"files": listed, "rows": rows, "bytes": sum(sizes), "schema": []}
        self.write(self.bench.prefix(attempt) / "_SUCCESS", json.dumps(marker).encode())
        return {
            "dataset_uuid": attempt.output["dataset_uuid"],
            "dataset_version": attempt.output["dataset_version"],
            "storage_ref": attempt.output["storage_ref"],
            "range_start": attempt.scope["start"],
            "range_end": attempt.scope["end"],
        }

    def write_scratch(self, attempt: Attempt, area: str) -> Path:
        path = self.bucket / area / ORG / attempt.task_id / str(attempt.number) / "result.arrow"
        self.write(path, b"rows")
        return path

    def write_foreign(self, dag: Dag) -> None:
        """Write files that the platform did not make, beside and inside its prefixes."""
        dataset = dag.datasets["work"]
        generation = f"cold/datasets/{dataset['dataset_uuid']}/{dataset['dataset_version']}"
        unknown = f"cold/datasets/{uuid4()}/{uuid4()}/{uuid4()}/1"
        places = (
            "notes.txt",
            "cold/notes.txt",
            f"{generation}/readme.txt",
            f"{generation}/{uuid4()}/readme.txt",
            f"{generation}/{uuid4()}/01/part.parquet",
            f"{generation}/copy of {uuid4()}/1/part.parquet",
            f"{unknown}/part.parquet",
            f"{unknown}/_SUCCESS",
            f"scratch/{uuid4()}/{uuid4()}/1/rows",
            f"exports/{ORG}/report.csv",
        )
        for place in places:
            path = self.bucket / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"foreign")
            self.foreign[path] = b"foreign"

    # --- time and sweeps --------------------------------------------------------------------

    def age(self, days: int) -> None:
        """Let time pass for everything that waits for its retention."""
        moved = {
            "unused_prefixes": ("unused_since", "held_until"),
            "task_attempts": ("ended_at",),
            "tasks": ("finished_at",),
            "storage_listings": ("listed_at", "held_until"),
            "buffer_publishes": ("sunk_at",),
            "dataset_versions": ("abandoned_at",),
        }
        for table, columns in moved.items():
            changes = ", ".join(f"{c} = {c} - make_interval(days => {days})" for c in columns)
            self.bench.rows(f"UPDATE {table} SET {changes}")

    def sweeper(self, replica: Bench | None = None) -> StorageSweeper:
        service = (replica or self.bench).live.service
        return replace(service.storage_sweeper, retention=RETENTION, batch_size=3)

    def sweep(self) -> int:
        """Run passes until nothing is due. Returns the number of prefixes and batches."""
        total = 0
        while swept := self.bench.live.run(self.sweeper().sweep_once):
            total += swept
        return total

    def list_store(self) -> None:
        while self.bench.live.run(self.bench.live.service.storage_lister.list_once):
            pass

    # --- what must hold ---------------------------------------------------------------------

    def committed_prefixes(self) -> set[Path]:
        rows = self.bench.rows("SELECT DISTINCT storage_ref->>'prefix' AS prefix FROM partitions")
        return {self.bucket / row["prefix"] for row in rows}

    def require_intact(self, prefix: Path) -> None:
        """Check that no file that was written under a prefix is missing or changed."""
        for path, content in self.files.items():
            if path.is_relative_to(prefix):
                assert path.exists(), f"{path} was deleted"
                assert path.read_bytes() == content

    def require_whole_markers(self) -> None:
        """Check that every file of every marker exists: no reader may take a part for the whole."""
        for marker in self.bucket.glob("cold/**/_SUCCESS"):
            if marker in self.foreign:
                continue
            names = [file["name"] for file in json.loads(marker.read_bytes())["files"]]
            assert all((marker.parent / name).exists() for name in names), marker

    def remaining(self) -> set[Path]:
        """Return the files in the store, without foreign ones."""
        found = {path for path in self.bucket.rglob("*") if path.is_file()}
        return found - set(self.foreign)
