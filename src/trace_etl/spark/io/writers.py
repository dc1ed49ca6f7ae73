"""Writing is done here, once, for every operator: files, names, counts, the success marker."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, cast

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from trace_etl.api.task.events import Invalidation
from trace_etl.model.storage import SUCCESS_MARKER
from trace_etl.spark.evm.source import unpack
from trace_etl.spark.io.parquet import ParquetFile, Written, make_durable, named_errors
from trace_etl.spark.io.scan import Scan
from trace_etl.spark.io.text_file import TextFile
from trace_etl.spark.session.executors import freeze_imports

_SORTED_BY = ("block_number", "transaction_index", "log_index")
_REPORT: Any = pa.schema(
    [("output", pa.string()), ("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
)
_REPORT_TYPE = from_arrow_schema(_REPORT)
_MOST_BEHIND = 4  # pieces that wait to be written: they are held in memory


@dataclass(frozen=True)
class Target:
    """Where one output goes: its attempt's own directory, and the file in it."""

    directory: Path
    file_name: str

    @property
    def path(self) -> Path:
        return self.directory / self.file_name

    def as_file(self, suffix: str) -> "Target":
        """The same place, for a file of another format."""
        return replace(self, file_name=str(PurePath(self.file_name).with_suffix(f".{suffix}")))


@dataclass(frozen=True)
class Frame:
    """One output as a DataFrame."""

    output: str
    frame: DataFrame
    is_ordered: bool = False
    """The rows' order is the user's wish; otherwise they are sorted by block."""
    is_large: bool = False
    """Worth computing on every core before one of them writes."""
    is_archive: bool = False
    """Written once and read often: time is spent on size."""
    suffix: str = "parquet"
    """Or `csv`, or `json` for a single column of JSON texts."""
    invalidations: Sequence[Invalidation] = ()
    """What was found to be wrong on the way, to be told with the completion."""

    def write(self, targets: Mapping[str, Target]) -> dict[str, Written]:
        target, schema = targets[self.output].as_file(self.suffix), self.schemas()[self.output]
        work = _FrameWriter(self.output, target, schema, self.is_archive)
        reports = _reports(self._single().mapInArrow(work, _REPORT_TYPE))
        # Spark drops the whole plan when it can prove that there are no rows.
        return reports or {self.output: _write_file(target, schema, iter(()), attempt=0)}

    def schemas(self) -> dict[str, Any]:
        return {self.output: to_arrow_schema(self.frame.schema, timezone="UTC")}

    def _single(self) -> DataFrame:
        """All rows in one partition, in the order they are written."""
        if self.is_ordered:
            return self.frame.coalesce(1)
        single = self.frame.repartition(1) if self.is_large else self.frame.coalesce(1)
        return _ordered(single)


@dataclass(frozen=True)
class Bundle:
    """Several outputs fetched at once: rows of (table, first_block, slice), see `evm.source`."""

    frame: DataFrame
    tables: Mapping[str, Any]
    """The Arrow schema of each output."""
    is_parallel: bool = False
    """The frame has more than one partition; each table's slices must be brought together."""

    def write(self, targets: Mapping[str, Target]) -> dict[str, Written]:
        frame = self.frame
        if self.is_parallel:
            gathered = frame.repartition(len(self.tables), "table")
            frame = gathered.sortWithinPartitions("table", "first_block")
        return _reports(frame.mapInArrow(_BundleWriter(targets, self.tables), _REPORT_TYPE))

    def schemas(self) -> dict[str, Any]:
        return dict(self.tables)


@dataclass(frozen=True)
class Split:
    """One pass over a frame, batch by batch where its rows are, into one or several outputs."""

    frame: DataFrame
    work: Callable[[Any], Iterable[tuple[str, Any]]]
    """From a batch of the frame to batches of the outputs."""
    tables: Mapping[str, Any]
    """The Arrow schema of each output."""
    scan: Scan | None = None
    """The frame's rows, if the executor can read them without the JVM."""
    is_archive: bool = False
    """Written once and read often: time is spent on size."""

    def write(self, targets: Mapping[str, Target]) -> dict[str, Written]:
        work = _SplitWriter(self.work, targets, self.tables, self.scan, self.is_archive)
        rows = _ordered(self.frame.coalesce(1))
        if self.scan is not None:
            rows = self.frame.sparkSession.range(0, 1, 1, 1)  # one task, which reads by itself
        reports = _reports(rows.mapInArrow(work, _REPORT_TYPE))
        # Spark drops the whole plan when it can prove that there are no rows.
        return reports or {
            name: _write_file(targets[name], schema, iter(()), attempt=0)
            for name, schema in self.tables.items()
        }

    def schemas(self) -> dict[str, Any]:
        return dict(self.tables)


Result = Frame | Bundle | Split


def mark_success(target: Target, written: Written, schema: Any) -> None:
    """Put the success marker beside a finished file. Nothing under the prefix changes after."""
    marker = {
        "files": [{"name": written.name, "rows": written.rows, "bytes": written.bytes}],
        "rows": written.rows,
        "bytes": written.bytes,
        "schema": [
            {"name": field.name, "type": field.dataType.simpleString()}
            for field in from_arrow_schema(schema).fields
        ],
    }
    path = target.directory / SUCCESS_MARKER
    draft = path.with_name(f".{SUCCESS_MARKER}")
    with named_errors(path):
        draft.write_bytes(orjson.dumps(marker))
        make_durable(draft)
        draft.rename(path)
        make_durable(target.directory)


@dataclass(frozen=True)
class _FrameWriter:
    """Runs on an executor: one partition of rows to one file."""

    output: str
    target: Target
    schema: Any
    is_archive: bool

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        written = _write_file(
            self.target, self.schema, batches, attempt=_attempt(), is_archive=self.is_archive
        )
        freeze_imports()
        yield _report([(self.output, written)])


@dataclass(frozen=True)
class _SplitWriter:
    """Runs on an executor: one partition of rows to one file per output."""

    work: Callable[[Any], Iterable[tuple[str, Any]]]
    targets: Mapping[str, Target]
    schemas: Mapping[str, Any]
    scan: Scan | None
    is_archive: bool

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        given = list(batches) and self.scan.batches() if self.scan else batches
        with ExitStack() as stack:
            files = {
                table: stack.enter_context(self._file(table, schema))
                for table, schema in self.schemas.items()
            }
            with ThreadPoolExecutor(1, "parquet") as pool:
                behind = _Behind(pool)
                for batch in given:
                    for table, piece in self.work(batch):
                        behind.write(files[table], piece)
                behind.catch_up()
            written = [(table, file.finish()) for table, file in files.items()]
        freeze_imports()
        yield _report(written)

    def _file(self, table: str, schema: Any) -> ParquetFile:
        path = self.targets[table].path
        return ParquetFile(path, schema, attempt=_attempt(), is_archive=self.is_archive)


class _Behind:
    """Encodes and compresses in a thread of its own while the next batch is made, in order."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._pending: deque[Future[None]] = deque()

    def write(self, file: ParquetFile, piece: Any) -> None:
        """Have a piece written soon. Raises what an earlier one met."""
        if len(self._pending) == _MOST_BEHIND:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(file.write, piece))

    def catch_up(self) -> None:
        """Wait until everything is written. Raises the first error."""
        while self._pending:
            self._pending.popleft().result()


@dataclass(frozen=True)
class _BundleWriter:
    """Runs on an executor: one partition of slices to one file per table."""

    targets: Mapping[str, Target]
    schemas: Mapping[str, Any]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        attempt = _attempt()
        with ExitStack() as stack:
            files: dict[str, ParquetFile] = {}
            for table, piece in _slices(batches):
                if table not in files:
                    file = ParquetFile(
                        self.targets[table].path, self.schemas[table], attempt=attempt
                    )
                    files[table] = stack.enter_context(file)
                files[table].write(unpack(piece))
            written = [(table, file.finish()) for table, file in files.items()]
        freeze_imports()
        yield _report(written)


def _ordered(frame: DataFrame) -> DataFrame:
    """The rows of each partition by block, if they have one."""
    columns = [name for name in _SORTED_BY if name in frame.columns]
    return frame.sortWithinPartitions(*columns) if _SORTED_BY[0] in columns else frame


def _slices(batches: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    for batch in batches:
        for table, piece in zip(batch.column("table"), batch.column("slice"), strict=True):
            yield table.as_py(), piece.as_buffer()


def _write_file(
    target: Target,
    schema: Any,
    batches: Iterator[Any],
    *,
    attempt: int,
    is_archive: bool = False,
) -> Written:
    is_text = target.path.suffix != ".parquet"
    with (
        TextFile(target.path, schema, attempt=attempt)
        if is_text
        else ParquetFile(target.path, schema, attempt=attempt, is_archive=is_archive)
    ) as file:
        for batch in batches:
            file.write(batch)
        return file.finish()


def _attempt() -> int:
    context = TaskContext.get()
    return context.attemptNumber() if context else 0


def _report(written: Sequence[tuple[str, Written]]) -> Any:
    rows = [(output, done.name, done.rows, done.bytes) for output, done in written]
    columns = list(zip(*rows, strict=True)) or [()] * len(_REPORT)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _REPORT, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_REPORT)


def _reports(frame: DataFrame) -> dict[str, Written]:
    """Run the job. What comes back is a row per file, never data."""
    rows = cast("list[Any]", frame.collect())
    return {row["output"]: Written(row["name"], row["rows"], row["bytes"]) for row in rows}
