"""Who follows a chain into hot tables, how far it is, and the fence around its writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.data.connection import Conn
from trace_etl.data.errors import OtherChain, StaleWriter


@dataclass(frozen=True)
class Writer:
    """One attempt that writes one stream."""

    stream: UUID
    task_id: UUID
    attempt: int


@dataclass(frozen=True)
class StreamPosition:
    """How far a stream is. `number` is None before its first block."""

    chain_id: int
    number: int | None
    hash: bytes | None
    finalized: int
    announced: int | None
    reorganisations: int
    deepest: int


@dataclass(frozen=True)
class Rewrite:
    """Blocks that were published and have been replaced, both ends included."""

    rewrite_id: int
    range_start: int
    range_end: int
    reason: str


_CLAIM = """
INSERT INTO followers (stream, task_id, attempt, chain_id)
VALUES (%(stream)s, %(task_id)s, %(attempt)s, %(chain_id)s)
ON CONFLICT (stream) DO NOTHING
"""
_LOCK = "SELECT task_id, attempt FROM followers WHERE stream = %(stream)s FOR UPDATE"
_IS_PAST = """
SELECT 1 FROM follower_past_tasks WHERE stream = %(stream)s AND task_id = %(task_id)s
"""
_RETIRE = """
INSERT INTO follower_past_tasks (stream, task_id)
SELECT stream, task_id FROM followers WHERE stream = %(stream)s AND task_id <> %(task_id)s
ON CONFLICT DO NOTHING
"""
_TAKE = """
UPDATE followers SET task_id = %(task_id)s, attempt = %(attempt)s, updated_at = now()
 WHERE stream = %(stream)s
"""


def take(conn: Conn, writer: Writer, chain_id: int) -> StreamPosition:
    """Become the stream's only writer. Raises StaleWriter if a later one has been here.

    Waits for a transaction of the attempt before: it commits whole, or not at all.
    """
    values = {**vars(writer), "chain_id": chain_id}
    conn.execute(_CLAIM, values)
    row = conn.execute(_LOCK, values).fetchone()
    assert row is not None
    is_older = row[0] == writer.task_id and row[1] > writer.attempt
    if is_older or conn.execute(_IS_PAST, values).fetchone():
        raise StaleWriter(f"attempt {writer.attempt} came after a later one had begun to write")
    conn.execute(_RETIRE, values)
    conn.execute(_TAKE, values)
    position = read(conn, writer.stream)
    assert position is not None
    if position.chain_id != chain_id:
        raise OtherChain(f"the dataset follows chain {position.chain_id}, not {chain_id}")
    return position


_FENCE = """
SELECT 1 FROM followers
 WHERE stream = %(stream)s AND task_id = %(task_id)s AND attempt = %(attempt)s FOR UPDATE
"""


def fence(conn: Conn, writer: Writer) -> None:
    """Hold the stream until the transaction ends. Raises StaleWriter."""
    if conn.execute(_FENCE, vars(writer)).fetchone() is None:
        raise StaleWriter(f"attempt {writer.attempt} no longer writes this stream")


_POSITION = """
SELECT chain_id, number, hash, finalized, announced, reorganisations, deepest
  FROM followers WHERE stream = %s
"""


def read(conn: Conn, stream: UUID) -> StreamPosition | None:
    """How far a stream is; None if nobody ever followed it."""
    with conn.cursor(row_factory=class_row(StreamPosition)) as cursor:
        return cursor.execute(_POSITION, (stream,)).fetchone()


_RECENT_BLOCKS = "SELECT number, hash FROM follower_trail WHERE stream = %s ORDER BY number"


def recent_blocks(conn: Conn, stream: UUID) -> list[tuple[int, bytes]]:
    """List the blocks that the chain may still replace, and the last final one, in order."""
    return [(row[0], bytes(row[1])) for row in conn.execute(_RECENT_BLOCKS, (stream,))]


_CUT_RECENT_BLOCKS = "DELETE FROM follower_trail WHERE stream = %(stream)s AND number >= %(first)s"
_PRUNE_RECENT_BLOCKS = (
    "DELETE FROM follower_trail WHERE stream = %(stream)s AND number < %(finalized)s"
)
_ADD_RECENT_BLOCKS = """
INSERT INTO follower_trail (stream, number, hash)
SELECT %(stream)s, number, hash
  FROM unnest(%(numbers)s::bigint[], %(hashes)s::bytea[]) AS t (number, hash)
 WHERE number >= %(finalized)s
"""
_MOVE = """
UPDATE followers
   SET number = %(number)s, hash = %(hash)s, updated_at = now(),
       finalized = greatest(finalized, %(finalized)s),
       reorganisations = reorganisations + (%(depth)s > 0)::int,
       deepest = greatest(deepest, %(depth)s)
 WHERE stream = %(stream)s
"""


def move(
    conn: Conn, stream: UUID, blocks: Sequence[tuple[int, bytes]], *, finalized: int, depth: int
) -> None:
    """Put the stream at the last block, in place of all it held from the first one on.

    `depth` counts the blocks that are thrown away. The last block stays on the trail always.
    """
    number, last_hash = blocks[-1]
    kept = min(finalized, number)
    values = {
        "stream": stream,
        "first": blocks[0][0],
        "finalized": kept,
        "numbers": [block[0] for block in blocks],
        "hashes": [block[1] for block in blocks],
        "number": number,
        "hash": last_hash,
        "depth": depth,
    }
    for query in (_CUT_RECENT_BLOCKS, _ADD_RECENT_BLOCKS, _PRUNE_RECENT_BLOCKS, _MOVE):
        conn.execute(query, values)


_NOTE = """
INSERT INTO follower_rewrites (stream, range_start, range_end, reason) VALUES (%s, %s, %s, %s)
"""
_PENDING = """
SELECT rewrite_id, range_start, range_end, reason
  FROM follower_rewrites WHERE stream = %s ORDER BY rewrite_id
"""


def note_rewrite(conn: Conn, stream: UUID, start: int, end: int, reason: str) -> None:
    """Remember to tell of a rewritten range: an outbox, written with the rewrite itself."""
    conn.execute(_NOTE, (stream, start, end, reason))


def pending_rewrites(conn: Conn, stream: UUID) -> list[Rewrite]:
    """What has not been told yet, oldest first."""
    with conn.cursor(row_factory=class_row(Rewrite)) as cursor:
        return cursor.execute(_PENDING, (stream,)).fetchall()


_TOLD = """
DELETE FROM follower_rewrites WHERE stream = %(stream)s AND rewrite_id <= %(rewrite_id)s
"""
_ANNOUNCED = """
UPDATE followers SET announced = %(cursor)s
 WHERE stream = %(stream)s AND task_id = %(task_id)s AND attempt = %(attempt)s
"""


def announced(conn: Conn, writer: Writer, cursor: int, rewrites: Sequence[Rewrite]) -> None:
    """What was told need not be told again. Losing this in a crash only repeats it."""
    conn.execute("SET LOCAL synchronous_commit = off")
    values = {**vars(writer), "cursor": cursor}
    if rewrites:
        conn.execute(_TOLD, {**values, "rewrite_id": rewrites[-1].rewrite_id})
    conn.execute(_ANNOUNCED, values)
