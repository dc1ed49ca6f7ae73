"""What a buffered dataset's producers may not say, and how the sink settles what goes wrong."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from support import queue_tables
from support.buffered import SinkSetup, running_sink
from support.dispatcher import Secrets
from support.lifecycle import Attempt
from support.postgres import Templates
from trace_etl.http.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.queues.queue import dead_letter_queue
from trace_etl.sink.sink import MAX_TRIES, QUEUE


@pytest.fixture(scope="module")
def world(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[SinkSetup]:
    with running_sink(templates, secrets, tmp_path_factory.mktemp("objects")) as made:
        yield made


@pytest.fixture
def published() -> str:
    return f"alerts_{uuid4().hex[:12]}"


@pytest.fixture
def attempt(world: SinkSetup, published: str) -> Attempt:
    producer = world.producer(published)
    producer.deploy("one")
    return producer.attempt("one")


def state(world: SinkSetup, published: str) -> str:
    (batch,) = world.batches(published)
    return batch["state"]


def buried(world: SinkSetup, publish_id: str) -> bool:
    return publish_id in [
        message["publish_id"] for message in world.bench.messages(dead_letter_queue(QUEUE))
    ]


def test_a_producer_cannot_tell_the_readers_itself(
    world: SinkSetup, published: str, attempt: Attempt
) -> None:
    event = {"dataset_uuid": attempt.output["dataset_uuid"], "cursor": 10**12}
    by_name = {"dataset": published, "partition_key": "0-9"}
    told = {name: attempt.output[name] for name in ("dataset_uuid", "dataset_version")}
    pointer = {**told, "storage_ref": attempt.output["storage_ref"]}
    bench = world.bench
    for reply in (
        bench.events(attempt, event),
        bench.events(attempt, by_name),
        bench.complete(attempt, events=[event]),
        bench.complete(attempt, datasets_published=[pointer]),
    ):
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), reply.text
        assert "is buffered" in reply.json()["detail"]
    assert bench.rows("SELECT 1 FROM events WHERE producer_task_id = %s", attempt.task_id) == []
    output = {"dataset_uuid": told["dataset_uuid"], "location": "s3://trace/x"}
    assert bench.complete(attempt, outputs=[output]).status_code == 200


def lose(world: SinkSetup, publish_id: str) -> None:
    assert queue_tables.delete_batch(world.bench.live.dsns.queue, publish_id) == 1


def sweep(world: SinkSetup) -> None:
    world.bench.live.run(world.bench.live.service.sweeper.sweep_once)
    world.bench.live.drain()


def test_a_batch_whose_message_was_lost_is_asked_for_again_and_not_too_often(
    world: SinkSetup, published: str, attempt: Attempt
) -> None:
    publish_id = world.publish(attempt, [{"id": "a", "n": 1}])
    lose(world, publish_id)
    sweep(world)
    assert world.receives(publish_id) == []
    world.bench.rows(
        """UPDATE buffer_publishes SET accepted_at = now() - interval '3 hours',
                  ask_again_at = now() - interval '1 second' WHERE publish_id = %s""",
        publish_id,
    )
    sweep(world)
    sweep(world)
    assert world.receives(publish_id) == [0]
    (row,) = world.bench.rows(
        """SELECT round(extract(epoch FROM ask_again_at - now()) / 3600) AS hours
             FROM buffer_publishes WHERE publish_id = %s""",
        publish_id,
    )
    assert row["hours"] == 3
    world.drain()
    assert state(world, published) == "written"


def test_batches_that_are_settled_are_not_asked_for(
    world: SinkSetup, published: str, attempt: Attempt
) -> None:
    ids = [world.publish(attempt, [{"id": "a"}]), world.publish(attempt, b"no JSON")]
    world.drain()
    assert {batch["state"] for batch in world.batches(published)} == {"written", "failed"}
    world.bench.rows(
        "UPDATE buffer_publishes SET ask_again_at = now() - interval '1 second' "
        "WHERE publish_id = ANY(%s::uuid[])",
        ids,
    )
    sweep(world)
    assert [world.receives(publish_id) for publish_id in ids] == [[], []]


def test_a_batch_that_waits_can_be_retried(
    world: SinkSetup, published: str, attempt: Attempt
) -> None:
    publish_id = world.publish(attempt, [{"id": "a", "n": 1}])
    lose(world, publish_id)
    reply = world.bench.user.post(f"/v1/batches/{publish_id}/retry")
    assert reply.status_code == 200, reply.text
    world.bench.live.drain()
    world.drain()
    assert state(world, published) == "written"


def test_a_token_that_was_just_rotated_buries_nothing_and_counts_for_nothing(
    world: SinkSetup, published: str, attempt: Attempt, secrets: Secrets
) -> None:
    publish_id = world.publish(attempt, b"no JSON")
    tokens = iter([secrets.worker_token, "old", "old"])
    client = world.client(lambda: next(tokens))  # good to fetch, old when it reports
    sink = replace(world.sink, client=client)
    try:
        assert sink.write_once() == 1
        assert (world.receives(publish_id), buried(world, publish_id)) == ([0], False)
        world.show_hidden_messages()
        assert sink.write_once() == 1  # too old to fetch
        assert (world.receives(publish_id), buried(world, publish_id)) == ([0], False)
    finally:
        client.close()
    world.show_hidden_messages()
    world.drain()
    assert (state(world, published), buried(world, publish_id)) == ("failed", True)


class Failing(DispatcherClient):
    """A Dispatcher that stumbles over every batch, and over nothing else."""

    error: Exception

    def buffer_fetch(self, publish_id: UUID) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (Unreachable("answered 500", 500), True),
        (Refused(422, "invalid", "no"), True),
        (Refused(403, "forbidden", "no"), True),
        (Refused(401, "unauthenticated", "no"), False),
        (Unreachable("answered 503", 503), False),
        (Unreachable("no answer"), False),
    ],
    ids=["500", "422", "403", "401", "503", "silence"],
)
def test_only_an_outage_counts_for_nothing(
    world: SinkSetup, published: str, attempt: Attempt, error: Exception, counts: bool
) -> None:
    publish_id = world.publish(attempt, [{"id": "a", "n": 1}])
    client = Failing.__new__(Failing)
    client.__dict__.update(world.sink.client.__dict__)
    client.error = error
    sink = replace(world.sink, client=client)
    assert sink.write_once() == 1
    assert world.receives(publish_id) == [1 if counts else 0]
    world.set_receives(publish_id, MAX_TRIES - 1)
    assert sink.write_once() == 1
    assert (state(world, published), buried(world, publish_id)) == (
        ("failed", True) if counts else ("waiting", False)
    )
    world.show_hidden_messages()
    world.drain()


def test_a_batch_that_was_taken_too_often_is_asked_after_before_it_is_given_up(
    world: SinkSetup, published: str, attempt: Attempt
) -> None:
    publish_id = world.publish(attempt, [{"id": "a", "n": 1}])
    world.sink._write(world.sink.client.buffer_fetch(UUID(publish_id)))  # and dies
    world.set_receives(publish_id, MAX_TRIES)
    world.drain()
    assert (state(world, published), buried(world, publish_id)) == ("written", False)
    other = world.publish(attempt, [{"id": "b", "n": 1}])
    world.set_receives(other, MAX_TRIES)
    world.drain()
    (failed,) = world.batches(published, state="failed")
    assert "received 10 times" in failed["error_message"]
    assert other not in [message["publish_id"] for message in world.bench.messages(QUEUE)]
