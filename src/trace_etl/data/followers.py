"""Streams: the attempt that writes a chain's blocks to hot tables, its position, and its fence."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.data.connection import Conn
from trace_etl.data.errors import OtherChain, StaleWriter


@dataclass(frozen=True)
class Writer:
    """An attempt that writes a stream."""

    stream: UUID
    task_id: UUID
    attempt: int


@dataclass(frozen=True)
class StreamPosition:
    """The position of a stream. `number` and `hash` are None before its first block."""

    chain_id: int
    number: int | None
    hash: bytes | None
    finalized: int
    announced: int | None
    reorganisations: int
    deepest: int


@dataclass(frozen=True)
class Rewrite:
    """A range of published blocks that were replaced, both ends included."""

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
_IS_REPLACED = """
SELECT 1 FROM follower_past_tasks WHERE stream = %(stream)s AND task_id = %(task_id)s
"""
_RECORD_REPLACED = """
INSERT INTO follower_past_tasks (stream, task_id)
SELECT stream, task_id FROM followers WHERE stream = %(stream)s AND task_id <> %(task_id)s
ON CONFLICT DO NOTHING
"""
_TAKE_OVER = """
UPDATE followers SET task_id = %(task_id)s, attempt = %(attempt)s, updated_at = now()
 WHERE stream = %(stream)s
"""


def take_over(conn: Conn, writer: Writer, chain_id: int) -> StreamPosition:
    """Make an attempt the only writer of its stream. Raises StaleWriter after a later attempt.

    Waits for the running transaction of the previous writer.
    """
    values = {**vars(writer), "chain_id": chain_id}
    conn.execute(_CLAIM, values)
    row = conn.execute(_LOCK, values).fetchone()
    assert row is not None
    is_older = row[0] == writer.task_id and row[1] > writer.attempt
    if is_older or conn.execute(_IS_REPLACED, values).fetchone():
        raise StaleWriter(
            f"attempt {writer.attempt} is outdated: a later attempt writes this stream; stop this one"
        )
    conn.execute(_RECORD_REPLACED, values)
    conn.execute(_TAKE_OVER, values)
    position = read_position(conn, writer.stream)
    assert position is not None
    if position.chain_id != chain_id:
        raise OtherChain(
            f"the dataset follows chain {position.chain_id}, not {chain_id}; correct the RPC pool"
        )
    return position


_LOCK_OWN = """
SELECT 1 FROM followers
 WHERE stream = %(stream)s AND task_id = %(task_id)s AND attempt = %(attempt)s FOR UPDATE
"""


def lock_stream(conn: Conn, writer: Writer) -> None:
    """Lock the stream until the transaction ends. Raises StaleWriter if it has another writer."""
    if conn.execute(_LOCK_OWN, vars(writer)).fetchone() is None:
        raise StaleWriter(f"attempt {writer.attempt} no longer writes this stream; stop it")


_POSITION = """
SELECT chain_id, number, hash, finalized, announced, reorganisations, deepest
  FROM followers WHERE stream = %s
"""


def read_position(conn: Conn, stream: UUID) -> StreamPosition | None:
    """Return the position of a stream; None if no attempt has followed it yet."""
    with conn.cursor(row_factory=class_row(StreamPosition)) as cursor:
        return cursor.execute(_POSITION, (stream,)).fetchone()


_RECENT_BLOCKS = "SELECT number, hash FROM follower_trail WHERE stream = %s ORDER BY number"


def list_recent_blocks(conn: Conn, stream: UUID) -> list[tuple[int, bytes]]:
    """List the blocks that the chain may still replace, and the last final block, in order."""
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


def move_position(
    conn: Conn, stream: UUID, blocks: Sequence[tuple[int, bytes]], *, finalized: int, depth: int
) -> None:
    """Replace the recent blocks of a stream from `blocks[0]` on, and move its position to the last block.

    `depth` is the number of discarded blocks. The last block is always kept among the recent ones.
    """
    number, last_hash = blocks[-1]
    values = {
        "stream": stream,
        "first": blocks[0][0],
        "finalized": min(finalized, number),
        "numbers": [block[0] for block in blocks],
        "hashes": [block[1] for block in blocks],
        "number": number,
        "hash": last_hash,
        "depth": depth,
    }
    for query in (_CUT_RECENT_BLOCKS, _ADD_RECENT_BLOCKS, _PRUNE_RECENT_BLOCKS, _MOVE):
        conn.execute(query, values)


_RECORD_REWRITE = """
INSERT INTO follower_rewrites (stream, range_start, range_end, reason) VALUES (%s, %s, %s, %s)
"""
_PENDING_REWRITES = """
SELECT rewrite_id, range_start, range_end, reason
  FROM follower_rewrites WHERE stream = %s ORDER BY rewrite_id
"""


def record_rewrite(conn: Conn, stream: UUID, start: int, end: int, reason: str) -> None:
    """Record a rewrite, to report it later. Call it in the transaction that rewrites the rows."""
    conn.execute(_RECORD_REWRITE, (stream, start, end, reason))


def list_pending_rewrites(conn: Conn, stream: UUID) -> list[Rewrite]:
    """List the rewrites that are not yet reported to the Dispatcher, oldest first."""
    with conn.cursor(row_factory=class_row(Rewrite)) as cursor:
        return cursor.execute(_PENDING_REWRITES, (stream,)).fetchall()


_DELETE_REWRITES = """
DELETE FROM follower_rewrites WHERE stream = %(stream)s AND rewrite_id <= %(rewrite_id)s
"""
_SET_ANNOUNCED = """
UPDATE followers SET announced = %(cursor)s
 WHERE stream = %(stream)s AND task_id = %(task_id)s AND attempt = %(attempt)s
"""


def record_announced(conn: Conn, writer: Writer, cursor: int, rewrites: Sequence[Rewrite]) -> None:
    """Record the cursor and the rewrites that were reported to the Dispatcher.

    The commit does not wait for the disk: if a crash loses it, they are reported again.
    """
    conn.execute("SET LOCAL synchronous_commit = off")
    values = {**vars(writer), "cursor": cursor}
    if rewrites:
        conn.execute(_DELETE_REWRITES, {**values, "rewrite_id": rewrites[-1].rewrite_id})
    conn.execute(_SET_ANNOUNCED, values)
