"""Send whole columns of Parquet files as they are stored, for a client that decodes them itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from trace_etl.model.column_stream import LENGTH, MAGIC, Span, file_header, frame
from trace_etl.model.storage import PARQUET
from trace_etl.query.requests import DatasetView, FilePart

_TAIL = LENGTH.size + len(b"PAR1")  # of a Parquet file: the length of the footer, and a marker


@dataclass(frozen=True)
class SentFile:
    """A Parquet file, and which of its bytes the result consists of."""

    path: Path
    size: int
    footer: Span
    row_groups: list[list[Span]]
    rows: int


def may_send(view: DatasetView) -> bool:
    """Whether the rows of a view are exactly those of its files, which have the same columns."""
    return (
        view.format == PARQUET
        and bool(view.files)
        and not view.where
        and not view.has_various_columns
        and view.table is None
        and view.rows is None
    )


def find_files(view: DatasetView, schema: Any, *, has_all_columns: bool) -> list[SentFile] | None:
    """Return the files of a view. None unless Arrow reads exactly `schema` from each of them.

    Raises OSError or ArrowInvalid for a file that cannot be read.
    """
    files: list[SentFile] = []
    for path in map(Path, view.files):
        metadata: Any = pq.read_metadata(path)
        if not _matches(metadata.schema.to_arrow_schema(), schema, has_all_columns):
            return None
        columns = None if has_all_columns else frozenset(schema.names)
        groups = [
            _list_spans(metadata.row_group(n), columns) for n in range(metadata.num_row_groups)
        ]
        size = path.stat().st_size
        footer = (size - metadata.serialized_size - _TAIL, size)
        files.append(SentFile(path, size, footer, groups, metadata.num_rows))
    return files


def _matches(stored: Any, schema: Any, has_all_columns: bool) -> bool:
    """Whether a file has the columns of a result, with the same types."""
    names = schema.names
    if any(kinds.is_nested(kind) for kind in schema.types):  # DuckDB names their parts differently
        return False
    if len(set(names)) < len(names) or len(set(stored.names)) < len(stored.names):
        return False
    if has_all_columns:
        return stored.names == names and stored.types == schema.types
    if any("." in name for name in stored.names):  # paths of nested columns have dots, too
        return False
    return all(
        name in stored.names and stored.field(name).type == schema.field(name).type
        for name in names
    )


def _list_spans(group: Any, columns: frozenset[str] | None) -> list[Span]:
    """List the bytes of the chosen columns of a row group, in as few ranges as possible."""
    spans: list[Span] = []
    chunks = [group.column(number) for number in range(group.num_columns)]
    chosen = [
        chunk
        for chunk in chunks
        if columns is None or chunk.path_in_schema.partition(".")[0] in columns
    ]
    for start, end in sorted(map(_find_span, chosen)):
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _find_span(chunk: Any) -> Span:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def encode_files(schema: Any, files: Sequence[SentFile]) -> Iterator[bytes | FilePart]:
    """Yield the stream of the files."""
    yield MAGIC + frame(bytes(pa.Schema.serialize(schema)))
    for file in files:
        yield file_header(file.size, file.footer, file.row_groups)
        spans = [file.footer, *chain.from_iterable(file.row_groups)]
        yield FilePart(str(file.path), spans)
    yield frame(b"")
