"""The content hash of rows: the same for every order, file layout, compression and writer.

Each row is hashed with SHA-256 over its canonical encoding (see `row_encoding`). Two values are made
of the row hashes:

- The *content hash* is the SHA-256 of the scheme, the columns, the row count, and the sorted row
  hashes. A different set of rows with the same content hash is a collision of SHA-256.
- The *row sum* is the sum of the row hashes modulo 2^256. The row sum of a union is the sum of the
  row sums, so it shows that a compaction kept all rows, without another read. It finds every mistake,
  but not every attack: an attacker who can choose about 2^16 rows freely finds other rows with the
  same sum in about 2^32 steps (generalised birthday problem). Proofs towards others use the content
  hash.
"""

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trace_etl.proof import native
from trace_etl.proof.row_encoding import describe_schema, encode_parts, join_parts

SCHEME = "rows.v1"
_DIGEST = 32
_BATCH_ROWS = 20_000  # limits the memory of the encoded rows


@dataclass(frozen=True)
class ContentHash:
    """Hashes of a set of rows, as hexadecimal text."""

    rows: int
    content_hash: str
    """With the scheme: `rows.v1:` and 64 digits."""
    row_sum: str


class RowHasher:
    """Hashes rows in batches. Keeps 32 bytes per row."""

    def __init__(self, schema: Any) -> None:
        self._columns = describe_schema(schema)
        self._digests: list[bytes] = []

    def add(self, batch: Any) -> None:
        """Hash the rows of a record batch. Raises UnknownType."""
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            self._digests.append(_hash_rows(batch.slice(start, _BATCH_ROWS)))

    def finish(self) -> ContentHash:
        """Return the hashes of all rows."""
        return combine_digests(self._columns, b"".join(self._digests))


def hash_rows(schema: Any, batches: Iterable[Any]) -> ContentHash:
    """Return the hashes of all rows of some record batches. Raises UnknownType."""
    hasher = RowHasher(schema)
    for batch in batches:
        hasher.add(batch)
    return hasher.finish()


def combine_digests(columns: str, digests: bytes) -> ContentHash:
    """Return the hashes of rows from their row hashes, in any order."""
    count = len(digests) // _DIGEST
    # numpy ignores trailing zeros of byte strings, which changes nothing: all have 32 bytes.
    ordered = np.sort(np.frombuffer(digests, f"S{_DIGEST}")).tobytes() if count else b""
    head = f"trace {SCHEME}\n{columns}\n".encode() + count.to_bytes(8, "big")
    return ContentHash(
        rows=count,
        content_hash=f"{SCHEME}:{hashlib.sha256(head + ordered).hexdigest()}",
        row_sum=f"{_sum_digests(digests):064x}",
    )


def _hash_rows(batch: Any) -> bytes:
    """Return the hashes of the rows, one after the other."""
    parts = encode_parts(batch)
    if native.kernels:
        return native.kernels.sha256_rows(
            [native.pass_column(part) for part in parts], batch.num_rows
        )
    rows = join_parts(parts)
    offsets = np.frombuffer(rows.buffers()[1], np.int64, len(rows) + 1, 8 * rows.offset).tolist()
    content = memoryview(rows.buffers()[2])
    sha256 = hashlib.sha256
    return b"".join(
        [sha256(content[start:end]).digest() for start, end in itertools.pairwise(offsets)]
    )


def _sum_digests(digests: bytes) -> int:
    words = np.frombuffer(digests, ">u4").reshape(-1, _DIGEST // 4).sum(axis=0, dtype=np.uint64)
    total = 0
    for word in words.tolist():
        total = (total << 32) + word
    return total % 2**256
