"""A part's stand-in: answers /healthz over TLS where its environment says, and stops when asked.

For tests of the supervisor and the stack, where what a part does is of no interest.
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
        self.wfile.write(b'{"status":"ok"}')

    def log_message(self, format: str, *args: object) -> None:
        pass


def listen(port: int) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(os.environ["TRACE_TLS_CERT"], os.environ["TRACE_TLS_KEY"])
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main(name: str) -> None:
    stubborn = name in os.environ.get("STANDIN_STUBBORN", "").split(",")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda *_: sys.exit(0))
    for address in ("API", "INTERNAL", "QUERY", "SCHEDULER"):
        if f"TRACE_{address}_PORT" in os.environ:
            listen(int(os.environ[f"TRACE_{address}_PORT"]))
    if "TRACE_READY_FILE" in os.environ:
        subprocess.Popen(["sleep", "1000"])  # as a worker has its JVM
        said = json.dumps({"spark": "ready", "pid": os.getpid()})
        Path(os.environ["TRACE_READY_FILE"]).write_text(said)
    print(json.dumps({"event": "standing_in", "level": "info"}), file=sys.stderr)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
