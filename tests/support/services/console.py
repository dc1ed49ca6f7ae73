"""A console in a thread, in front of a running Dispatcher."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from support.services.dispatcher import MAX_SECONDS, Live
from support.services.service_thread import running_on_thread, wait_until_listening
from trace_etl.console.app import CSRF_HEADER, open_app
from trace_etl.console.settings import ConsoleSettings
from trace_etl.http.server.listeners import Listener, serve
from trace_etl.lite.processes.ports import free_port


@dataclass(frozen=True)
class Browser:
    """A client that behaves like a page of the console: its cookie, its Origin and its CSRF token."""

    http: httpx.Client
    origin: str
    csrf: str = ""

    def log_in(self, **body: str) -> httpx.Response:
        return self.http.post("/session", json=body, headers={"origin": self.origin})

    def post(self, path: str, body: object = None, **headers: str) -> httpx.Response:
        """Send what the page sends. A header with an empty value is left out."""
        sent = {"origin": self.origin, CSRF_HEADER: self.csrf, **headers}
        kept = {name: value for name, value in sent.items() if value}
        return self.http.post(path, json=body, headers=kept)


@dataclass(frozen=True)
class RunningConsole:
    url: str
    cfg: ConsoleSettings

    @contextmanager
    def browse(self, token: str = "") -> Generator[Browser]:
        """Open a client; with a token, log in."""
        with httpx.Client(base_url=self.url, timeout=MAX_SECONDS, trust_env=False) as http:
            browser = Browser(http, self.url)
            if token:
                reply = browser.log_in(token=token)
                assert reply.status_code == 200, reply.text
                browser = Browser(http, self.url, reply.json()["csrf"])
            yield browser


@contextmanager
def running_console(live: Live, query_url: str = "", **changes: Any) -> Generator[RunningConsole]:
    """Serve a console until the end of the block."""
    port = free_port()
    api_url = f"https://127.0.0.1:{live.cfg.api_port}"
    cfg = ConsoleSettings(
        api_url=api_url,
        query_url=query_url or api_url,
        tls_ca=live.secrets.ca,
        console_port=port,
        **changes,
    )

    @asynccontextmanager
    async def open_service(stop: asyncio.Event) -> AsyncGenerator[None]:
        async with open_app(cfg) as app, asyncio.TaskGroup() as group:
            listener = Listener(app, "127.0.0.1", port)
            group.create_task(serve([listener], tls=None, stop=stop, limits=cfg.http_limits))
            await wait_until_listening(port)
            yield

    with running_on_thread("console", open_service):
        yield RunningConsole(f"http://127.0.0.1:{port}", cfg)
