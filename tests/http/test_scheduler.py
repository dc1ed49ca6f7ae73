"""Cron sources on a real Dispatcher: every tick fires exactly once."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import httpx
import pytest

from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied, sql
from trace_etl.http.server.listeners import Listener, Tls, serve
from trace_etl.lite.processes.ports import free_port
from trace_etl.model.errors import Unavailable
from trace_etl.scheduler import ticks
from trace_etl.scheduler.api import DispatcherApi
from trace_etl.scheduler.app import make_app
from trace_etl.scheduler.cron_trigger import CronTrigger
from trace_etl.scheduler.ticks import Schedule

T = TypeVar("T")
JOB = ""
DAG = """
name: clock
jobs:
  - {name: hourly, source: {kind: cron, schedule: "0 * * * *"}, outputs: [ticks]}
  - {name: manual, source: {kind: manual}, outputs: [ranges]}
"""
WITHOUT_CRON = "\n".join(line for line in DAG.splitlines() if "hourly" not in line)
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
MAX = 9_007_199_254_740_991
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def dispatcher(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Live]:
    """One Dispatcher for all tests: each test deploys its own job, which replaces the previous one."""
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, live(secrets, dsns, objects) as running:
        yield running


@pytest.fixture(autouse=True)
def _another_job() -> None:
    global JOB
    JOB = f"hourly_{uuid4().hex[:12]}"


def deploy(live: Live, text: str = DAG) -> None:
    with live.user() as http:
        reply = http.post("/v1/dags", json={"text": text.replace("hourly", JOB)})
        assert reply.status_code == 200, reply.text


def with_scheduler(live: Live, use: Callable[[CronTrigger], Awaitable[T]]) -> T:
    async def main() -> T:
        url = f"https://127.0.0.1:{live.cfg.api_port}"
        token_file = live.secrets.directory / "services" / "scheduler"
        async with DispatcherApi(url, live.secrets.ca, token_file) as api:
            return await use(CronTrigger(api, timedelta(seconds=30), timedelta(seconds=90)))

    return asyncio.run(main())


def fired(live: Live, condition: str = "") -> list[str]:
    query = (
        "SELECT e.partition_key FROM events e JOIN datasets d USING (dataset_uuid)"
        f" JOIN jobs j USING (job_id) WHERE j.name = %s {condition} ORDER BY e.partition_key"
    )
    return [row[0] for row in sql(live.dsns.state, query, (JOB,))]


def key(tick: datetime) -> str:
    return f"{tick:%Y-%m-%dT%H:%M:%SZ}"


def test_a_job_seen_for_the_first_time_fires_from_its_next_tick_on(dispatcher: Live) -> None:
    deploy(dispatcher)

    async def use(trigger: CronTrigger) -> None:
        again = await trigger.fire_once(NOON + SECOND)
        assert fired(dispatcher) == []
        assert again == NOON + SECOND + timedelta(seconds=30)
        again = await trigger.fire_once(NOON + HOUR - SECOND)
        assert again == NOON + HOUR
        await trigger.fire_once(NOON + HOUR)
        assert fired(dispatcher) == [key(NOON + HOUR)]

    with_scheduler(dispatcher, use)


@pytest.mark.parametrize(
    ("policy", "made_up_for"),
    [
        ("", [20]),
        (", missed: last", [20]),
        (", missed: skip", []),
        (", missed: all", range(1, 21)),
        (", missed: all, most_missed: 3", [18, 19, 20]),
    ],
    ids=["default", "last", "skip", "all", "bounded"],
)
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "asleep"])
def test_missed_ticks_fire_according_to_the_sources_policy(
    dispatcher: Live, policy: str, made_up_for: Sequence[int], restarted: bool
) -> None:
    deploy(dispatcher, DAG.replace('"0 * * * *"', f'"0 * * * *"{policy}'))

    async def first(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON)
        if not restarted:
            await trigger.fire_once(NOON + 20 * HOUR + 10 * MINUTE)

    async def second(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON + 20 * HOUR + 10 * MINUTE)
        await trigger.fire_once(NOON + 21 * HOUR)

    with_scheduler(dispatcher, first)
    with_scheduler(dispatcher, second)
    assert fired(dispatcher) == [key(NOON + n * HOUR) for n in (0, *made_up_for, 21)]


def test_ticks_of_a_paused_source_are_routed_when_it_resumes(
    dispatcher: Live,
) -> None:
    deploy(dispatcher)
    body = {"dag": "clock", "job": JOB}

    async def use(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON)
        await trigger.fire_once(NOON + HOUR)

    with dispatcher.user() as http:
        reply = http.post("/v1/pauses", json=body)
        assert reply.status_code == 200, reply.text
        with_scheduler(dispatcher, use)
        dispatcher.drain()
        assert fired(dispatcher) == [key(NOON), key(NOON + HOUR)]
        assert fired(dispatcher, "AND e.routed_at IS NOT NULL") == []
        assert http.post("/v1/pauses/resume", json=body).status_code == 200
    dispatcher.drain()
    assert fired(dispatcher, "AND e.routed_at IS NOT NULL") == fired(dispatcher)


def test_a_tick_on_time_replaces_the_ticks_missed_before_it(dispatcher: Live) -> None:
    deploy(dispatcher)

    async def use(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON)
        await trigger.fire_once(NOON + 5 * HOUR + SECOND)

    with_scheduler(dispatcher, use)
    assert fired(dispatcher) == [key(NOON), key(NOON + 5 * HOUR)]


def test_a_schedule_follows_the_clock_of_its_time_zone(dispatcher: Live) -> None:
    """Noon in Berlin is 11:00 UTC in winter, 10:00 in summer."""
    options = '"0 12 * * *", timezone: Europe/Berlin, missed: all'
    deploy(dispatcher, DAG.replace('"0 * * * *"', options))
    saturday = datetime(2026, 3, 28, 11, 0, tzinfo=UTC)

    async def use(trigger: CronTrigger) -> None:
        await trigger.fire_once(saturday)
        await trigger.fire_once(saturday + 48 * HOUR)

    with_scheduler(dispatcher, use)
    assert fired(dispatcher) == [
        key(saturday),
        key(saturday + 23 * HOUR),
        key(saturday + 47 * HOUR),
    ]


def test_a_restarted_scheduler_continues_after_the_last_fired_tick(dispatcher: Live) -> None:
    deploy(dispatcher)

    async def first(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON)

    async def second(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON + HOUR + SECOND)

    with_scheduler(dispatcher, first)
    with_scheduler(dispatcher, second)
    assert fired(dispatcher) == [key(NOON), key(NOON + HOUR)]


def test_two_schedulers_race_and_fire_every_tick_once(dispatcher: Live) -> None:
    deploy(dispatcher, DAG.replace('"0 * * * *"', '"0 * * * *", missed: all'))

    async def use(trigger: CronTrigger) -> None:
        others = [CronTrigger(trigger.api, trigger.refresh, trigger.tolerance) for _ in range(3)]
        schedulers = [trigger, *others]
        for hours in (0, 1, 30):
            now = NOON + hours * HOUR
            await asyncio.gather(*(scheduler.fire_once(now) for scheduler in schedulers))
        fired_by_us = [count(scheduler, "us") for scheduler in schedulers]
        assert sum(fired_by_us) == 31
        assert sum(count(scheduler, "another") for scheduler in schedulers) > 0

    with_scheduler(dispatcher, use)
    assert fired(dispatcher) == [key(NOON + n * HOUR) for n in range(31)]


def count(trigger: CronTrigger, fired_by: str) -> float:
    labels = {"fired_by": fired_by}
    return trigger.metrics.registry.get_sample_value("trace_scheduler_ticks_total", labels) or 0


def test_a_changed_schedule_and_a_removed_job_apply_after_the_refresh(dispatcher: Live) -> None:
    deploy(dispatcher)

    async def use(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON + SECOND)
        deploy(dispatcher, DAG.replace("0 * * * *", "30 * * * *"))
        await trigger.fire_once(NOON + HOUR)
        assert fired(dispatcher) == []
        await trigger.fire_once(NOON + HOUR + timedelta(minutes=31))
        assert fired(dispatcher) == [key(NOON + HOUR + timedelta(minutes=30))]
        deploy(dispatcher, WITHOUT_CRON)
        await trigger.fire_once(NOON + 9 * HOUR)
        assert len(fired(dispatcher)) == 1

    with_scheduler(dispatcher, use)


def test_no_tick_is_lost_while_the_dispatcher_does_not_answer(dispatcher: Live) -> None:
    deploy(dispatcher)

    async def use(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON + SECOND)
        good, trigger.api = (
            trigger.api,
            DispatcherApi(
                "https://127.0.0.1:1",
                dispatcher.secrets.ca,
                dispatcher.secrets.directory / "user.jwt",
            ),
        )
        with pytest.raises(Unavailable):
            await trigger.fire_once(NOON + HOUR)
        trigger.api = good
        await trigger.fire_once(NOON + HOUR + 10 * SECOND)

    with_scheduler(dispatcher, use)
    assert fired(dispatcher) == [key(NOON + HOUR)]


def test_the_agent_fires_on_schedule_and_stops_on_request(dispatcher: Live) -> None:
    deploy(dispatcher, DAG.replace("0 * * * *", "* * * * * */1"))

    async def use(trigger: CronTrigger) -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(trigger.run(stop))
        while not fired(dispatcher):  # noqa: ASYNC110 - the database sets no event
            await asyncio.sleep(0.05)
        stop.set()
        await asyncio.wait_for(running, 60)

    with_scheduler(dispatcher, use)


def test_a_trigger_whose_value_is_not_a_time_is_refused_and_does_not_stop_the_scheduler(
    dispatcher: Live,
) -> None:
    deploy(dispatcher)
    late = NOON + 300 * 365 * 24 * HOUR
    with dispatcher.user() as http:
        job = {"dag": "clock", "job": JOB}
        for scope in (
            {"start": 5, "end": 9},
            {"cursor": 5},
            {"partition_key": "a"},
            {"payload": 1},
        ):
            reply = http.post("/v1/triggers", json={**job, **scope})
            assert reply.status_code == 409 and "--at" in reply.json()["detail"], reply.text
        for no_time in (
            "2026-03-01T12:00:00",
            "0001-01-01T00:00:00+01:00",
            "9999-12-31T23:59:59-01:00",
        ):
            reply = http.post("/v1/triggers", json={**job, "scheduled_time": no_time})
            assert reply.status_code == 422, reply.text  # no time zone, or no such time in UTC
        for tick in (NOON - HOUR, late):
            reply = http.post("/v1/triggers", json={**job, "scheduled_time": tick.isoformat()})
            assert reply.status_code == 200, reply.text
    # An earlier release accepted such a tick.
    stored = "UPDATE tasks SET partition_key = %s WHERE partition_key = %s"
    changed = sql(dispatcher.dsns.state, f"{stored} RETURNING 1", (f"{MAX}-{MAX}", key(late)))
    assert len(changed) == 1

    async def use(trigger: CronTrigger) -> None:
        await trigger.fire_once(NOON)
        await trigger.fire_once(NOON + HOUR)

    with_scheduler(dispatcher, use)
    assert {key(NOON), key(NOON + HOUR)} <= set(fired(dispatcher))


def test_the_scheduler_works_while_the_user_local_is_disabled(dispatcher: Live) -> None:
    deploy(dispatcher)
    disable = "UPDATE memberships SET disabled_at = {} WHERE user_name = 'local' RETURNING 1"
    sql(dispatcher.dsns.state, disable.format("now()"))
    try:
        with dispatcher.user() as http:
            assert http.get("/v1/jobs").status_code == 403

        async def use(trigger: CronTrigger) -> None:
            await trigger.fire_once(NOON)

        with_scheduler(dispatcher, use)
        assert fired(dispatcher) == [key(NOON)]
    finally:
        sql(dispatcher.dsns.state, disable.format("NULL"))


async def test_a_scheduler_that_cannot_fire_ticks_is_not_healthy(
    dispatcher: Live, tmp_path: Path
) -> None:
    url, stop, port = f"https://127.0.0.1:{dispatcher.cfg.api_port}", asyncio.Event(), free_port()
    token = tmp_path / "token"
    token.write_text("unknown")
    context = ssl.create_default_context(cafile=str(dispatcher.secrets.ca))
    async with (
        DispatcherApi(url, dispatcher.secrets.ca, token) as api,
        httpx.AsyncClient(verify=context, trust_env=False) as http,
        asyncio.TaskGroup() as group,
    ):
        trigger = CronTrigger(api, timedelta(seconds=30), timedelta(seconds=90))
        listener = Listener(make_app(api, trigger), "127.0.0.1", port)
        tls = Tls(dispatcher.cfg.tls_cert, dispatcher.cfg.tls_key)
        group.create_task(serve([listener], tls=tls, stop=stop))
        group.create_task(trigger.run(stop))
        await until_health(http, port, 503)
        token.write_text(dispatcher.secrets.service_token("scheduler"))
        await until_health(http, port, 200)
        stop.set()


async def until_health(http: httpx.AsyncClient, port: int, status: int) -> None:
    async with asyncio.timeout(120):
        while True:
            with suppress(httpx.ConnectError):
                if (await http.get(f"https://127.0.0.1:{port}/healthz")).status_code == status:
                    return
            await asyncio.sleep(0.05)


def test_ticks_are_after_the_start_and_up_to_the_end() -> None:
    due = list(ticks.between(Schedule("*/15 * * * *"), NOON, NOON + HOUR))
    assert [tick.minute for tick in due] == [15, 30, 45, 0]
    assert ticks.following(Schedule("0 0 30 2 *"), NOON) is None
    assert ticks.following(Schedule("nonsense"), NOON) is None


def test_missed_ticks_of_a_frequent_schedule_are_not_enumerated() -> None:
    every_second = Schedule("* * * * * */1", missed="all", max_missed=3)
    due = ticks.due(every_second, NOON, NOON + 24 * 365 * HOUR, tolerance=2 * SECOND)
    assert due == [NOON + 24 * 365 * HOUR - n * SECOND for n in (4, 3, 2, 1, 0)]
