"""Stub of a service: answers /healthz on the configured ports, and stops on SIGTERM.

For tests of the supervisor and the stack that do not need real services.
"""

import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from pathlib import Path


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        is_list = self.path.startswith("/v1/")
        self.wfile.write(b'{"items":[],"next":null}' if is_list else b'{"status":"ok"}')

    def log_message(self, format: str, *args: object) -> None:
        pass


def listen(port: int) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
    if "TRACE_TLS_CERT" in os.environ:  # the console has none
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(os.environ["TRACE_TLS_CERT"], os.environ["TRACE_TLS_KEY"])
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    name = Path(os.environ["TMPDIR"]).name
    ignores_sigterm = name in os.environ.get("STUB_IGNORES_SIGTERM", "").split(",")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignores_sigterm else lambda *_: sys.exit(0))
    for address in ("API", "INTERNAL", "QUERY", "SCHEDULER", "CONSOLE"):
        if f"TRACE_{address}_PORT" in os.environ:
            listen(int(os.environ[f"TRACE_{address}_PORT"]))
    if "TRACE_READY_FILE" in os.environ:
        subprocess.Popen(["sleep", "1000"])  # represents a worker's JVM
        status = json.dumps({"spark": "ready", "pid": os.getpid()})
        Path(os.environ["TRACE_READY_FILE"]).write_text(status)
    print(json.dumps({"event": "stub_started", "level": "info"}), file=sys.stderr)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
