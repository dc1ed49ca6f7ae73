"""The queue in Postgres keeps the contract of `trace_etl.queues.queue`."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from support import queue_tables
from support.waiting import eventually
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.processes.ports import free_port
from trace_etl.queues import pgqueue
from trace_etl.queues.pgqueue import PgConsumer, PgProducer, PgQueue
from trace_etl.queues.queue import (
    MAX_RECEIVES,
    InvalidQueueName,
    Message,
    QueueUnavailable,
    dead_letter_queue,
    endless_queue,
)

LONG, NONE = timedelta(minutes=5), timedelta(0)
QUEUE = "ecs_python"
T = TypeVar("T")


def produce(dsn: str, use: Callable[[PgProducer], Awaitable[T]]) -> T:
    async def run() -> T:
        async with PgQueue(dsn).producer(call_timeout=timedelta(seconds=2)) as producer:
            return await use(producer)

    return asyncio.run(run())


def send(dsns: Dsns, *messages: tuple[str, dict[str, Any]], bulk: bool = False) -> None:
    produce(dsns.queue, lambda producer: producer.send(messages, bulk=bulk))


def consumers(dsns: Dsns, queue: str | None = None) -> set[str]:
    return produce(dsns.queue, lambda producer: producer.consumers(queue))


@pytest.fixture
def consumer(dsns: Dsns) -> Generator[PgConsumer]:
    made = PgQueue(dsns.queue).consumer([QUEUE], "one")
    yield made
    made.close()


def receive_one(consumer: PgConsumer, visibility: timedelta = LONG) -> Message:
    (message,) = consumer.receive(limit=1, visibility=visibility)
    return message


def test_one_consumer_receives_a_message_and_deletes_it(dsns: Dsns, consumer: PgConsumer) -> None:
    other = PgQueue(dsns.queue).consumer([QUEUE], "two")
    send(dsns, (QUEUE, {"task_id": str(uuid4())}))
    message = receive_one(consumer)
    assert other.receive(limit=10, visibility=LONG) == []
    consumer.delete(message)
    assert queue_tables.count(dsns.queue) == 0
    other.close()


def test_a_message_is_delivered_again_after_its_visibility_timeout(
    dsns: Dsns, consumer: PgConsumer
) -> None:
    send(dsns, (QUEUE, {"n": 1}))
    first = receive_one(consumer, NONE)
    second = receive_one(consumer, NONE)
    assert (first.body, first.receive_count) == (second.body, 1)
    assert second.receive_count == 2


def test_an_extended_message_stays_hidden(dsns: Dsns, consumer: PgConsumer) -> None:
    send(dsns, (QUEUE, {"n": 1}))
    message = receive_one(consumer, NONE)
    consumer.extend(message, LONG)
    assert consumer.receive(limit=1, visibility=LONG) == []
    (seconds,) = queue_tables.seconds_until_visible(dsns.queue)
    assert 200 < seconds <= 300


def test_an_outdated_receipt_has_no_effect(dsns: Dsns, consumer: PgConsumer) -> None:
    send(dsns, (QUEUE, {"n": 1}))
    outdated = receive_one(consumer, NONE)
    receive_one(consumer, NONE)
    consumer.extend(outdated, LONG)
    consumer.delay(outdated, LONG, counted=False)
    consumer.dead_letter(outdated)
    consumer.delete(outdated)
    assert receive_one(consumer).receive_count == 3


def test_a_delivery_may_be_left_uncounted(dsns: Dsns, consumer: PgConsumer) -> None:
    send(dsns, (QUEUE, {"n": 1}))
    consumer.delay(receive_one(consumer), NONE, counted=False)
    consumer.delay(receive_one(consumer), NONE)
    assert receive_one(consumer).receive_count == 2


def test_a_dead_letter_goes_to_the_queue_of_dead_letters(dsns: Dsns, consumer: PgConsumer) -> None:
    send(dsns, (QUEUE, {"n": 1}))
    consumer.dead_letter(receive_one(consumer))
    assert queue_tables.bodies(dsns.queue, dead_letter_queue(QUEUE)) == [{"n": 1}]
    assert queue_tables.bodies(dsns.queue, QUEUE) == []


def test_a_message_received_too_often_becomes_a_dead_letter(
    dsns: Dsns, consumer: PgConsumer
) -> None:
    send(dsns, (QUEUE, {"publish_id": "x"}), (QUEUE, {"publish_id": "y"}))
    queue_tables.set_batch_receives(dsns.queue, "x", MAX_RECEIVES)
    queue_tables.set_batch_receives(dsns.queue, "y", MAX_RECEIVES - 1)
    assert [m.body for m in consumer.receive(limit=5, visibility=LONG)] == [{"publish_id": "y"}]
    assert queue_tables.bodies(dsns.queue, dead_letter_queue(QUEUE)) == [{"publish_id": "x"}]


def test_a_consumer_receives_from_its_own_queues_only(dsns: Dsns, consumer: PgConsumer) -> None:
    send(dsns, ("ecs_rust", {"n": 1}), (QUEUE, {"n": 2}))
    assert [m.body for m in consumer.receive(limit=10, visibility=LONG)] == [{"n": 2}]


def test_a_waiting_consumer_receives_a_new_message_without_polling(
    dsns: Dsns, consumer: PgConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgqueue, "_POLL_SECONDS", 600.0)
    consumer.receive(limit=1, visibility=LONG)  # connects and listens
    received: list[Message] = []
    woken = threading.Event()

    def wait() -> None:
        received.extend(consumer.receive(limit=1, visibility=LONG, wait=LONG))
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    send(dsns, (QUEUE, {"n": 1}))
    assert woken.wait(120), "the consumer was not notified"
    thread.join()
    assert [m.body for m in received] == [{"n": 1}]


def test_another_thread_settles_messages_while_one_waits(dsns: Dsns, consumer: PgConsumer) -> None:
    send(dsns, (QUEUE, {"n": 1}))
    message = receive_one(consumer)
    stop = threading.Event()
    waiting = {"limit": 1, "visibility": LONG, "wait": LONG, "stop": stop}
    thread = threading.Thread(target=consumer.receive, kwargs=waiting)
    thread.start()
    consumer.delete(message)
    assert queue_tables.count(dsns.queue) == 0
    stop.set()
    thread.join(120)
    assert not thread.is_alive()


def test_the_queue_does_not_wait_for_the_disk(consumer: PgConsumer) -> None:
    setting = consumer._listen().execute("SHOW synchronous_commit").fetchone()
    assert setting == ("off",)


def test_a_consumer_is_listed_while_its_session_is_open(dsns: Dsns, consumer: PgConsumer) -> None:
    assert consumers(dsns, QUEUE) == set()
    consumer.receive(limit=1, visibility=LONG)
    assert consumers(dsns, QUEUE) == consumers(dsns) == {"one"}
    assert consumers(dsns, "ecs_rust") == set()
    consumer._listen().pgconn.finish()  # the same happens when the process dies
    eventually(lambda: consumers(dsns, QUEUE) == set(), "the session has ended")


def test_a_queue_name_is_a_lowercase_word(dsns: Dsns) -> None:
    with pytest.raises(InvalidQueueName, match="not a queue name") as raised:
        send(dsns, ('x"; DROP TABLE messages', {}))
    assert raised.value.code == "invalid_queue_name"
    longest = f"a{'b' * 48}"  # of a runtime
    send(dsns, (endless_queue(longest), {}))
    listening = PgQueue(dsns.queue).consumer([endless_queue(longest)], "long")
    assert len(listening.receive(limit=1, visibility=LONG)) == 1
    listening.close()


def test_urgent_messages_are_received_before_bulk_messages(
    dsns: Dsns, consumer: PgConsumer
) -> None:
    send(dsns, *[(QUEUE, {"n": n}) for n in (1, 2, 3)], bulk=True)
    send(dsns, *[(QUEUE, {"n": n}) for n in (4, 5)])
    taken = [consumer.receive(limit=3, visibility=LONG) for _ in range(3)]
    assert [sorted(m.body["n"] for m in messages) for messages in taken] == [[1, 4, 5], [2, 3], []]


def send_for(dsns: Dsns, group: str, numbers: Sequence[int], *, in_place: bool = False) -> None:
    messages = [(QUEUE, {"n": f"{group}{n}"}) for n in numbers]
    groups, positions = [group] * len(messages), list(numbers) if in_place else None
    produce(
        dsns.queue, lambda producer: producer.send(messages, groups=groups, positions=positions)
    )


def receive_names(consumer: PgConsumer, limit: int) -> list[str]:
    """Receive and delete messages one by one, as a worker with one slot does."""
    names: list[str] = []
    for _ in range(limit):
        message = receive_one(consumer)
        names.append(message.body["n"])
        consumer.delete(message)
    return names


def test_groups_take_turns_and_each_keeps_its_order(dsns: Dsns, consumer: PgConsumer) -> None:
    send_for(dsns, "a", range(8))
    assert receive_names(consumer, 2) == ["a0", "a1"]
    send_for(dsns, "b", range(2))
    assert receive_names(consumer, 4) == ["a2", "b0", "a3", "b1"]
    # A group that comes late begins at the current turn: it gets no credit for the time before.
    send_for(dsns, "c", range(3))
    send_for(dsns, "b", range(2, 3))
    assert receive_names(consumer, 8) == ["a4", "c0", "b2", "a5", "c1", "a6", "c2", "a7"]


def test_messages_of_earlier_data_do_not_wait_behind_later_data_of_their_group(
    dsns: Dsns, consumer: PgConsumer
) -> None:
    send_for(dsns, "a", range(10, 18), in_place=True)
    send_for(dsns, "b", range(20, 24), in_place=True)
    assert receive_names(consumer, 2) == ["a10", "b20"]
    send_for(dsns, "b", [3, 19, 1], in_place=True)
    assert receive_names(consumer, 8) == ["a11", "b21", "b1", "a12", "b22", "b3", "a13", "b23"]
    # Without later data that waits, a message takes the next turn of its group.
    send_for(dsns, "b", [2, 25], in_place=True)
    assert receive_names(consumer, 7) == ["b19", "b2", "a14", "b25", "a15", "a16", "a17"]


def test_a_consumer_that_disappears_is_lost_until_it_connects_again(dsns: Dsns) -> None:
    def lost() -> set[str]:
        return produce(dsns.queue, lambda producer: producer.lost_consumers())

    name = uuid4().hex
    consumer = PgQueue(dsns.queue).consumer([QUEUE], name)
    consumer.stay_connected()
    assert name not in lost()
    consumer._listen().close()
    eventually(lambda: name in lost(), "the session has ended")
    successor = PgQueue(dsns.queue).consumer([QUEUE], uuid4().hex)
    successor.stay_connected()
    assert name in lost()  # another consumer does not hide it
    consumer.stay_connected()
    assert name not in lost()
    for one in (consumer, successor):
        one.close()
    assert name not in lost()


def test_the_depth_counts_visible_and_hidden_messages_separately(
    dsns: Dsns, consumer: PgConsumer
) -> None:
    empty = produce(dsns.queue, lambda producer: producer.depth(QUEUE))
    assert (empty.visible, empty.hidden, empty.oldest_age) == (0, 0, None)
    send(dsns, *[(QUEUE, {"n": n}) for n in range(3)])
    receive_one(consumer)
    depth = produce(dsns.queue, lambda producer: producer.depth(QUEUE))
    assert (depth.visible, depth.hidden) == (2, 1)
    assert depth.oldest_age is not None
    assert NONE < depth.oldest_age < LONG


def test_a_producer_sends_after_all_its_sessions_were_terminated(
    dsns: Dsns, consumer: PgConsumer
) -> None:
    terminate_others = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()
                       AND application_name = 'sender'"""

    async def use(producer: PgProducer) -> None:
        # Concurrently, so that every connection of the pool is open, and then broken.
        await asyncio.gather(*(producer.send([(QUEUE, {"n": n})]) for n in range(20)))
        with psycopg.connect(dsns.queue, autocommit=True) as conn:
            assert conn.execute(terminate_others).fetchall()
        await producer.send([(QUEUE, {"n": 20})])

    produce(make_conninfo(dsns.queue, application_name="sender"), use)
    received = consumer.receive(limit=100, visibility=LONG)
    assert sorted(message.body["n"] for message in received) == list(range(21))


def test_a_queue_that_does_not_answer_is_unavailable(dsns: Dsns) -> None:
    nowhere = PgQueue(make_conninfo(dsns.queue, port=free_port()))
    with pytest.raises(QueueUnavailable) as raised:
        nowhere.prepare()
    assert (raised.value.code, raised.value.retryable) == ("unavailable", True)
    with pytest.raises(QueueUnavailable):
        nowhere.consumer([QUEUE], "one").receive(limit=1, visibility=LONG)
    with pytest.raises(QueueUnavailable):
        nowhere.consumer([QUEUE], "one").delete(Message(QUEUE, {}, "1.1", 1))
    with pytest.raises(QueueUnavailable):
        produce(nowhere.dsn, lambda producer: producer.send([(QUEUE, {})]))
