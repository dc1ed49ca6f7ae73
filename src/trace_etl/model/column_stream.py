"""The stream of stored columns that the Query Service sends to `trace_etl.client`.

A client decodes Parquet columns faster than a service can decode, send and encrypt them as Arrow. The
stream begins with MAGIC and the Arrow schema of the result. Each file follows as a header and the byte
ranges that the header names: first the footer, then the chosen columns of each row group. An empty
header ends the stream. Schema and headers are preceded by their length.
"""

import struct

import orjson

MAGIC = b"TRC1"
LENGTH = struct.Struct("!I")
Span = tuple[int, int]
"""The first byte of a range, and the one after its last."""


def frame(content: bytes) -> bytes:
    """Return a part of the stream with its length."""
    return LENGTH.pack(len(content)) + content


def file_header(size: int, footer: Span, row_groups: list[list[Span]]) -> bytes:
    """Return the header of one file."""
    return frame(orjson.dumps({"size": size, "footer": footer, "row_groups": row_groups}))
