"""A node with faults: an HTTP proxy in front of a real chain that can change requests and answers."""

import http.client
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import orjson

from support.chain.node_server import NodeServer

Calls = list[dict[str, Any]]


@dataclass(frozen=True)
class Reply:
    """An HTTP answer sent instead of the node's answer."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    cut_at: int | None = None
    """Announce the whole body, send this many bytes, then close the connection."""


@dataclass
class FaultyNode(NodeServer):
    """Forwards calls to a chain. `before` may answer instead of the chain; `after` may change the items.

    `change` may alter the calls before they are forwarded.
    """

    upstream: str
    before: Callable[[Calls], Reply | None] = lambda calls: None
    after: Callable[[Calls, Calls], Calls] = lambda calls, items: items
    change: Callable[[Calls], None] = lambda calls: None
    requests: list[Calls] = field(default_factory=list[Calls])

    @property
    def url(self) -> str:
        return f"http://{self.label}"

    def methods(self) -> list[str]:
        return [call["method"] for calls in self.requests for call in calls]

    def answer_request(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        request = orjson.loads(body)
        calls: Calls = request if isinstance(request, list) else [request]
        self.requests.append(calls)
        reply = self.before(calls) or self._forward(calls, is_batch=isinstance(request, list))
        self._send(handler, reply)

    def _forward(self, calls: Calls, *, is_batch: bool) -> Reply:
        self.change(calls)
        parts = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        connection.request("POST", "/", orjson.dumps(calls), {"Content-Type": "application/json"})
        answer = orjson.loads(connection.getresponse().read())
        connection.close()
        items = self.after(calls, answer)
        return Reply(200, orjson.dumps(items if is_batch else items[0]))

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body[: reply.cut_at])
        if reply.cut_at is not None:
            handler.close_connection = True
