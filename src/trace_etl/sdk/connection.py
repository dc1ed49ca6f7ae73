"""Calls over the one socket of a sandbox."""

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class CallFailed(Exception):
    """The platform refused a call. `code` is stable; the message says why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


@dataclass(frozen=True)
class Answer:
    content: bytes
    content_type: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


class BrokerConnection:
    """Sends requests to the broker, which adds the token and the lease of this attempt."""

    def __init__(self, path: str) -> None:
        self._path = path

    def call(self, path: str, body: object) -> Any:
        """Send JSON and return the JSON answer. Raises CallFailed."""
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return json.loads(self.send("POST", path, content, headers).content)

    def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and return the answer. Raises CallFailed."""
        connection = _UnixConnection(self._path)
        try:
            connection.request(method, path, content, headers or {})
            reply = connection.getresponse()
            answer = Answer(reply.read(), reply.getheader("Content-Type", ""))
            if reply.status >= 300:
                raise _explain(reply.status, answer)
            return answer
        except (OSError, http.client.HTTPException) as error:
            raise CallFailed("unreachable", repr(error)) from error
        finally:
            connection.close()


def _explain(status: int, answer: Answer) -> CallFailed:
    try:
        problem = json.loads(answer.content)
        return CallFailed(problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        return CallFailed(f"http_{status}", answer.content[:200].decode("utf-8", "replace"))
