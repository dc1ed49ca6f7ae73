"""Accept connections on one socket, within limits per address and in total."""

import asyncio
import contextlib
import errno
import heapq
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import structlog

from trace_etl.http.server.connection_limits import ConnectionLimits, LimitedConnection

_BACKLOG = 2048
_ACCEPTS_PER_WAKE = 64
_RETRY_SECONDS = 0.5  # after a failed accept
_LOG_SECONDS = 10.0  # between two log lines about refused connections
_SHUTDOWN_SECONDS = 2.0  # for the TLS close messages
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = structlog.stdlib.get_logger()


class Slot:
    """The place of one connection, from its acceptance to its end."""

    __slots__ = ("address", "connection", "opened_at", "opening", "sock")

    def __init__(self, sock: socket.socket, address: str, opened_at: float) -> None:
        self.sock = sock
        self.address = address
        self.opened_at = opened_at
        self.opening: asyncio.Task[None] | None = None
        self.connection: LimitedConnection | None = None

    @property
    def rank(self) -> tuple[bool, float] | None:
        """The order in which slots are freed; None while a request is answered.

        Clients that have not sent one complete request come first, then the ones idle for longest.
        """
        meter = self.connection.meter if self.connection else None
        if meter is None:
            return (False, self.opened_at)
        return None if meter.is_answering else (meter.has_served, meter.since)

    def free(self) -> None:
        """End the connection now."""
        meter = self.connection.meter if self.connection else None
        if meter is not None:
            meter.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()
            if self.connection is None:  # the event loop does not own the socket yet
                self.sock.close()


MakeConnection = Callable[[Callable[[], None]], Any]
"""Create the protocol of a connection, which calls the given function when it has ended."""


class Acceptor:
    """Accepts connections, closes expired ones, and makes room by closing idle ones."""

    def __init__(
        self,
        sock: socket.socket,
        make_connection: MakeConnection,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket = sock
        self._make_connection = make_connection
        self._limits = limits
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._slots: set[Slot] = set()
        self._emptied = asyncio.Event()
        self._per_address: Counter[str] = Counter()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._refused = 0
        self._logged_at = -_LOG_SECONDS

    def start(self) -> None:
        """Listen and accept."""
        self._socket.setblocking(False)
        self._socket.listen(_BACKLOG)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop accepting. Running connections continue; unfinished handshakes end."""
        if self._socket.fileno() == -1:
            return
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for slot in tuple(self._slots):
            if slot.connection is None or slot.connection.meter is None:
                slot.free()

    async def stop(self, grace: float) -> None:
        """Stop accepting, let running requests finish for `grace` seconds, then end the rest."""
        self.close()
        for slot in tuple(self._slots):
            if slot.connection is not None:
                slot.connection.shutdown()
        if self._slots:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._emptied.wait()
        for slot in tuple(self._slots):
            slot.free()

    # --- accepting ----------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._wait_for_descriptors(error)
                    return
                continue  # this client is gone already
            sock.setblocking(False)
            self._admit(sock, _find_network(peer))

    def _wait_for_descriptors(self, error: OSError) -> None:
        _log.error("accept_failed", error=str(error), connections=len(self._slots))
        self._free_idle(self._slots)
        self._loop.remove_reader(self._socket)
        self._retry_timer = self._loop.call_later(
            _RETRY_SECONDS, self._loop.add_reader, self._socket, self._accept
        )

    def _admit(self, sock: socket.socket, address: str) -> None:
        if not self._has_room(address):
            sock.close()
            self._log_refusal(address)
            return
        slot = Slot(sock, address, self._loop.time())
        self._slots.add(slot)
        self._emptied.clear()
        self._per_address[address] += 1
        slot.opening = self._loop.create_task(self._open(slot))
        if self._sweep_timer is None:
            self._sweep_later()

    async def _open(self, slot: Slot) -> None:
        def make() -> Any:
            slot.connection = self._make_connection(lambda: self._release(slot))
            return slot.connection

        try:
            await self._loop.connect_accepted_socket(
                make,
                slot.sock,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.handshake_seconds if self._tls else None,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS if self._tls else None,
            )
        except (OSError, asyncio.CancelledError):  # the handshake failed, or the slot was freed
            self._release(slot)

    def _release(self, slot: Slot) -> None:
        if slot in self._slots:
            self._slots.discard(slot)
            # The connection refers to its slot: without this, both would wait for the garbage collector.
            slot.connection = None
            self._per_address[slot.address] -= 1
            if not self._per_address[slot.address]:
                del self._per_address[slot.address]
            if not self._slots:
                self._emptied.set()

    # --- limits -------------------------------------------------------------------------------

    def _has_room(self, address: str) -> bool:
        limits = self._limits
        if self._per_address[address] >= limits.max_connections_per_address:
            return self._free_idle({slot for slot in self._slots if slot.address == address})
        if len(self._slots) >= limits.max_connections:
            return self._free_idle(self._slots)
        return True

    def _free_idle(self, among: set[Slot]) -> bool:
        """End some connections that are not being answered. Returns whether there was one.

        A sixteenth at a time, because a scan for every new connection would be slow.
        """
        ranked = [(rank, id(slot), slot) for slot in among if (rank := slot.rank) is not None]
        for _, _, slot in heapq.nsmallest(max(1, len(among) // 16), ranked):
            slot.free()
            self._release(slot)
        return bool(ranked)

    def _log_refusal(self, address: str) -> None:
        self._refused += 1
        now = self._loop.time()
        if now - self._logged_at >= _LOG_SECONDS:
            _log.warning("connections_refused", count=self._refused, last_address=address)
            self._logged_at, self._refused = now, 0

    def _sweep_later(self) -> None:
        interval = min(1.0, self._limits.shortest / 4)
        self._sweep_timer = self._loop.call_later(interval, self._sweep)

    def _sweep(self) -> None:
        """End expired connections. One timer for all is cheaper than one per connection."""
        self._sweep_timer = None
        now = self._loop.time()
        for slot in tuple(self._slots):
            meter = slot.connection.meter if slot.connection else None
            if meter is None or slot.connection is None:
                continue
            if meter.must_abort(now):
                meter.transport.abort()
            elif meter.has_expired(now):
                if meter.is_idle:
                    meter.close()
                else:
                    slot.connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
        if self._slots:
            self._sweep_later()


def _find_network(peer: Any) -> str:
    """Return the key for the limit per address: one IPv6 client usually owns a /64 network."""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host, 64), strict=False))
