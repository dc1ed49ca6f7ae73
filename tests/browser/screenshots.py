"""Take screenshots of every page of the console: `python tests/browser/screenshots.py DIRECTORY`.

Each page is taken light and dark, at three widths. The README uses four of the light and wide ones: overview, dag,
dataset and query.
"""

import json
import random
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.lifecycle.lifecycle import Attempt
from support.services.browsing import Visit, World, open_browser, open_services, visit
from support.services.dispatcher import Secrets
from support.services.postgres import postgres_server

WIDTHS = {
    "wide": {"width": 1440, "height": 900},
    "tablet": {"width": 900, "height": 1000},
    "phone": {"width": 390, "height": 844},
}
DAG, FIRST, SIZE, COUNT = "tokens", 20_000_000, 100, 120
HEAD = FIRST + SIZE * COUNT + 36
QUERY = """SELECT block_number // 500 * 500 AS blocks, count(DISTINCT token) AS tokens,
       sum(transfers)::BIGINT AS transfers, round(sum(volume), 2) AS volume
FROM transfers
GROUP BY 1
ORDER BY 1"""
_TEXT = """
name: tokens
defaults: {heartbeat_timeout: 6h}
jobs:
  # The newest blocks, and everything that is derived from finalized ones.
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks]
    config: {rpc: default}
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [ranges]
    config: {size: 100}
  - name: transfers
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [transfers]
    config:
      sql: |
        SELECT block_number, token, count(*) AS transfers, sum(amount) AS volume
          FROM ranges
         GROUP BY block_number, token
  - name: volumes
    operator: sql
    inputs: [{from: {job: transfers}}]
    outputs: [volumes]
    max_queue_depth: 200
    config:
      sql: |
        SELECT token, sum(volume) AS volume
          FROM transfers
         GROUP BY token
  - name: whales
    operator: sql
    inputs: [{from: {job: transfers}}]
    outputs: [whales]
    config: {sql: "SELECT * FROM transfers WHERE volume > 1000000"}
  - name: alerts
    operator: sql
    inputs: [{from: {job: whales}}, {from: {job: volumes}}]
    outputs: [alerts]
    config: {sql: "SELECT w.* FROM whales w JOIN volumes v USING (token) WHERE w.volume > v.volume / 10"}
publish:
  - {name: transfers, from: {job: transfers}, description: "Transfers and volume of each token in each block."}
  - {name: volumes, from: {job: volumes}, description: "Volume of each token, per hundred blocks."}
  - {name: whales, from: {job: whales}}
"""
_SCHEMA = [
    {"name": "block_number", "type": "bigint"},
    {"name": "token", "type": "string"},
    {"name": "transfers", "type": "bigint"},
    {"name": "volume", "type": "double"},
]
# Spread the finished tasks over an hour, as in real use.
_SPREAD = (
    """UPDATE tasks SET finished_at = now() - interval '59 minutes' * (hash / 4294967296.0)
       FROM (SELECT task_id AS id, hashtext(task_id::text)::bigint + 2147483648 AS hash FROM tasks) h
       WHERE task_id = id AND finished_at IS NOT NULL""",
    """UPDATE tasks SET started_at = finished_at - interval '7 seconds' - interval '9 seconds' * random(),
              queued_at = finished_at - interval '21 seconds', created_at = finished_at - interval '21 seconds'
        WHERE finished_at IS NOT NULL""",
    """UPDATE task_attempts a SET started_at = t.started_at, ended_at = t.finished_at
         FROM tasks t WHERE t.task_id = a.task_id AND t.finished_at IS NOT NULL""",
    """UPDATE partitions p SET committed_at = t.finished_at FROM tasks t WHERE t.task_id = p.task_id""",
)


class Chain:
    """The data of the pictures: a DAG over 12,000 blocks that is busy, with one kind of failure."""

    def __init__(self, world: World) -> None:
        self.world, self.random = world, random.Random(7)

    def fill(self) -> None:
        world = self.world
        world.post("/v1/dags", {"text": _TEXT.lstrip()})
        for name, role in (("ada", "admin"), ("grace", "writer"), ("linus", "reader")):
            world.post("/v1/users", {"name": name, "role": role})
        world.trigger(FIRST, FIRST + SIZE * COUNT - 1, DAG)
        tasks = world.queued("transfers", COUNT, DAG)
        broken, running = tasks[70:75], tasks[108:112]
        for task in [task for task in tasks[:108] if task not in broken]:
            self.complete(world.bench.claimed(task["task_id"], self.worker()))
        for task in broken:
            self.fail(world.bench.claimed(task["task_id"], self.worker()))
        for task in running:
            world.bench.claimed(task["task_id"], self.worker())
        for job, count in (("volumes", 96), ("whales", 88)):
            for task in world.queued(job, 103, DAG)[:count]:
                self.complete(world.bench.claimed(task["task_id"], self.worker()))
        world.post("/v1/dags", {"text": _TEXT.lstrip().replace("v.volume / 10", "v.volume / 20")})
        for statement in _SPREAD:
            world.bench.rows(statement)
        invalid = {"start": FIRST + 6200, "end": FIRST + 6399, "reason": "prices were late"}
        world.post("/v1/datasets/transfers/invalidations", {**invalid, "rebuild": False})
        world.post(
            "/v1/pauses", {"dag": DAG, "job": "alerts", "reason": "a new rule is on its way"}
        )
        backfill = {"dag": DAG, "job": "whales", "start": FIRST + 8000, "end": FIRST + 9999}
        world.post("/v1/backfills", backfill)
        (follow,) = world.get("/v1/tasks", dag=DAG, job="follow")["items"]
        self.follower = world.bench.claimed(follow["task_id"], "worker-1")

    def follow(self) -> None:
        """Report the head, as a follower does every few seconds."""
        now = int(time.time())
        head = {"head": HEAD, "head_time": now, "position": HEAD - 1, "position_time": now - 12}
        reply = self.world.bench.events(self.follower, chain_head=head)
        assert reply.status_code == 200, reply.text

    def worker(self) -> str:
        return f"worker-{self.random.randint(1, 3)}"

    def complete(self, attempt: Attempt) -> None:
        bench = self.world.bench
        written = bench.write_output(attempt)
        start, end = attempt.scope["start"], attempt.scope["end"]
        rows = [
            (
                block,
                f"0x{token:02x}" + "c0ffee" * 3,
                self.random.randint(1, 90),
                self.random.random() * 9e4,
            )
            for block in range(start, end + 1)
            for token in self.random.sample(range(24), 3)
        ]
        names = [column["name"] for column in _SCHEMA]
        table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
        file = bench.prefix(attempt) / f"out_{start}_{end}.parquet"
        pq.write_table(table, file)
        size = {"rows": len(rows), "bytes": file.stat().st_size}
        marker = {"files": [{"name": file.name, **size}], **size, "schema": _SCHEMA}
        file.with_name("_SUCCESS").write_text(json.dumps(marker))
        text = f"{len(rows)} rows of {end - start + 1} blocks, {size['bytes']} bytes\n"
        assert bench.call("/v1/task/logs", attempt, position=0, text=text).status_code == 200
        reply = bench.complete(attempt, datasets_published=[written], events=[attempt.event()])
        assert reply.status_code == 200, reply.text

    def fail(self, attempt: Attempt) -> None:
        message = (
            "cannot resolve column `amount` in line 1: the columns are block_number, token, value"
        )
        fault = {"error_code": "sql_failed", "error_message": message, "retryable": False}
        assert self.world.bench.complete(attempt, "Failed", **fault).status_code == 200


def list_pages(world: World) -> dict[str, str]:
    def find_task(**filters: str) -> str:
        return world.get("/v1/tasks", dag=DAG, job="transfers", **filters)["items"][0]["task_id"]

    return {
        "overview": "/",
        "dags": "/dags",
        "dag": f"/dags/{DAG}?job=transfers",
        "dag-yaml": f"/dags/{DAG}?view=text",
        "dag-versions": f"/dags/{DAG}?view=versions",
        "dag-rollout": f"/dags/{DAG}?view=rollout",
        "datasets": "/datasets",
        "dataset": f"/datasets/transfers?key={FIRST + 6600}-{FIRST + 6699}",
        "dataset-map": "/datasets/transfers",
        "dataset-columns": "/datasets/transfers?view=schema",
        "dataset-versions": "/datasets/transfers?view=versions",
        "dataset-lineage": "/datasets/transfers?view=lineage",
        "dataset-rows": "/datasets/transfers?view=rows",
        "dataset-invalidations": "/datasets/transfers?view=invalidations",
        "tasks": "/tasks",
        "tasks-of-a-job": f"/tasks?dag={DAG}&job=volumes",
        "failures": "/tasks?view=failures",
        "task": f"/tasks/{find_task(status='Completed')}",
        "task-failed": f"/tasks/{find_task(status='Failed')}",
        "query": "/query",
        "backfills": "/operations/backfills",
        "pauses": "/operations/pauses",
        "outbox": "/operations/outbox",
        "batches": "/operations/batches",
        "invalidations": "/operations/invalidations",
        "checks": "/operations/checks",
        "events": "/operations/events",
        "notifications": "/operations/notifications",
        "storage": "/operations/storage",
        "runtimes": "/operations/runtimes",
        "users": "/operations/users",
        "keys": "/operations/keys",
    }


def take(visited: Visit, target: Path, pages: dict[str, str], suffix: str) -> None:
    for name, path in pages.items():
        visited.go(path)
        if name == "query":
            visited.page.get_by_label("SQL query").fill(QUERY)
            visited.page.keyboard.press("Control+Enter")
            visited.page.wait_for_selector("[aria-label='Result']")
        visited.settle()
        visited.page.wait_for_timeout(400)  # a canvas has no event for the end of its drawing
        visited.page.screenshot(path=target / f"{name}-{suffix}.png")


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="trace-shots-") as name,
        postgres_server(Path(name) / "postgres") as templates,
        open_services(
            Secrets.make(Path(name) / "secrets"), templates, Path(name) / "objects"
        ) as world,
        open_browser() as browser,
    ):
        chain = Chain(world)
        chain.fill()
        pages = list_pages(world)
        for scheme, (label, size) in product(("light", "dark"), WIDTHS.items()):
            chain.follow()
            options = {"viewport": size, "color_scheme": scheme}
            with visit(browser, world.url, world.token(), **options) as visited:
                take(visited, target, pages, f"{scheme}-{label}")
    print(f"{len(list(target.glob('*.png')))} screenshots in {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
