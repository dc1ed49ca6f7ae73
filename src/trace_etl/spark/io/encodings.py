"""Choose the encoding of each column of an archive: the one that makes its first rows smallest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_DICTIONARY, _PLAIN = "DICTIONARY", "PLAIN"
_SAMPLE = 20_000  # rows; a file is one range of one table, so its first rows represent the others


@dataclass(frozen=True)
class Encodings:
    """The columns with a dictionary, and the encodings of the others, by their names in Parquet."""

    dictionary: Sequence[str]
    others: Mapping[str, str]


def choose_encodings(rows: Any, *, level: int) -> Encodings:
    """Try all encodings of each column. The same rows always give the same result."""
    sample = rows.slice(0, _SAMPLE)
    chosen: dict[str, str] = {}
    for field in sample.schema:
        column = sample.select([field.name])
        sizes = {kind: _measure_size(column, kind, level) for kind in _list_candidates(field.type)}
        best = min(sizes, key=lambda kind: (sizes[kind][0], kind))
        chosen |= dict.fromkeys(sizes[best][1], best)
    return Encodings(
        [name for name, kind in chosen.items() if kind == _DICTIONARY],
        {name: kind for name, kind in chosen.items() if kind not in (_DICTIONARY, _PLAIN)},
    )


def _list_candidates(kind: Any) -> list[str]:
    if pa.types.is_nested(kind) or pa.types.is_boolean(kind):
        return [_DICTIONARY]
    if pa.types.is_int64(kind) or pa.types.is_int32(kind):
        return [_DICTIONARY, _PLAIN, "DELTA_BINARY_PACKED"]
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return [_DICTIONARY, _PLAIN, "DELTA_BYTE_ARRAY"]
    return [_DICTIONARY, _PLAIN]


def _measure_size(column: Any, kind: str, level: int) -> tuple[int, list[str]]:
    """Return the encoded size of a column, and the names of its leaf columns."""
    sink = pa.BufferOutputStream()
    special = None if kind in (_DICTIONARY, _PLAIN) else {column.schema.names[0]: kind}
    pq.write_table(
        column,
        sink,
        compression="zstd",
        compression_level=level,
        use_dictionary=kind == _DICTIONARY,
        column_encoding=special,
        store_schema=False,
    )
    stored = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata
    groups = [stored.row_group(n) for n in range(stored.num_row_groups)]
    leaves = [group.column(n) for group in groups for n in range(group.num_columns)]
    names = [stored.schema.column(n).path for n in range(len(stored.schema.names))]
    return sum(leaf.total_compressed_size for leaf in leaves), names
