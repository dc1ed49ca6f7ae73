"""Write the outputs of every operator: files, their counts, the success marker."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from trace_etl.api.task.events import Invalidation
from trace_etl.api.task.lifecycle import RowSumOfColumns, SuccessFile, SuccessMarker
from trace_etl.api.task.payload import Storage
from trace_etl.api.task.verification import Disconnected, VerifiedRange, join_ranges
from trace_etl.objects.markers import write_marker
from trace_etl.objects.store import ObjectStore
from trace_etl.proof.content_hash import ContentHash
from trace_etl.spark.errors import ChainMismatch, report_errors
from trace_etl.spark.evm.options import VERIFIED
from trace_etl.spark.evm.source import unpack_slice
from trace_etl.spark.io.column_names import map_batches
from trace_etl.spark.io.parquet import ParquetFile, WrittenFile, open_parquet_file
from trace_etl.spark.io.scan import Scan
from trace_etl.spark.io.storage import file_key
from trace_etl.spark.io.text_file import open_text_file
from trace_etl.spark.session.executors import freeze_imports

_SORTED_BY = ("block_number", "transaction_index", "log_index")
_REPORT: Any = pa.schema([("output", pa.string()), ("report", pa.string())])
_REPORT_TYPE = from_arrow_schema(_REPORT)
_MAX_PENDING = 4  # pieces that wait in memory to be written


@dataclass(frozen=True)
class OutputFile:
    """The file of one output, under the prefix of the attempt. Raises BadTask for a bad prefix."""

    store: ObjectStore
    storage: Storage
    name: str

    def __post_init__(self) -> None:
        file_key(self.store, self.storage, self.name)

    @property
    def key(self) -> str:
        return file_key(self.store, self.storage, self.name)

    def with_suffix(self, suffix: str) -> "OutputFile":
        """The file of the same output in another format."""
        return replace(self, name=f"{self.name.rpartition('.')[0]}.{suffix}")


@dataclass(frozen=True)
class WrittenFiles:
    """The file of each output, and what was verified of the blocks in them."""

    files: Mapping[str, WrittenFile]
    verified: Sequence[VerifiedRange] = ()

    def join_verified(self) -> VerifiedRange | None:
        """What was verified of the whole task. Raises ChainMismatch if its parts do not connect."""
        try:
            return join_ranges(self.verified) if self.verified else None
        except Disconnected as error:
            raise ChainMismatch(f"{error}; the chain changed during the read") from error


@dataclass(frozen=True)
class Frame:
    """One output as a DataFrame."""

    output: str
    frame: DataFrame
    is_ordered: bool = False
    """Keep the order of the rows; otherwise they are sorted by block."""
    is_large: bool = False
    """Compute the rows on every core before one of them writes."""
    is_archive: bool = False
    """Spend time on a smaller file: it is written once and read often."""
    suffix: str = "parquet"
    """Or `csv`, or `json` for a single column of JSON texts."""
    invalidations: Sequence[Invalidation] = ()
    """Invalidations of inputs, reported with the completion."""
    made_from: Sequence[str] | None = None
    """Digests of the input partitions, if a later task can add the rows of new ones to this output."""

    def write(self, targets: Mapping[str, OutputFile]) -> WrittenFiles:
        target, schema = targets[self.output].with_suffix(self.suffix), self.schemas()[self.output]
        sorted_by = () if self.is_ordered else list_sort_columns(schema.names)
        work = _FrameWriter(self.output, target, schema, self.is_archive, sorted_by)
        written = _run_job(map_batches(self._gather_rows(), work, _REPORT_TYPE))
        # Spark skips the whole plan when it can prove that there are no rows.
        if written.files:
            return written
        return WrittenFiles({self.output: _write_file(target, schema, iter(()))})

    def schemas(self) -> dict[str, Any]:
        return {self.output: to_arrow_schema(self.frame.schema, timezone="UTC")}

    def _gather_rows(self) -> DataFrame:
        """All rows in one partition, in the order they are written."""
        if self.is_ordered:
            return self.frame.coalesce(1)
        single = self.frame.repartition(1) if self.is_large else self.frame.coalesce(1)
        return _sort_rows(single)


@dataclass(frozen=True)
class Bundle:
    """Several outputs in one frame of (table, first_block, slice) rows, see `evm.source`."""

    frame: DataFrame
    tables: Mapping[str, Any]
    """The Arrow schema of each output."""
    is_parallel: bool = False
    """The frame has several partitions; bring the slices of each table together."""
    sorted_by: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """The columns by which the rows of an output are sorted."""

    def write(self, targets: Mapping[str, OutputFile]) -> WrittenFiles:
        frame = self.frame
        if self.is_parallel:
            gathered = frame.repartition(len(self.tables), "table")
            frame = gathered.sortWithinPartitions("table", "first_block")
        work = _BundleWriter(targets, self.tables, self.sorted_by)
        return _run_job(frame.mapInArrow(work, _REPORT_TYPE))

    def schemas(self) -> dict[str, Any]:
        return dict(self.tables)


@dataclass(frozen=True)
class Split:
    """One or several outputs from one pass over a frame, batch by batch."""

    frame: DataFrame
    work: Callable[[Any], Iterable[tuple[str, Any]]]
    """Turns a batch of the frame into batches of the outputs, or (VERIFIED, VerifiedRange)."""
    tables: Mapping[str, Any]
    """The Arrow schema of each output."""
    scan: Scan | None = None
    """The same rows, if the executor can read them without the JVM."""
    is_archive: bool = False
    """Spend time on a smaller file: it is written once and read often."""
    sorted_by: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """The columns by which the rows of an output are sorted."""

    def write(self, targets: Mapping[str, OutputFile]) -> WrittenFiles:
        work = _SplitWriter(
            self.work, targets, self.tables, self.scan, self.is_archive, self.sorted_by
        )
        rows = _sort_rows(self.frame.coalesce(1))
        if self.scan is not None:
            rows = self.frame.sparkSession.range(
                0, 1, 1, 1
            )  # one task, which reads the files itself
        written = _run_job(map_batches(rows, work, _REPORT_TYPE))
        # Spark skips the whole plan when it can prove that there are no rows.
        if written.files:
            return written
        return WrittenFiles(
            {
                name: _write_file(targets[name], schema, iter(()))
                for name, schema in self.tables.items()
            }
        )

    def schemas(self) -> dict[str, Any]:
        return dict(self.tables)


@dataclass(frozen=True)
class NativeFiles:
    """Outputs that a native program wrote as Parquet files. They are written again with our own settings."""

    files: Mapping[str, Any]
    remove: Callable[[], None]
    """Removes the files of the program."""

    def write(self, targets: Mapping[str, OutputFile]) -> WrittenFiles:
        try:
            return WrittenFiles({name: self._copy(name, targets[name]) for name in self.files})
        finally:
            self.remove()

    def schemas(self) -> dict[str, Any]:
        return {name: file.schema_arrow for name, file in self.files.items()}

    def _copy(self, name: str, target: OutputFile) -> WrittenFile:
        file = self.files[name]
        return _write_file(target, file.schema_arrow, file.iter_batches())


Result = Frame | Bundle | Split | NativeFiles


def mark_success(
    target: OutputFile,
    written: WrittenFile,
    schema: Any,
    verified: VerifiedRange | None = None,
    made_from: Sequence[str] | None = None,
) -> None:
    """Write the success marker beside a finished file."""
    columns = [
        {"name": field.name, "type": field.dataType.simpleString()}
        for field in from_arrow_schema(schema).fields
    ]
    file = SuccessFile(
        name=written.name, rows=written.rows, bytes=written.bytes, sha256=written.sha256
    )
    marker = SuccessMarker(
        files=[file],
        rows=written.rows,
        bytes=written.bytes,
        schema=columns,
        verified=verified,
        content_hash=written.content.content_hash if written.content else None,
        row_sum=written.content.row_sum if written.content else None,
        row_sums=None
        if written.row_sums is None
        else [RowSumOfColumns.model_validate(one) for one in written.row_sums],
        made_from=None if made_from is None else list(made_from),
    )
    write_marker(target.store, target.storage.ref(), marker)


@dataclass(frozen=True)
class _FrameWriter:
    """Runs on an executor: one partition of rows to one file."""

    output: str
    target: OutputFile
    schema: Any
    is_archive: bool
    sorted_by: Sequence[str] = ()

    @report_errors
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        written = _write_file(
            self.target,
            self.schema,
            batches,
            is_archive=self.is_archive,
            sorted_by=self.sorted_by,
        )
        freeze_imports()
        yield _report_batch([(self.output, written)])


@dataclass(frozen=True)
class _SplitWriter:
    """Runs on an executor: one partition of rows to one file per output."""

    work: Callable[[Any], Iterable[tuple[str, Any]]]
    targets: Mapping[str, OutputFile]
    schemas: Mapping[str, Any]
    scan: Scan | None
    is_archive: bool
    sorted_by: Mapping[str, Sequence[str]]

    @report_errors
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        rows = list(batches) and self.scan.batches() if self.scan else batches
        verified: list[str] = []
        with ExitStack() as stack:
            files = {
                table: stack.enter_context(
                    _open_parquet(
                        self.targets[table],
                        schema,
                        is_archive=self.is_archive,
                        sorted_by=self.sorted_by.get(table, ()),
                    )
                )
                for table, schema in self.schemas.items()
            }
            with ThreadPoolExecutor(1, "parquet") as pool:
                writes = _PendingWrites(pool)
                for batch in rows:
                    for table, piece in self.work(batch):
                        if table == VERIFIED:
                            verified.append(piece.model_dump_json())
                        else:
                            writes.submit(files[table], piece)
                writes.wait()
            written = [(table, file.finish()) for table, file in files.items()]
        freeze_imports()
        yield _report_batch(written, verified)


class _PendingWrites:
    """Encodes and compresses pieces in order, in a thread, while the next batch is computed."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._pending: deque[Future[None]] = deque()

    def submit(self, file: ParquetFile, piece: Any) -> None:
        """Queue a piece. Raises the error of an earlier one."""
        if len(self._pending) == _MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(file.write, piece))

    def wait(self) -> None:
        """Wait until all pieces are written. Raises the first error."""
        while self._pending:
            self._pending.popleft().result()


@dataclass(frozen=True)
class _BundleWriter:
    """Runs on an executor: one partition of slices to one file per table."""

    targets: Mapping[str, OutputFile]
    schemas: Mapping[str, Any]
    sorted_by: Mapping[str, Sequence[str]]

    @report_errors
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        with ExitStack() as stack:
            files: dict[str, ParquetFile] = {}
            verified: list[str] = []
            for table, piece in _list_slices(batches):
                if table == VERIFIED:
                    verified.append(piece.to_pybytes().decode())
                    continue
                if table not in files:
                    file = _open_parquet(
                        self.targets[table],
                        self.schemas[table],
                        sorted_by=self.sorted_by.get(table, ()),
                    )
                    files[table] = stack.enter_context(file)
                files[table].write(unpack_slice(piece))
            written = [(table, file.finish()) for table, file in files.items()]
        freeze_imports()
        yield _report_batch(written, verified)


def list_sort_columns(names: Sequence[str]) -> list[str]:
    """The columns by which rows are sorted: by block, if they have one."""
    columns = [name for name in _SORTED_BY if name in names]
    return columns if _SORTED_BY[0] in columns else []


def _sort_rows(frame: DataFrame) -> DataFrame:
    columns = list_sort_columns(frame.columns)
    return frame.sortWithinPartitions(*columns) if columns else frame


def _list_slices(batches: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    for batch in batches:
        for table, piece in zip(batch.column("table"), batch.column("slice"), strict=True):
            yield table.as_py(), piece.as_buffer()


def _write_file(
    target: OutputFile,
    schema: Any,
    batches: Iterator[Any],
    *,
    is_archive: bool = False,
    sorted_by: Sequence[str] = (),
) -> WrittenFile:
    with (
        _open_parquet(target, schema, is_archive=is_archive, sorted_by=sorted_by)
        if target.name.endswith(".parquet")
        else open_text_file(target.store, target.key, schema, attempt=_read_task_attempt())
    ) as file:
        for batch in batches:
            file.write(batch)
        return file.finish()


def _open_parquet(
    target: OutputFile, schema: Any, *, is_archive: bool = False, sorted_by: Sequence[str] = ()
) -> AbstractContextManager[ParquetFile]:
    return open_parquet_file(
        target.store,
        target.key,
        schema,
        attempt=_read_task_attempt(),
        is_archive=is_archive,
        sorted_by=sorted_by,
    )


def _read_task_attempt() -> int:
    """The number of the Spark task attempt: speculative attempts write at the same time."""
    context = TaskContext.get()
    return context.attemptNumber() if context else 0


def _report_batch(written: Sequence[tuple[str, WrittenFile]], verified: Sequence[str] = ()) -> Any:
    rows = [(output, json.dumps(asdict(file))) for output, file in written]
    rows += [(VERIFIED, text) for text in verified]
    columns = list(zip(*rows, strict=True)) or [()] * len(_REPORT)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _REPORT, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_REPORT)


def _run_job(frame: DataFrame) -> WrittenFiles:
    """Run the Spark job. It returns one row per file or verified range, never data."""
    rows = cast("list[Any]", frame.collect())
    return WrittenFiles(
        {row["output"]: _parse_file(row["report"]) for row in rows if row["output"] != VERIFIED},
        [VerifiedRange.model_validate_json(r["report"]) for r in rows if r["output"] == VERIFIED],
    )


def _parse_file(text: str) -> WrittenFile:
    values = json.loads(text)
    content = values.pop("content")
    return WrittenFile(**values, content=ContentHash(**content) if content else None)
