"""A browser at a real console, Dispatcher and Query Service, with data for every page.

A test plays the worker: it claims tasks and completes them over the task API, so that no Spark is needed.
"""

import json
import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Cookie,
    Page,
    expect,
    sync_playwright,
)

from support.dags.pressure import graph
from support.data.buffered import batch_target
from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.console import running_console
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.services.query import running_query_service
from support.waiting import eventually
from trace_etl.lite.credentials import keys

AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
"""Shown as text, or the title of the page changes."""
SHOP, TIP, CASCADE, FEED, ACTS = "shop", "tip", "cascade", "feed", "acts"
WORKER = f"worker-1 {HOSTILE}"
BLANK = "about:blank"
_MAX_MILLISECONDS = 300_000  # only ends a test that hangs
_VIOLATIONS = """
addEventListener("securitypolicyviolation", ({violatedDirective, blockedURI, sourceFile, lineNumber}) =>
  reportViolation(`${violatedDirective} ${blockedURI} ${sourceFile}:${lineNumber}`));
"""
_SHOP = """
name: shop
defaults: {heartbeat_timeout: 1h}
# HOSTILE
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
          FROM ranges -- HOSTILE
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
  - {name: transfers, from: {job: transfers}, description: DESCRIPTION}
  - {name: volumes, from: {job: volumes}}
  - {name: alerts, from: {job: alerts}}
"""
_FEED = """
name: feed
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: spikes
    operator: sql
    inputs: [{from: {job: request}}]
    outputs: [out]
    update_strategy: append
    unique_key: [id]
    config: {sql: "SELECT 1"}
publish:
  - name: spikes
    from: {job: spikes}
    write_mode: buffered
    description: DESCRIPTION
    schema:
      - {name: id, type: string, nullable: false, comment: DESCRIPTION}
      - {name: n, type: long}
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
_ACTS = """
name: acts
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: rows
    operator: sql
    inputs: [{from: {job: request}}]
    outputs: [rows]
    config: {sql: SELECT 1 AS n}
publish:
  - {name: acts, from: {job: rows}}
"""


# --- browser --------------------------------------------------------------------------------------


def find_chromium() -> str:
    """Return the path of the system's Chromium. Raises FileNotFoundError with instructions."""
    # The shell has no window, and needs a sixth less processor time.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
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
    session: list[Cookie] = field(default_factory=list[Cookie])

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

    @contextmanager
    def expect_problem(self, text: str) -> Generator[None]:
        """Expect that the browser logs something in this block, such as a refused request."""
        before = len(self.problems)

        def find() -> bool:
            self.page.evaluate("0")  # lets events arrive
            return any(text in problem for problem in self.problems[before:])

        yield
        eventually(find, f"the browser logs {text!r}")
        self.problems[before:] = [p for p in self.problems[before:] if text not in p]

    def check(self) -> None:
        """Check that nothing went wrong, no policy was violated, and no other origin was asked.

        What users wrote is text, and axe finds nothing serious, on each page that is still open.
        """
        for page in self.context.pages:
            if page.url != BLANK:
                self.check_accessible(page)
                self.check_texts(page)
        assert not self.problems, self.problems
        local = (self.url + "/", f"blob:{self.url}/", "data:")
        foreign = [url for url in self.requests if not url.startswith(local)]
        assert not foreign, foreign

    def reset(self, token: str) -> None:
        """Close other tabs, forget what was stored, and log in again if the session is another one."""
        for page in self.context.pages:
            if page != self.page:
                page.close()
        self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.page.goto(BLANK)
        if self.context.cookies() != self.session:
            self.context.clear_cookies()
            self.log_in(token)
        self.problems.clear()
        self.requests.clear()

    def log_in(self, token: str) -> None:
        """Log in with a one-time link."""
        self.page.goto(create_link(self.url, token))
        self.page.wait_for_selector(".shell")
        self.session = self.context.cookies()

    def check_texts(self, page: Page | None = None) -> None:
        """Check that nothing users wrote became an element or ran."""
        page = page or self.page
        assert page.locator("img[src=x], script:not([src])").count() == 0
        assert page.title() != "pwned"

    def check_accessible(self, page: Page | None = None, *, rules: Sequence[str] = ()) -> None:
        """Check that axe finds nothing serious on the page, by all of its rules or by some."""
        page = page or self.page
        if not page.evaluate("'axe' in window"):
            page.evaluate(AXE.read_text())
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = list(rules)
        found = page.evaluate("options => axe.run(options)", options)
        serious = [
            f"{v['id']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0]['failureSummary']}"
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        assert not serious, "\n".join(serious)


def create_link(url: str, token: str) -> str:
    """Create a one-time link, like `trace console`."""
    headers = {"authorization": f"Bearer {token}"}
    reply = httpx.post(f"{url}/links", headers=headers, trust_env=False).raise_for_status()
    return url + reply.json()["path"]


@contextmanager
def open_visit(browser: Browser, url: str, **options: Any) -> Generator[Visit]:
    """Open a browser window without a session, and check at the end that nothing went wrong."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    context.set_default_timeout(_MAX_MILLISECONDS)
    page = context.new_page()
    made = Visit(context, page, url)
    context.expose_function("reportViolation", lambda text: made.problems.append(text))
    context.add_init_script(_VIOLATIONS)
    made.watch(page)
    try:
        yield made
        made.check()
    finally:
        context.close()


@contextmanager
def visit(browser: Browser, url: str, token: str, **options: Any) -> Generator[Visit]:
    """Log in with a one-time link, and check at the end that nothing went wrong."""
    with open_visit(browser, url, **options) as made:
        made.log_in(token)
        yield made


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

    def trigger(self, start: int, end: int, dag: str = SHOP) -> None:
        self.post("/v1/triggers", {"dag": dag, "job": "request", "start": start, "end": end})

    def queued(self, job: str, count: int, dag: str = SHOP) -> list[dict[str, Any]]:
        """Wait until so many tasks of a job are queued. Returns them by partition."""

        def find() -> list[dict[str, Any]]:
            found = self.get("/v1/tasks", dag=dag, job=job, status="Queued", limit=1000)["items"]
            return found if len(found) >= count else []

        tasks = eventually(find, f"{count} queued tasks of {job}")
        return sorted(tasks, key=lambda t: int(t["partition_key"].partition("-")[0]))

    def complete(self, *tasks: dict[str, Any]) -> None:
        for task in tasks:
            attempt = self.bench.claimed(task["task_id"], WORKER)
            self.log(attempt)
            reply = self.bench.complete(
                attempt,
                datasets_published=[self.bench.write_output(attempt, 40)],
                events=[attempt.event()],
            )
            assert reply.status_code == 200, reply.text

    def fail(self, *tasks: dict[str, Any], code: str | None = "sql_failed") -> None:
        message = f"Cannot resolve column `token` (line 1, pos 21): {HOSTILE}"
        fault = {"error_code": code, "error_message": message, "retryable": False}
        for task in tasks:
            attempt = self.bench.claimed(task["task_id"], WORKER)
            self.log(attempt)
            assert self.bench.complete(attempt, "Failed", **fault).status_code == 200

    def log(self, attempt: Attempt) -> None:
        text = f"reads {attempt.scope['partition_key']} {HOSTILE}\n"
        reply = self.bench.call("/v1/task/logs", attempt, position=0, text=text)
        assert reply.status_code == 200, reply.text


@contextmanager
def open_services(secrets: Secrets, templates: Templates, directory: Path) -> Generator[World]:
    """Run a Dispatcher with its loops, a Query Service and a console."""
    with (
        copied(templates) as dsns,
        live(secrets, dsns, directory, loops=True) as running,
        running_query_service(secrets, dsns, directory) as query,
        running_console(running, f"https://127.0.0.1:{query.cfg.query_port}") as console,
        bench(running) as own_bench,
    ):
        yield World(own_bench, console.url)


def fill(world: World) -> None:
    """Blocks 0-39 and 60-79 are committed, 40-59 failed, 80-99 run, 100-119 wait."""
    described = [t.replace("DESCRIPTION", json.dumps(HOSTILE)) for t in (_SHOP, _FEED)]
    column = {"name": HOSTILE, "type": "string"}
    columns = [{"job": "alerts", "output": "rows", "columns": [column]}]
    shop = described[0].replace("HOSTILE", HOSTILE)
    world.post("/v1/dags", {"text": shop, "columns": columns})
    world.post("/v1/dags", {"text": described[1]})
    world.post("/v1/dags", {"text": _TIP})
    for name, role in (("rita", "reader"), ("wanda", "writer"), ("ada.lane", "writer")):
        world.post("/v1/users", {"name": name, "role": role})
    world.trigger(0, 119)
    tasks = world.queued("transfers", 12)
    world.complete(*tasks[:4], *tasks[6:8])
    world.fail(*tasks[4:6])
    for task in tasks[8:10]:
        world.bench.claimed(task["task_id"], "worker-2")
    world.complete(*world.queued("volumes", 6)[:5])
    _fill_cascade(world)
    _fill_deliveries(world)
    _fill_acts(world)


def _fill_cascade(world: World) -> None:
    """A full queue below a diamond: everything above it is paused."""
    jobs = {"left": "split", "right": "split", "join": "left right; max_queue_depth: 1"}
    cascade = graph(world.bench, jobs, name=CASCADE)
    cascade.trigger(2)
    for job in ("left", "right"):
        for task in world.queued(job, 2, CASCADE):
            cascade.finish(world.bench.claimed(task["task_id"]))
    eventually(lambda: "left" in cascade.paused(), "the queue pauses the jobs above it")


# A receiver that refuses and a sink that finds a bad batch are tested elsewhere. This is what they leave.
_DELIVERIES = (
    """UPDATE buffer_publishes SET failed_at = now(), error_code = 'bad_batch', error_message = %s
        WHERE publish_id = (SELECT min(publish_id::text)::uuid FROM buffer_publishes)""",
    """INSERT INTO outbox (kind, target, subject, tries, failed_at, last_error)
       SELECT 'wake_up', 'ecs_spark', task_id, 20, now(), %s FROM tasks LIMIT 1""",
)


def _fill_deliveries(world: World) -> None:
    """A batch that waits, one that is dead-lettered, and a side effect that failed."""
    world.trigger(0, 0, FEED)
    world.trigger(1, 1, FEED)
    for task in world.queued("spikes", 2, FEED):
        attempt = world.bench.claimed(task["task_id"], "worker-3")
        reply = world.bench.publish(attempt, **batch_target(attempt))
        assert reply.status_code == 200, reply.text
    for statement in _DELIVERIES:
        world.bench.rows(statement, HOSTILE)


def _fill_acts(world: World) -> None:
    """A rollout, a canceled backfill, a pause by a user and a disabled user: what people resume and enable."""
    world.post("/v1/dags", {"text": _ACTS})
    world.trigger(0, 9, ACTS)
    world.complete(*world.queued("rows", 1, ACTS))
    backfill = {"dag": ACTS, "job": "rows", "start": 0, "end": 9, "force": True}
    started = world.post("/v1/backfills", backfill)
    world.post(f"/v1/backfills/{started['backfill_id']}/cancel")
    world.post("/v1/dags", {"text": _ACTS.replace("SELECT 1", "SELECT 2")})
    eventually(
        lambda: world.get(f"/v1/dags/{ACTS}/rollout")["state"] == "building", "the rollout builds"
    )
    world.post("/v1/pauses", {"dag": ACTS, "job": "rows", "reason": "maintenance"})
    world.post("/v1/users", {"name": "otto", "role": "reader"})
    world.post("/v1/users/otto/disable")
