"""Large DAGs are planned and deployed in separate processes, which other requests do not notice."""

import resource
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import psutil
import psycopg
import pytest

from support.lifecycle.lifecycle import Bench
from support.services.dispatcher import MAX_SECONDS
from support.users import new_user
from support.waiting import eventually
from trace_etl.dispatcher.user_api import deploy_runner
from trace_etl.dispatcher.user_api.deploy_process import DeployLimits
from trace_etl.state.catalog import dags
from trace_etl.state.catalog.jobs import list_jobs

HEADER = "name: {name}\n# {padding}\njobs:\n"
JOB = "  - {{name: {name}, source: {{kind: manual}}, outputs: [o]}}\n"
LARGE = "x" * 50_000


def make_dag(*jobs: str, name: str = "large", padding: str = "") -> dict[str, str]:
    text = HEADER.format(name=name, padding=padding) + "".join(JOB.format(name=j) for j in jobs)
    return {"text": text}


MANY_JOBS = make_dag(*(f"j{n}" for n in range(4000)))


def read_processor_time(bench: Bench) -> tuple[float, float]:
    """Return the processor time of the Dispatcher's event loop, and of its ended processes."""

    async def read() -> float:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return time.clock_gettime(clock)

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return bench.live.run(read), usage.ru_utime + usage.ru_stime


def find_deploy_processes() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if _is_deploy_process(p)]


def _is_deploy_process(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        command = process.cmdline()  # empty for a process that has ended
        return bool(command) and command[-1].endswith("deploy_process")
    return False


@contextmanager
def stopped_plans(bench: Bench) -> Generator[None]:
    """Let every plan wait in Postgres until the end of the block."""
    with psycopg.connect(bench.live.dsns.state) as conn:
        conn.execute("LOCK TABLE dags")
        yield


def test_a_large_file_gets_the_same_answer_as_a_small_one(shared: Bench) -> None:
    for job, status in (("good", 200), ("Not a name", 422)):
        replies = [
            shared.user.post("/v1/plans", json=make_dag(job, padding=padding))
            for padding in ("x", LARGE)
        ]
        assert [reply.status_code for reply in replies] == [status, status]
        assert replies[0].json() == replies[1].json()


def test_a_large_file_is_deployed_like_a_small_one(shared: Bench) -> None:
    name = f"d_{uuid4().hex[:12]}"
    reply = shared.user.post("/v1/dags", json=make_dag("one", "two", name=name, padding=LARGE))
    assert reply.status_code == 200, reply.text
    assert [d["job"] for d in reply.json()["datasets"]] == ["one", "two"]
    again = {**make_dag("one", name=name, padding=LARGE), "base_version": str(uuid4())}
    refused = shared.user.post("/v1/dags", json=again)
    assert (refused.status_code, refused.json()["code"]) == (409, "deploy_conflict")


def test_other_requests_are_answered_while_a_reader_plans_thousands_of_jobs(shared: Bench) -> None:
    attempt = shared.attempt()
    loop_before, processes_before = read_processor_time(shared)
    with ThreadPoolExecutor(1) as thread, new_user(shared, "reader") as reader:
        slow = thread.submit(reader.post, "/v1/plans", json=MANY_JOBS, timeout=MAX_SECONDS)
        answered = 0
        # Only a few calls: on a busy machine the plan takes long, and each call takes processor time of the loop.
        while not wait([slow], timeout=0.2).done and answered < 5:
            assert shared.user.get("/healthz", headers={"Authorization": ""}).status_code == 200
            assert shared.heartbeat(attempt).status_code == 200
            answered += 1
        assert slow.result().status_code == 200, slow.result().text[:300]
    loop_after, processes_after = read_processor_time(shared)
    assert answered > 1
    assert loop_after - loop_before < (processes_after - processes_before) / 10


def test_a_small_file_over_a_large_deployed_dag_is_planned_in_a_process(
    shared: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"d_{uuid4().hex[:12]}"
    assert shared.user.post("/v1/dags", json=make_dag("a", "b", "c", name=name)).is_success
    monkeypatch.setattr(deploy_runner, "_FEW_JOBS", 2)
    _, before = read_processor_time(shared)
    reply = shared.user.post("/v1/plans", json=make_dag("a", name=name))
    _, after = read_processor_time(shared)
    assert after > before
    actions = {job["name"]: job["action"] for job in reply.json()["plan"]["jobs"]}
    assert actions == {"a": "keep", "b": "retire", "c": "retire"}


def test_all_jobs_of_a_large_dag_are_shown_in_pages(
    shared: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop answers other requests between two pages."""
    name, jobs = f"d_{uuid4().hex[:12]}", ["a", "b", "c", "d", "e"]
    assert shared.user.post("/v1/dags", json=make_dag(*jobs, name=name)).is_success
    pages: list[int] = []

    async def list_page(*args: Any, limit: int, **options: Any) -> list[Any]:
        pages.append(limit)
        return await list_jobs(*args, limit=limit, **options)

    for size, expected in ((2, [2, 2, 2]), (5, [5, 5]), (1000, [1000])):
        pages.clear()
        monkeypatch.setattr(dags, "_JOBS_PER_PAGE", size)
        monkeypatch.setattr(dags, "list_jobs", list_page)
        shown = shared.user.get(f"/v1/dags/{name}").json()
        assert (shown["jobs"], [job["job"] for job in shown["job_list"]]) == (5, jobs)
        assert pages == expected


def test_one_users_plans_do_not_take_the_slot_of_another(shared: Bench) -> None:
    body = make_dag("one", padding=LARGE)
    with (
        ThreadPoolExecutor(8) as threads,
        new_user(shared, "reader") as ann,
        new_user(shared, "reader") as bob,
    ):
        with stopped_plans(shared):
            post = partial(ann.post, "/v1/plans", json=body, timeout=MAX_SECONDS)
            plans = [threads.submit(post) for _ in range(6)]
            refused = eventually(lambda: next((plan for plan in plans if plan.done()), None))
            assert refused.result().status_code == 429
            assert "4 of your plans and deploys" in refused.result().json()["detail"]
            assert len(find_deploy_processes()) == 1
            plans.append(threads.submit(bob.post, "/v1/plans", json=body, timeout=MAX_SECONDS))
            eventually(lambda: len(find_deploy_processes()) == 2)
        assert sorted(plan.result().status_code for plan in plans) == [200] * 6 + [429]


def test_a_plan_ends_when_its_client_disconnects(shared: Bench) -> None:
    body = make_dag("one", padding=LARGE)
    with stopped_plans(shared), new_user(shared, "reader") as reader:
        with ThreadPoolExecutor(1) as thread:
            abandoned = thread.submit(reader.post, "/v1/plans", json=body, timeout=3.0)
            eventually(find_deploy_processes)
            with pytest.raises(httpx.ReadTimeout):
                abandoned.result()
        eventually(lambda: not find_deploy_processes())


def test_a_plan_over_its_limits_is_refused(shared: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"cpu_seconds": 1, "memory_bytes": 2**30}, {"memory_bytes": 60 * 2**20}
    for limit in limits:
        monkeypatch.setattr(deploy_runner, "_LIMITS", DeployLimits(**limit))
        refused = shared.user.post("/v1/plans", json=MANY_JOBS, timeout=MAX_SECONDS)
        assert refused.status_code == 422, refused.text[:300]
        assert "split the DAG" in refused.json()["detail"]
