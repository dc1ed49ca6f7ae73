"""A browser at a real console, Dispatcher and Query Service, with data for every page.

A test plays the worker: it claims tasks and completes them over the task API, so that no Spark is needed.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from support.console import running_console
from support.dispatcher import Secrets, live
from support.lifecycle import Bench, bench
from support.postgres import Templates, copied
from support.query import running_query_service
from support.waiting import eventually
from trace_etl.lite.credentials import keys

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
"""Shown as text, or the title of the page changes."""
SHOP, TIP = "shop", "tip"
_MAX_MILLISECONDS = 120_000  # only ends a test that hangs
_VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (e) => violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""
_SHOP = """
name: shop
description: Transfers of a token, and what follows from them.
jobs:
  # A source starts the DAG.
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [ranges]
    config: {size: 10}
  - name: transfers
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [rows]
    config:
      sql: |
        SELECT block_number, token, sender, receiver, amount
          FROM ranges
  - name: volumes
    operator: sql
    inputs: [{from: {job: transfers}}]
    outputs: [rows]
    config: {sql: "SELECT token, sum(amount) AS amount FROM rows GROUP BY token"}
  - name: alerts
    operator: sql
    inputs: [{from: {job: transfers}}]
    outputs: [rows]
    config: {sql: "SELECT * FROM rows WHERE amount > 1000000"}
publish:
  - {name: transfers, from: {job: transfers}, description: "One row per transfer."}
  - {name: volumes, from: {job: volumes}}
"""
_TIP = """
name: tip
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks]
    config: {rpc: default}
"""


# --- browser --------------------------------------------------------------------------------------


def find_chromium() -> str:
    """Return the path of the system's Chromium. Raises FileNotFoundError with instructions."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("TRACE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise FileNotFoundError("no Chromium: apt-get install chromium, or set TRACE_CHROMIUM")
    return found


@contextmanager
def open_browser() -> Generator[Browser]:
    expect.set_options(timeout=_MAX_MILLISECONDS)
    with sync_playwright() as playwright:
        # Without a sandbox: CI runs as root. The browser sees only pages of this repository.
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@dataclass
class Visit:
    """One person at the console. Whatever the page does wrong is collected."""

    context: BrowserContext
    page: Page
    url: str
    problems: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])

    def watch(self, page: Page) -> None:
        page.on("console", lambda m: m.type == "error" and self.problems.append(m.text))
        page.on("pageerror", lambda error: self.problems.append(f"{error}"))
        page.on("request", lambda request: self.requests.append(request.url))

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)
        self.page.wait_for_selector("main h1")

    def settle(self) -> None:
        """Wait until everything on the page is loaded."""
        expect(self.page.locator("[aria-busy]")).to_have_count(0)

    def check(self) -> None:
        """Check that nothing went wrong, no policy was violated, and no other origin was asked."""
        assert not self.problems, self.problems
        for page in self.context.pages:
            assert not page.evaluate("window.violations"), page.evaluate("window.violations")
        local = (self.url + "/", f"blob:{self.url}/", "data:")
        foreign = [url for url in self.requests if not url.startswith(local)]
        assert not foreign, foreign

    def check_accessible(self) -> None:
        """Check that axe finds nothing serious on the page."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run({resultTypes: ['violations']})")
        serious = [
            f"{v['id']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0]['failureSummary']}"
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        assert not serious, "\n".join(serious)


@contextmanager
def visit(browser: Browser, url: str, token: str, **options: Any) -> Generator[Visit]:
    """Log in with a one-time link, and check at the end that nothing went wrong."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    context.set_default_timeout(_MAX_MILLISECONDS)
    context.add_init_script(_VIOLATIONS)
    page = context.new_page()
    made = Visit(context, page, url)
    made.watch(page)
    headers = {"authorization": f"Bearer {token}"}
    try:
        link = httpx.post(f"{url}/links", headers=headers, trust_env=False).raise_for_status()
        page.goto(url + link.json()["path"])
        page.wait_for_selector(".shell")
        yield made
        made.check()
    finally:
        context.close()


# --- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Running services with data, and a test that plays the worker."""

    bench: Bench
    url: str

    def token(self, name: str | None = None) -> str:
        secrets = self.bench.live.secrets
        if name is None:
            return secrets.user_token
        key = keys.ensure_user_key(secrets.directory / "user")
        return keys.sign_user_token(key, name, now=datetime.now(UTC))

    def get(self, path: str, **params: Any) -> Any:
        reply = self.bench.user.get(path, params=params)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post(self, path: str, body: object = None) -> Any:
        reply = self.bench.user.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def trigger(self, start: int, end: int) -> None:
        self.post("/v1/triggers", {"dag": SHOP, "job": "request", "start": start, "end": end})

    def queued(self, job: str, count: int) -> list[dict[str, Any]]:
        """Wait until so many tasks of a job are queued. Returns them by partition."""

        def find() -> list[dict[str, Any]]:
            found = self.get("/v1/tasks", dag=SHOP, job=job, status="Queued", limit=1000)["items"]
            return found if len(found) >= count else []

        tasks = eventually(find, f"{count} queued tasks of {job}")
        return sorted(tasks, key=lambda t: int(t["partition_key"].partition("-")[0]))

    def complete(self, *tasks: dict[str, Any]) -> None:
        for task in tasks:
            attempt = self.bench.claimed(task["task_id"], "worker-1")
            reply = self.bench.complete(
                attempt,
                datasets_published=[self.bench.write_output(attempt, 40)],
                events=[attempt.event()],
            )
            assert reply.status_code == 200, reply.text

    def fail(self, *tasks: dict[str, Any]) -> None:
        message = f"Cannot resolve column `token` (line 1, pos 21): {HOSTILE}"
        fault = {"error_code": "sql_failed", "error_message": message, "retryable": False}
        for task in tasks:
            attempt = self.bench.claimed(task["task_id"], "worker-1")
            assert self.bench.complete(attempt, "Failed", **fault).status_code == 200


@contextmanager
def open_world(secrets: Secrets, templates: Templates, directory: Path) -> Generator[World]:
    """Run a Dispatcher with its loops, a Query Service and a console, and fill them."""
    with (
        copied(templates) as dsns,
        live(secrets, dsns, directory, loops=True) as running,
        running_query_service(secrets, dsns, directory) as query,
        running_console(running, f"https://127.0.0.1:{query.cfg.query_port}") as console,
        bench(running) as own_bench,
    ):
        world = World(own_bench, console.url)
        _fill(world)
        yield world


def _fill(world: World) -> None:
    """Blocks 0-39 and 60-79 are committed, 40-59 failed, 80-99 run, 100-119 wait."""
    world.post("/v1/dags", {"text": _SHOP})
    world.post("/v1/dags", {"text": _TIP})
    for name, role in (("rita", "reader"), ("wanda", "writer")):
        world.post("/v1/users", {"name": name, "role": role})
    world.trigger(0, 119)
    tasks = world.queued("transfers", 12)
    world.complete(*tasks[:4], *tasks[6:8])
    world.fail(*tasks[4:6])
    for task in tasks[8:10]:
        world.bench.claimed(task["task_id"], "worker-2")
    world.complete(*world.queued("volumes", 6)[:5])
