"""Metrics and health check of a synchronous process, served from a thread over plain HTTP."""

import asyncio
import threading
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from trace_etl import __version__
from trace_etl.api.body import Health
from trace_etl.http.server.acceptor import Acceptor
from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.http.server.listeners import bind
from trace_etl.http.server.open_files import fit_to_descriptors
from trace_etl.http.server.small_server import RpcAnswer, RpcRequest, SmallHttpProtocol

_MAX_BODY_BYTES = 1024


class MetricsApp:
    """Answers `GET /metrics` and `GET /healthz`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def answer(self, request: RpcRequest) -> RpcAnswer:
        """Answer one request of the small HTTP server."""
        path, _ = request.target()
        if path not in ("/metrics", "/healthz"):
            return _refuse(404, b"the endpoints are /metrics and /healthz")
        if request.method not in ("GET", "HEAD"):
            return _refuse(405, b"only GET is allowed", (b"allow", b"GET, HEAD"))
        if request.has_large_body:
            return _refuse(413, b"the request body is too large")
        if path == "/healthz":
            return RpcAnswer(Health(version=__version__).model_dump_json().encode())
        return RpcAnswer(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST.encode())


def _refuse(status: int, detail: bytes, *headers: tuple[bytes, bytes]) -> RpcAnswer:
    return RpcAnswer(detail + b"\n", status, headers, b"text/plain")


def start_metrics_server(
    port: int, registry: CollectorRegistry, limits: ConnectionLimits, *, host: str = "127.0.0.1"
) -> None:
    """Serve until the process ends. Raises CannotListen if the port is taken."""
    sock = bind(host, port)
    fitting = fit_to_descriptors(limits, 1)
    app = MetricsApp(registry)

    async def serve() -> None:
        def connect(on_end: Callable[[], None]) -> SmallHttpProtocol:
            return SmallHttpProtocol(app, fitting, on_end, max_body=_MAX_BODY_BYTES)

        Acceptor(sock, connect, fitting, tls=None).start()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), name="metrics", daemon=True).start()
