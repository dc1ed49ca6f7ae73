"""Read parts of pinned files in the service, so that their bytes do not pass through a query process."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import structlog

from trace_etl.model.errors import Unavailable
from trace_etl.query.requests import FilePart

_PIECE = 512 * 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", None)
_log = structlog.stdlib.get_logger()


async def read_file_part(part: FilePart) -> AsyncGenerator[bytes]:
    """Yield the bytes of a part. Raises Unavailable if they cannot be read."""
    try:
        stream = await asyncio.to_thread(Path(part.path).open, "rb", 0)
        with stream:
            buffer = bytearray(_PIECE)
            for start, end in part.spans:
                position = start
                while position < end:
                    view = memoryview(buffer)[: end - position]
                    size = await _read(stream.fileno(), view, position)
                    if not size:
                        raise OSError(f"{part.path} is shorter than its footer says")
                    yield bytes(view[:size])
                    position += size
    except OSError as error:
        _log.error("pinned_file_unreadable", error=repr(error))
        raise Unavailable(
            "cannot read the pinned files; the log of the Query Service has the details"
        ) from error


async def _read(descriptor: int, view: memoryview, position: int) -> int:
    """Read into a buffer: at once what the page cache holds, otherwise in a thread."""
    if _NOWAIT is not None:
        try:
            return os.preadv(descriptor, [view], position, _NOWAIT)
        except OSError:  # not in the cache, or the file system always waits
            pass
    return await asyncio.to_thread(os.preadv, descriptor, [view], position)
