"""The service reads parts of pinned files itself, and of no other file."""

import asyncio
import os
from pathlib import Path

import orjson
import pytest

from trace_etl.model.errors import TraceError, Unavailable
from trace_etl.query.processes.file_parts import read_file_part
from trace_etl.query.processes.pool import _receive_file_part
from trace_etl.query.requests import FilePart

CONTENT = os.urandom(1_500_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.parquet"
    path.write_bytes(CONTENT)
    return path


def read(path: Path, *spans: tuple[int, int]) -> bytes:
    async def collect() -> bytes:
        return b"".join([piece async for piece in read_file_part(FilePart(str(path), list(spans)))])

    return asyncio.run(collect())


@pytest.mark.parametrize("is_cached", [True, False])
def test_the_ranges_of_a_part_are_read_in_their_order(file: Path, is_cached: bool) -> None:
    if not is_cached:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    last = (len(CONTENT) - 10, len(CONTENT))
    assert read(file, last, (3, 3), (0, 1_200_000), (5, 6)) == (
        CONTENT[-10:] + CONTENT[:1_200_000] + CONTENT[5:6]
    )


def test_a_file_that_is_missing_or_too_short_is_unavailable(file: Path) -> None:
    for path, end in ((file, len(CONTENT) + 1), (file.parent / "gone", 1)):
        with pytest.raises(Unavailable, match="cannot read the pinned files"):
            read(path, (0, end))


def test_a_query_process_cannot_have_another_file_sent(file: Path) -> None:
    async def receive(piece: bytes) -> None:
        received.append(piece)

    received: list[bytes] = []
    part = orjson.dumps(FilePart(str(file), [(0, 2)]))
    with pytest.raises(TraceError, match="not pinned"):
        asyncio.run(_receive_file_part(part, receive, frozenset({str(file.parent / "other")})))
    assert received == []
    asyncio.run(_receive_file_part(part, receive, frozenset({str(file)})))
    assert received == [CONTENT[:2]]
