"""The queue: every message to one consumer, again after a while, and who listens."""

import asyncio
import threading
from collections.abc import Generator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from trace_etl.lite.postgres.databases import Dsns
from trace_etl.queues.pgqueue import Consumer, Producer, channel

LONG, NONE = timedelta(minutes=5), timedelta(0)


def send(dsns: Dsns, *messages: tuple[str, dict]) -> None:
    async def go() -> None:
        producer = Producer(dsns.queue)
        await producer.open()
        await producer.send(list(messages))
        await producer.close()

    asyncio.run(go())


def listeners(dsns: Dsns, queue: str) -> list[str]:
    async def go() -> list[str]:
        producer = Producer(dsns.queue)
        await producer.open()
        try:
            return await producer.consumers(queue)
        finally:
            await producer.close()

    return asyncio.run(go())


@pytest.fixture
def consumer(dsns: Dsns) -> Generator[Consumer]:
    made = Consumer(dsns.queue, ["ecs_python"], "one")
    yield made
    made.close()


def test_a_message_goes_to_one_consumer_and_is_gone_when_acknowledged(
    dsns: Dsns, consumer: Consumer
) -> None:
    other = Consumer(dsns.queue, ["ecs_python"], "two")
    send(dsns, ("ecs_python", {"task_id": str(uuid4())}))
    (message,) = consumer.receive(limit=10, hidden=LONG)
    assert other.receive(limit=10, hidden=LONG) == []
    consumer.ack([message.message_id])
    assert consumer.receive(limit=10, hidden=NONE) == []
    other.close()


def test_a_message_that_nobody_acknowledged_comes_back(dsns: Dsns, consumer: Consumer) -> None:
    send(dsns, ("ecs_python", {"n": 1}))
    (first,) = consumer.receive(limit=1, hidden=NONE)
    (second,) = consumer.receive(limit=1, hidden=NONE)
    assert (first.message_id, first.receives) == (second.message_id, 1)
    assert second.receives == 2


def test_consumers_see_only_their_queues(dsns: Dsns, consumer: Consumer) -> None:
    send(dsns, ("ecs_rust", {"n": 1}), ("ecs_python", {"n": 2}))
    assert [m.body for m in consumer.receive(limit=10, hidden=LONG)] == [{"n": 2}]


def test_a_waiting_consumer_is_woken_by_a_message(dsns: Dsns, consumer: Consumer) -> None:
    consumer.receive(limit=1, hidden=LONG)  # connects and listens
    woken = threading.Event()
    stop = threading.Event()

    def wait() -> None:
        consumer.wait(stop)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    send(dsns, ("ecs_python", {"n": 1}))
    assert woken.wait(4), "the slow poll is longer than this"
    stop.set()
    thread.join()


def test_a_consumer_is_known_while_its_session_lives_and_not_after(
    dsns: Dsns, consumer: Consumer
) -> None:
    assert listeners(dsns, "ecs_python") == []
    consumer.receive(limit=1, hidden=LONG)
    assert listeners(dsns, "ecs_python") == ["one"]
    assert listeners(dsns, "ecs_rust") == []
    consumer._conn.pgconn.finish()  # as a killed process would end it: no goodbye
    deadline = 200
    while listeners(dsns, "ecs_python") and deadline:
        deadline -= 1
    assert listeners(dsns, "ecs_python") == []


def test_a_queue_is_named_by_a_plain_word() -> None:
    with pytest.raises(ValueError, match="not a queue name"):
        channel('x"; DROP TABLE messages')


def test_what_is_urgent_comes_before_all_that_gives_way(dsns: Dsns, consumer: Consumer) -> None:
    async def go() -> None:
        producer = Producer(dsns.queue)
        await producer.open()
        await producer.send([("ecs_python", {"n": n}) for n in (1, 2, 3)], bulk=True)
        await producer.send([("ecs_python", {"n": n}) for n in (4, 5)])
        await producer.close()

    asyncio.run(go())
    taken = [consumer.receive(limit=3, hidden=LONG) for _ in range(3)]
    assert [sorted(m.body["n"] for m in messages) for messages in taken] == [[1, 4, 5], [2, 3], []]


def test_a_producer_sends_though_all_its_sessions_were_ended(
    dsns: Dsns, consumer: Consumer
) -> None:
    end_others = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()
                       AND application_name = 'sender'"""

    async def go() -> None:
        producer = Producer(make_conninfo(dsns.queue, application_name="sender"))
        await producer.open()
        try:
            # As many as it keeps, at once: all of them rest, and all of them break.
            await asyncio.gather(*(producer.send([("ecs_python", {"n": n})]) for n in range(20)))
            with psycopg.connect(dsns.queue, autocommit=True) as conn:
                assert conn.execute(end_others).fetchall()
            await producer.send([("ecs_python", {"n": 20})])
        finally:
            await producer.close()

    asyncio.run(go())
    got = consumer.receive(limit=100, hidden=LONG)
    assert sorted(message.body["n"] for message in got) == list(range(21))
