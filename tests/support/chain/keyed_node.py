"""A node that answers only requests with an API key in their path."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

NODE_KEY = "k3y+of/the node-5f1c9a7d"
"""A key with characters that URLs escape."""


class KeyedNode:
    """Passes requests to `/v3/{key}` on to a node, and answers others with 401. Keeps their paths."""

    def __init__(self, key: str) -> None:
        self.upstream = ""
        self.paths: set[str] = set()
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                node.paths.add(self.path)
                if self.path != f"/v3/{key}":
                    self._answer(401, b'{"error": "no such key"}')
                    return
                parts = urlsplit(node.upstream)
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
                headers = {"Content-Type": "application/json"}
                connection.request("POST", parts.path or "/", body, headers)
                reply = connection.getresponse()
                self._answer(reply.status, reply.read())
                connection.close()

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
