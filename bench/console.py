"""The web console in Chromium: a map of a million partitions, a DAG of 1,000 jobs, and many changes.

Goals are given in milliseconds and frames, so each result is a share of its goal. The answer of the map is
also compared with the plainest SQL that counts partitions by bucket, over the same connection type.
"""

import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg

from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, compare, show_progress
from bench.routing import insert_partitions
from trace_etl.lite.processes.ports import free_port

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.services.browsing import Visit, open_browser, visit

PARTITIONS = 1_000_000
BUCKETS = 1_000
JOBS = 1_000
LAYER = 100  # jobs that read the same two earlier ones
CHANGES_PER_MINUTE = 10_000
MAX_ANSWER_MS = 200
MAX_DRAW_MS = 100
MAX_INTERACTIVE_MS = 2_000
MIN_FRAMES = 50
ROUNDS = 3
_CALLS = 10
_WATCH_SECONDS = 10
_MAP_DAG = """
name: bench
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [asked]}
  - {name: base, operator: sql, inputs: [{from: {job: request}}], outputs: [base],
     config: {sql: SELECT 1}}
publish:
  - {name: base, from: {job: base}}
"""
# What any implementation has to read: the blocks of every partition, counted by bucket.
_FLOOR = """
SELECT p.range_start * %(buckets)s / %(width)s, count(*), sum(p.range_end - p.range_start + 1)
  FROM partitions p JOIN publications n ON n.name = 'base'
  JOIN datasets d ON d.dataset_uuid = n.dataset_uuid AND d.dataset_version = p.dataset_version
 GROUP BY 1
"""
_TASKS = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, partition_key, range_start,
                   range_end, max_attempts, status, timeout_seconds, lease_seconds)
SELECT j.org_id, j.job_id, j.revision_id, 'ecs_spark', 'bench:' || j.job_id || ':' || n, n || '-' || n,
       n, n, 3, 'Queued', 3600, 120
  FROM jobs j JOIN dags g USING (dag_id), generate_series(1, 5) n
 WHERE g.name = 'wide' AND j.name <> 'j0'
"""
# Each task goes back and forth between two states, as fast as asked for.
_CHANGE = """
UPDATE tasks SET status = CASE status WHEN 'Queued' THEN 'Canceled' ELSE 'Queued' END
 WHERE task_id = ANY(%s)
"""
_FRAMES = """
(seconds) => new Promise((done) => {
  let frames = 0;
  const began = performance.now();
  const count = (now) => {
    frames += 1;
    if (now - began < seconds * 1000) requestAnimationFrame(count);
    else done((frames * 1000) / (now - began));
  };
  requestAnimationFrame(count);
})
"""
# The graph is drawn, and the main thread has answered a click-sized task after it.
_INTERACTIVE = """
() => new Promise((done) => {
  const check = () => {
    if (!document.querySelector("svg g.node")) return requestAnimationFrame(check);
    requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0));
  };
  check();
})
"""
# Waits until the map was drawn more often than before. Returns how long each drawing took.
_DRAWN = """
(before) => new Promise((done) => {
  const check = () => {
    const drawn = performance.getEntriesByName("partition-map-draw");
    if (drawn.length <= before) return setTimeout(check, 20);
    done(drawn.map((entry) => entry.duration));
  };
  check();
})
"""


def make_wide_dag() -> str:
    """Return a DAG of layers, whose jobs read two jobs of the layer before."""
    steps = ["name: wide\njobs:\n  - {name: j0, source: {kind: manual}, outputs: [rows]}\n"]
    for n in range(1, JOBS):
        row = max(0, (n - 1) // LAYER * LAYER - LAYER)
        reads = [0] if n <= LAYER else [row + 1 + (n * k) % LAYER for k in (1, 3)]
        inputs = ", ".join(
            f"{{from: {{job: j{r}}}, name: i{i}}}" for i, r in enumerate(dict.fromkeys(reads))
        )
        steps.append(
            f"  - {{name: j{n}, operator: sql, inputs: [{inputs}], outputs: [rows],"
            ' config: {sql: "SELECT 1 FROM i0"}}\n'
        )
    return "".join(steps)


@contextmanager
def run_console(stack: BenchStack) -> Generator[str]:
    """Start a console process in front of the Dispatcher. Yields its URL."""
    port = free_port()
    environment = {
        **stack.environment(api_port=stack.api_port, internal_port=stack.internal_port),
        "TRACE_API_URL": f"https://127.0.0.1:{stack.api_port}",
        "TRACE_QUERY_URL": f"https://127.0.0.1:{stack.api_port}",
        "TRACE_TLS_CA": str(stack.ca),
        "TRACE_CONSOLE_PORT": str(port),
    }
    process = subprocess.Popen([sys.executable, "-m", "trace_etl.console"], env=environment)
    try:
        transport = httpx.HTTPTransport(retries=30)
        with httpx.Client(transport=transport, trust_env=False, timeout=60) as http:
            http.get(f"http://127.0.0.1:{port}/healthz").raise_for_status()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def change_tasks(stack: BenchStack) -> Generator[None]:
    """Change tasks at a steady rate in a thread. Raises RuntimeError if it cannot keep up."""
    ids = [row[0] for row in stack.execute("SELECT task_id FROM tasks ORDER BY task_id")]
    batch, stop, changed = CHANGES_PER_MINUTE // 600, threading.Event(), [0]

    def work() -> None:
        with psycopg.connect(stack.dsns.state, autocommit=True) as conn:
            began = time.monotonic()
            while not stop.is_set():
                first = changed[0] % (len(ids) - batch)
                conn.execute(_CHANGE, (ids[first : first + batch],))
                changed[0] += batch
                stop.wait(max(0.0, began + changed[0] * 60 / CHANGES_PER_MINUTE - time.monotonic()))

    thread = threading.Thread(target=work)
    thread.start()
    began = time.monotonic()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    rate = changed[0] * 60 / (time.monotonic() - began)
    show_progress(f"console: {rate:,.0f} task changes per minute")
    if rate < 0.9 * CHANGES_PER_MINUTE:
        raise RuntimeError(f"only {rate:,.0f} changes per minute were made")


class ConsoleBench:
    """A browser at a console with a large map and a large DAG."""

    def __init__(self, stack: BenchStack, seen: Visit, api: httpx.Client) -> None:
        self.stack, self.seen, self.api = stack, seen, api

    def answer(self, path: str = "/map", **params: int) -> float:
        """Return the median milliseconds of an answer about the dataset, by default with the whole map."""

        def ask() -> None:
            asked = params or {"buckets": BUCKETS}
            self.api.get(f"/v1/datasets/base{path}", params=asked).raise_for_status()

        return _median_ms([ask] * _CALLS)

    def count_in_sql(self) -> float:
        """Return the median milliseconds of the plainest SQL with the same counts."""
        values = {"buckets": BUCKETS, "width": PARTITIONS * 10}
        with psycopg.connect(self.stack.dsns.state, autocommit=True) as conn:
            return _median_ms([lambda: conn.execute(_FLOOR, values).fetchall()] * _CALLS)

    def draw(self) -> float:
        """Return the most milliseconds that drawing took, of the whole map and of ten windows."""
        self.seen.go("/datasets/base")
        canvas = self.seen.page.locator("canvas.main")
        canvas.wait_for()
        drawn: list[float] = self.seen.page.evaluate(_DRAWN, 0)
        for _ in range(10):
            canvas.focus()
            self.seen.page.keyboard.press("+")
            drawn = self.seen.page.evaluate(_DRAWN, len(drawn))
        return max(drawn)

    def open_dag(self) -> float:
        """Return the milliseconds from navigation until the graph of 1,000 jobs can be used."""
        self.seen.page.goto("about:blank")
        self.seen.page.goto(f"{self.seen.url}/dags/wide", wait_until="commit")
        return self.seen.page.evaluate(_INTERACTIVE)

    def count_frames(self, path: str) -> float:
        """Return the frames per second of a page while tasks change."""
        self.seen.go(path)
        with change_tasks(self.stack):
            return self.seen.page.evaluate(_FRAMES, _WATCH_SECONDS)


def _median_ms(calls: list[Callable[[], object]]) -> float:
    waits: list[float] = []
    for call in calls:
        began = time.perf_counter()
        call()
        waits.append(1000 * (time.perf_counter() - began))
    return statistics.median(waits)


def _share(name: str, measure: Callable[[], float], goal: float, unit: str, sign: str) -> Result:
    """Compare the median of some rounds with a fixed goal."""
    values: list[float] = []
    for turn in range(ROUNDS):
        values.append(measure())
        show_progress(f"{name}: round {turn + 1} of {ROUNDS}: {values[-1]:.1f} {unit}")
    median = statistics.median(values)
    return Result(name, median, goal, unit, median / goal, f"{sign} 1.0")


def run() -> Generator[Result]:
    """Measure the map, the graph and the frames, each against its goal."""
    with start_stack() as stack:
        stack.post("/v1/dags", {"text": _MAP_DAG})
        stack.post("/v1/dags", {"text": make_wide_dag()})
        stack.execute(_TASKS)
        insert_partitions(stack, PARTITIONS)
        stack.execute("VACUUM ANALYZE")
        stack.settle()
        api = httpx.Client(
            base_url=f"https://127.0.0.1:{stack.api_port}",
            verify=ssl.create_default_context(cafile=str(stack.ca)),
            headers={"Authorization": f"Bearer {stack.user_token}"},
            trust_env=False,
            timeout=60,
        )
        with (
            api,
            run_console(stack) as url,
            open_browser() as browser,
            visit(browser, url, stack.user_token) as seen,
        ):
            here = ConsoleBench(stack, seen, api)
            yield compare(
                "console_map_vs_sql",
                here.answer,
                here.count_in_sql,
                unit="ms",
                goal="<= 1.0",
                rounds=ROUNDS,
            )
            yield _share("console_map_answer", here.answer, MAX_ANSWER_MS, "ms", "<=")
            yield _share(
                "console_dataset_answer",
                lambda: here.answer("", limit=200),
                MAX_ANSWER_MS,
                "ms",
                "<=",
            )
            yield _share("console_map_draw", here.draw, MAX_DRAW_MS, "ms", "<=")
            yield _share("console_dag_of_1000_jobs", here.open_dag, MAX_INTERACTIVE_MS, "ms", "<=")
            for name, path in (("tasks", "/tasks"), ("dag", "/dags/wide")):
                yield _share(
                    f"console_frames_{name}",
                    lambda path=path: here.count_frames(path),
                    MIN_FRAMES,
                    "frames/s",
                    ">=",
                )
