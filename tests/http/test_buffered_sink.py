"""Permissions of buffered producers, and how the sink handles errors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from support import queue_tables
from support.data.buffered import SinkSetup
from support.lifecycle.lifecycle import Attempt, Bench
from support.lifecycle.recorder import Recorder
from support.services.dispatcher import Secrets
from trace_etl.http.clients.dispatcher_client import Refused, Unreachable
from trace_etl.http.clients.sink_client import SinkClient
from trace_etl.queues.queue import dead_letter_queue
from trace_etl.sink.sink import MAX_TRIES, QUEUE


@pytest.fixture
def attempt(sinks: SinkSetup, published: str) -> Attempt:
    producer = sinks.producer(published)
    producer.deploy("one")
    return producer.attempt("one")


def state(sinks: SinkSetup, published: str) -> str:
    (batch,) = sinks.batches(published)
    return batch["state"]


def is_dead_lettered(sinks: SinkSetup, publish_id: str) -> bool:
    return publish_id in [
        message["publish_id"] for message in sinks.bench.messages(dead_letter_queue(QUEUE))
    ]


def test_a_producer_of_a_buffered_dataset_cannot_send_events_or_publish_partitions(
    sinks: SinkSetup, published: str, attempt: Attempt
) -> None:
    event = {"dataset_uuid": attempt.output["dataset_uuid"], "cursor": 10**12}
    by_name = {"dataset": published, "partition_key": "0-9"}
    dataset = {name: attempt.output[name] for name in ("dataset_uuid", "dataset_version")}
    pointer = {**dataset, "storage_ref": attempt.output["storage_ref"]}
    bench = sinks.bench
    for reply in (
        bench.events(attempt, event),
        bench.events(attempt, by_name),
        bench.complete(attempt, events=[event]),
        bench.complete(attempt, datasets_published=[pointer]),
    ):
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), reply.text
        assert "is buffered" in reply.json()["detail"]
    assert bench.rows("SELECT 1 FROM events WHERE producer_task_id = %s", attempt.task_id) == []
    output = {"dataset_uuid": dataset["dataset_uuid"], "location": "s3://trace/x"}
    assert bench.complete(attempt, outputs=[output]).status_code == 200


def delete_message(sinks: SinkSetup, publish_id: str) -> None:
    assert queue_tables.delete_batch(sinks.bench.live.dsns.queue, publish_id) == 1


def sweep(sinks: SinkSetup) -> None:
    sinks.bench.live.run(sinks.bench.live.service.sweeper.sweep_once)
    sinks.bench.live.drain()


def test_the_sweeper_resends_a_lost_batch_message_with_growing_delays(
    sinks: SinkSetup, published: str, attempt: Attempt
) -> None:
    publish_id = sinks.publish(attempt, [{"id": "a", "n": 1}])
    delete_message(sinks, publish_id)
    sweep(sinks)
    assert sinks.receives(publish_id) == []
    sinks.bench.rows(
        """UPDATE buffer_publishes SET accepted_at = now() - interval '3 hours',
                  ask_again_at = now() - interval '1 second' WHERE publish_id = %s""",
        publish_id,
    )
    sweep(sinks)
    sweep(sinks)
    assert sinks.receives(publish_id) == [0]
    (row,) = sinks.bench.rows(
        """SELECT round(extract(epoch FROM ask_again_at - now()) / 3600) AS hours
             FROM buffer_publishes WHERE publish_id = %s""",
        publish_id,
    )
    assert row["hours"] == 3
    sinks.drain()
    assert state(sinks, published) == "written"


def test_the_sweeper_does_not_resend_finished_batches(
    sinks: SinkSetup, published: str, attempt: Attempt
) -> None:
    ids = [sinks.publish(attempt, [{"id": "a"}]), sinks.publish(attempt, b"no JSON")]
    sinks.drain()
    assert {batch["state"] for batch in sinks.batches(published)} == {"written", "failed"}
    sinks.bench.rows(
        "UPDATE buffer_publishes SET ask_again_at = now() - interval '1 second' "
        "WHERE publish_id = ANY(%s::uuid[])",
        ids,
    )
    sweep(sinks)
    assert [sinks.receives(publish_id) for publish_id in ids] == [[], []]


def test_a_waiting_batch_can_be_retried(sinks: SinkSetup, published: str, attempt: Attempt) -> None:
    publish_id = sinks.publish(attempt, [{"id": "a", "n": 1}])
    delete_message(sinks, publish_id)
    reply = sinks.bench.user.post(f"/v1/batches/{publish_id}/retry")
    assert reply.status_code == 200, reply.text
    sinks.bench.live.drain()
    sinks.drain()
    assert state(sinks, published) == "written"


def test_a_rotated_token_neither_dead_letters_a_batch_nor_counts_as_a_receive(
    sinks: SinkSetup, published: str, attempt: Attempt, secrets: Secrets
) -> None:
    publish_id = sinks.publish(attempt, b"no JSON")
    tokens = iter([secrets.service_token("sink"), "old", "old"])
    client = sinks.client(lambda: next(tokens))  # valid for the fetch, outdated for the report
    sink = replace(sinks.sink, client=client)
    try:
        assert sink.write_once() == 1
        assert (sinks.receives(publish_id), is_dead_lettered(sinks, publish_id)) == ([0], False)
        sinks.show_hidden_messages()
        assert sink.write_once() == 1  # outdated for the fetch
        assert (sinks.receives(publish_id), is_dead_lettered(sinks, publish_id)) == ([0], False)
    finally:
        client.close()
    sinks.show_hidden_messages()
    sinks.drain()
    assert (state(sinks, published), is_dead_lettered(sinks, publish_id)) == ("failed", True)


class Failing(SinkClient):
    """A client whose `fetch_batches` always fails."""

    error: Exception

    def fetch_batches(self, publish_ids: Sequence[UUID]) -> Any:
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
def test_outages_do_not_count_as_receives_but_other_errors_do(
    sinks: SinkSetup, published: str, attempt: Attempt, error: Exception, counts: bool
) -> None:
    publish_id = sinks.publish(attempt, [{"id": "a", "n": 1}])
    client = Failing.__new__(Failing)
    client.__dict__.update(sinks.sink.client.__dict__)
    client.error = error
    sink = replace(sinks.sink, client=client)
    assert sink.write_once() == 1
    assert sinks.receives(publish_id) == [1 if counts else 0]
    sinks.set_receives(publish_id, MAX_TRIES - 1)
    assert sink.write_once() == 1
    assert (state(sinks, published), is_dead_lettered(sinks, publish_id)) == (
        ("failed", True) if counts else ("waiting", False)
    )
    sinks.show_hidden_messages()
    sinks.drain()


def test_a_batch_received_too_often_fails_only_if_it_was_not_written(
    sinks: SinkSetup, published: str, attempt: Attempt
) -> None:
    publish_id = sinks.publish(attempt, [{"id": "a", "n": 1}])
    sinks.write_without_report(publish_id)
    sinks.set_receives(publish_id, MAX_TRIES)
    sinks.drain()
    assert (state(sinks, published), is_dead_lettered(sinks, publish_id)) == ("written", False)
    other = sinks.publish(attempt, [{"id": "b", "n": 1}])
    sinks.set_receives(other, MAX_TRIES)
    sinks.drain()
    (failed,) = sinks.batches(published, state="failed")
    assert "received 10 times" in failed["error_message"]
    assert other not in [message["publish_id"] for message in sinks.bench.messages(QUEUE)]


def test_the_history_checker_proves_a_run_with_batches(sinks: SinkSetup, published: str) -> None:
    recorder = Recorder()
    with sinks.bench.live.internal() as http:
        recorder.watch(http, "w")
        recorded = replace(sinks, bench=Bench(sinks.bench.live, http, sinks.bench.user))
        producer = recorded.producer(published)
        producer.deploy("one")
        attempt = producer.attempt("one")
        for rows in ([{"id": "a", "n": 1}], [{"id": "b", "n": 2}]):
            recorded.publish(attempt, rows)
            recorded.drain()
        assert recorded.bench.complete(attempt).status_code == 200
    recorder.dump(sinks.bench.live.dsns)
    verdict = recorder.verdict()
    assert verdict.proven, verdict.violations
