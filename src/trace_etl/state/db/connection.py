"""A connection to Postgres state, with a short way for the statements that run all the time.

A cursor can do much that these do not need: it adapts values of any type, waits for the socket
twice, keeps results to be scrolled. For a statement that takes Postgres a third of a millisecond,
this is a noticeable part of the whole.
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
    """As psycopg's, and `rows` beside its cursors. Whoever uses it has it alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._constants: dict[str, bytes] = {}
        self._numbers = itertools.count()
        self._loader: abc.Transformer | None = None

    async def rows(
        self, query: LiteralString, values: Mapping[str, str], make: Callable[[Any], T]
    ) -> list[T]:
        """Run a constant statement, prepared on its first call, and make something of each row.

        Values are text, and the statement says what they are. Raises what a cursor would.
        """
        text, names = _numbered(query)
        async with self.lock:
            name = self._constants.get(query) or await self._prepare(query, text)
            params = [_text(values[name]) for name in names]
            self.pgconn.send_query_prepared(name, params, result_format=Format.BINARY)
            result = await self._result()
            if self._loader is None:
                self._loader = Transformer(self)
            self._loader.set_pgresult(result)
            return self._loader.load_rows(0, result.ntuples, make)

    async def _prepare(self, query: str, text: bytes) -> bytes:
        name = f"constant_{next(self._numbers)}".encode()
        self.pgconn.send_prepare(name, text)
        await self._result()
        self._constants[query] = name
        return name

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """As psycopg does for its own statements; after a ROLLBACK, say, it has all forgotten."""
        if name is None:
            self._constants.clear()
        return super()._deallocate(name)

    async def _result(self) -> PGresult:
        """The one result of what was sent. Raises what Postgres says instead."""
        pgconn = self.pgconn
        while pgconn.flush():  # larger than the socket's buffer
            await self._ready(writable=True)
            pgconn.consume_input()
        found: PGresult | None = None
        while True:
            while pgconn.is_busy():
                await self._ready()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            found = result
        if found is None:
            raise OperationalError("Postgres state gave no answer")
        if found.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(found)
        return found

    async def _ready(self, *, writable: bool = False) -> None:
        """Until the socket has something for us, or also takes something more."""
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
            if woken.cancelled():  # with a statement under way, it is of no use to anybody else
                await self.close()


def _text(value: str) -> bytes:
    encoded = value.encode()
    if b"\0" in encoded:  # libpq would stop reading there
        raise DataError("Postgres takes no text with NUL in it")
    return encoded


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


@lru_cache(maxsize=256)
def _numbered(query: str) -> tuple[bytes, tuple[str, ...]]:
    """A statement as Postgres wants it, `$1` for the first name, and the names in that order."""
    names = tuple(dict.fromkeys(_NAME.findall(query)))
    text = _NAME.sub(lambda found: f"${names.index(found[1]) + 1}", query)
    return text.replace("%%", "%").encode(), names
