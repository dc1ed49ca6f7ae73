"""Send damaged bytes and random calls to a Dispatcher until the standard input ends.

`python -m support.fuzz.fuzz_load TARGET.json`. The calls are generated before the first one is sent, so that
the server, not the generator, is busy. Prints `ready`, and at the end the number of calls.
"""

import itertools
import json
import random
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings

from support.fuzz.damaged_requests import damaged, read_statuses, sending
from support.fuzz.openapi_calls import labels, negative, positive

_PER_OPERATION = 2
_ENDLESS = "GET /v1/changes"
_ROUND = settings(
    max_examples=_PER_OPERATION,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
Call = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The listeners of a Dispatcher, and headers that its calls accept."""

    api_port: int
    internal_port: int
    ca: str
    headers: dict[str, str]

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


@dataclass
class Load:
    """Threads that send until `stop` is set, and what they saw."""

    target: Target
    stop: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    server_errors: list[str] = field(default_factory=list[str])

    def send_damaged(self) -> None:
        """Send damaged bytes to both listeners in turn."""
        context, rng = self.target.context(), random.Random(7)
        ports = itertools.cycle((self.target.api_port, self.target.internal_port))
        while not self.stop.is_set():
            data = damaged(rng)
            with sending(next(ports), context, data) as connection:
                self.sent += 1
                self._note(repr(data[:200]), [s for s in read_statuses(connection) if s >= 500])

    def send_calls(self, port: int, calls: list[Call]) -> None:
        """Send generated calls over one connection, as fast as they are answered."""
        url = f"https://127.0.0.1:{port}"
        with httpx.Client(
            base_url=url,
            verify=self.target.context(),
            trust_env=False,
            timeout=60,
            headers=self.target.headers,
        ) as http:
            for call in itertools.cycle(calls):
                if self.stop.is_set():
                    return
                try:
                    reply = http.request(**call)
                except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):  # refused or not sendable
                    continue
                self.sent += 1
                if reply.status_code >= 500:
                    self._note(f"{call['method']} {call['url']}", [reply.status_code])

    def _note(self, what: str, statuses: list[int]) -> None:
        self.server_errors += [f"{what}: {status}" for status in statuses]


def generate_calls(api: str) -> list[Call]:
    """Generate well-formed and malformed calls of every operation in a document."""
    calls: list[Call] = []

    def collect(cases: Any) -> None:
        @_ROUND
        @given(cases)
        def keep(case: Any) -> None:
            calls.append(_as_request(case))

        keep()

    for label, operation in labels(api).items():
        if label == _ENDLESS:
            continue
        collect(positive(api, label))
        if "requestBody" in operation:
            collect(negative(api, label))
    random.Random(7).shuffle(calls)
    return calls


def _as_request(case: Any) -> Call:
    made = case.as_transport_kwargs(base_url="http://t")
    request: Call = {
        "method": made["method"],
        "url": made["url"].removeprefix("http://t"),
        "params": made.get("params"),
    }
    request["headers"] = {
        name: value
        for name, value in (made.get("headers") or {}).items()
        if name.lower() not in ("authorization", "host", "user-agent")
    }
    if "json" in made:
        request["content"] = json.dumps(made["json"]).encode()
    elif isinstance(made.get("data"), bytes):
        request["content"] = made["data"]
    return request


def main() -> None:
    target = Target(**json.loads(Path(sys.argv[1]).read_text()))
    load = Load(target)
    ports = {"user-api": target.api_port, "task-api": target.internal_port}
    work: list[Callable[[], None]] = [load.send_damaged]
    for api, port in ports.items():
        calls = generate_calls(api)
        work.append(lambda port=port, calls=calls: load.send_calls(port, calls))
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    load.stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"sent": load.sent, "server_errors": load.server_errors[:5]}))


if __name__ == "__main__":
    main()
