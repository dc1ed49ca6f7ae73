"""A connection to Postgres state, with a fast path for the statements that run most often.

A psycopg cursor does work that these statements do not need: it adapts values of any type, waits for
the socket twice and keeps the result for scrolling. For a statement that takes Postgres 0.3 ms, this
overhead is noticeable.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, LiteralString, TypeVar

from psycopg import AsyncConnection, DataError, OperationalError, abc
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

T = TypeVar("T")
_NAME = re.compile(r"%\((\w+)\)s")


class Connection(AsyncConnection[tuple[Any, ...]]):
    """A psycopg connection with the additional method `rows`. Only one task uses it at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prepared_names: dict[str, bytes] = {}
        self._name_numbers = itertools.count()
        self._loader: abc.Transformer | None = None

    async def rows(
        self, query: LiteralString, values: Mapping[str, str], make: Callable[[Any], T]
    ) -> list[T]:
        """Run a constant statement, prepared on its first call, and build one object per row.

        Values are sent as text, so the statement casts them. Raises the same errors as a cursor.
        """
        text, names = _number_parameters(query)
        async with self.lock:
            name = self._prepared_names.get(query) or await self._prepare(query, text)
            params = [_encode_text(values[name]) for name in names]
            self.pgconn.send_query_prepared(name, params, result_format=Format.BINARY)
            result = await self._fetch_result()
            if self._loader is None:
                self._loader = Transformer(self)
            self._loader.set_pgresult(result)
            return self._loader.load_rows(0, result.ntuples, make)

    async def _prepare(self, query: str, text: bytes) -> bytes:
        name = f"constant_{next(self._name_numbers)}".encode()
        self.pgconn.send_prepare(name, text)
        await self._fetch_result()
        self._prepared_names[query] = name
        return name

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """Discard our prepared statements when psycopg discards all of its own, as after a ROLLBACK."""
        if name is None:
            self._prepared_names.clear()
        return super()._deallocate(name)

    async def _fetch_result(self) -> PGresult:
        """Return the result of the statement that was sent. Raises the error that Postgres returns."""
        pgconn = self.pgconn
        while pgconn.flush():  # the statement is larger than the socket's buffer
            await self._wait_for_socket(writable=True)
            pgconn.consume_input()
        last: PGresult | None = None
        while True:
            while pgconn.is_busy():
                await self._wait_for_socket()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
        if last is None:
            raise OperationalError("Postgres state returned no result")
        if last.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(last)
        return last

    async def _wait_for_socket(self, *, writable: bool = False) -> None:
        """Wait until the socket is readable; with `writable`, until it is readable or writable."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        socket = self.pgconn.socket
        loop.add_reader(socket, _wake, woken)
        if writable:
            loop.add_writer(socket, _wake, woken)
        try:
            await woken
        finally:
            loop.remove_reader(socket)
            if writable:
                loop.remove_writer(socket)
            if woken.cancelled():  # a statement is in progress, so the connection cannot be reused
                await self.close()


def _encode_text(value: str) -> bytes:
    encoded = value.encode()
    if b"\0" in encoded:  # libpq would cut the value there
        raise DataError("Postgres text cannot contain the NUL character")
    return encoded


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


@lru_cache(maxsize=256)
def _number_parameters(query: str) -> tuple[bytes, tuple[str, ...]]:
    """Replace named parameters by `$1`, `$2` and so on. Returns the text and the names in order."""
    names = tuple(dict.fromkeys(_NAME.findall(query)))
    text = _NAME.sub(lambda match: f"${names.index(match[1]) + 1}", query)
    return text.replace("%%", "%").encode(), names
