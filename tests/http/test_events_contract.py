"""`POST /v1/task/events`: three event shapes, each accepted once and routed if current."""

from uuid import uuid4

import pytest

from support.lifecycle.lifecycle import Attempt, Bench

PATHS = ["/v1/task/events", "/internal/events"]


def events_of(bench: Bench, attempt: Attempt) -> list[dict]:
    query = "SELECT * FROM events WHERE producer_task_id = %s ORDER BY scope_key"
    return bench.rows(query, attempt.task_id)


def accepted(bench: Bench, attempt: Attempt, *events: dict) -> int:
    reply = bench.events(attempt, *events)
    assert reply.status_code == 200, reply.text
    assert reply.json()["status"] == "Accepted"
    return reply.json()["accepted"]


# --- the three shapes -------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_cursor_event_is_recorded_and_enqueued_for_routing(shared: Bench, path: str) -> None:
    attempt = shared.attempt()
    reply = shared.call(path, attempt, events=[attempt.event(cursor=12345)])
    assert reply.json() == {"status": "Accepted", "accepted": 1}
    (event,) = events_of(shared, attempt)
    assert (event["cursor_value"], event["partition_key"]) == (12345, None)
    assert (str(event["producer_task_id"]), event["attempt"]) == (attempt.task_id, 1)
    assert str(event["dataset_version"]) == attempt.output["dataset_version"]
    (row,) = shared.rows("SELECT * FROM outbox WHERE subject = %s", event["event_id"])
    assert row["kind"] == "route_event"


def test_a_partition_event_is_recorded_with_its_range(shared: Bench) -> None:
    attempt = shared.attempt()
    place = {"partition_key": "1000000-1010000", "start": 1000000, "end": 1010000}
    assert accepted(shared, attempt, attempt.event(**place)) == 1
    (event,) = events_of(shared, attempt)
    assert event["partition_key"] == "1000000-1010000"
    assert (event["range_start"], event["range_end"]) == (1000000, 1010000)


def test_all_events_of_a_batch_are_recorded(shared: Bench) -> None:
    attempt = shared.attempt()
    assert accepted(shared, attempt, *(attempt.event(cursor=n) for n in range(50))) == 50
    assert len(events_of(shared, attempt)) == 50


def test_a_partition_event_needs_no_range(shared: Bench) -> None:
    attempt = shared.attempt()
    assert accepted(shared, attempt, attempt.event(partition_key="2025-12-31")) == 1
    assert events_of(shared, attempt)[0]["partition_key"] == "2025-12-31"


def test_the_key_of_a_block_range_is_enough_for_its_event(shared: Bench) -> None:
    attempt = shared.attempt()
    assert accepted(shared, attempt, attempt.event(partition_key="0-9")) == 1
    (event,) = events_of(shared, attempt)
    assert (event["range_start"], event["range_end"]) == (0, 9)


def test_a_dataset_can_be_named_by_its_published_name(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    assert accepted(shared, attempt, {"dataset": dag.published, "cursor": 1}) == 1
    (event,) = events_of(shared, attempt)
    assert str(event["dataset_uuid"]) == attempt.output["dataset_uuid"]
    assert str(event["dataset_version"]) == attempt.output["dataset_version"]


def test_an_event_without_a_version_refers_to_the_current_one(shared: Bench) -> None:
    attempt = shared.attempt()
    event = {"dataset_uuid": attempt.output["dataset_uuid"], "cursor": 1}
    assert accepted(shared, attempt, event) == 1
    assert accepted(shared, attempt, attempt.event(cursor=1)) == 0


# --- once -------------------------------------------------------------------------------------


def test_a_repeated_event_is_accepted_and_changes_nothing(shared: Bench) -> None:
    attempt = shared.attempt()
    assert accepted(shared, attempt, attempt.event()) == 1
    before = shared.dump()
    assert accepted(shared, attempt, attempt.event()) == 0
    assert shared.dump() == before


def test_a_duplicate_event_in_one_batch_is_recorded_once(shared: Bench) -> None:
    attempt = shared.attempt()
    assert accepted(shared, attempt, attempt.event(), attempt.event()) == 1
    assert len(events_of(shared, attempt)) == 1


def test_a_repeated_call_records_only_its_new_events(shared: Bench) -> None:
    attempt = shared.attempt()
    assert accepted(shared, attempt, attempt.event(cursor=1)) == 1
    assert accepted(shared, attempt, attempt.event(cursor=1), attempt.event(cursor=2)) == 1


def test_an_event_repeated_in_the_completion_is_recorded_once(shared: Bench) -> None:
    attempt = shared.attempt()
    accepted(shared, attempt, attempt.event())
    assert shared.complete(attempt, events=[attempt.event()]).status_code == 200
    assert len(events_of(shared, attempt)) == 1


def test_a_retry_does_not_record_events_of_the_previous_attempt_again(shared: Bench) -> None:
    first = shared.attempt()
    accepted(shared, first, first.event())
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    assert accepted(shared, second, second.event()) == 0
    (event,) = events_of(shared, first)
    assert event["attempt"] == 1


def test_two_producers_of_one_scope_record_two_events_but_create_one_task(shared: Bench) -> None:
    dag = shared.dag()
    first, second = (shared.claimed(t) for t in shared.tasks(2, dag=dag))
    assert accepted(shared, first, first.event(cursor=7)) == 1
    assert accepted(shared, second, second.event(cursor=7)) == 1
    shared.live.drain()
    assert len(dependents(shared, dag)) == 1


# --- routing ----------------------------------------------------------------------------------


def dependents(bench: Bench, dag) -> list[dict]:
    query = {"dag": dag.name, "job": "after"}
    return bench.user.get("/v1/tasks", params=query).json()["items"]


def test_an_event_creates_one_task_per_dependent_job_and_wakes_a_worker(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    accepted(shared, attempt, attempt.event())
    shared.live.drain()
    (task,) = dependents(shared, dag)
    assert task["partition_key"] == attempt.scope["partition_key"]
    assert shared.messages("ecs_python").count({"task_id": task["task_id"]}) == 1
    assert events_of(shared, attempt)[0]["routed_at"] is not None


def test_routing_an_event_twice_creates_no_second_task(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    accepted(shared, attempt, attempt.event())
    shared.live.drain()
    (event,) = events_of(shared, attempt)
    again = "INSERT INTO outbox (kind, subject) VALUES ('route_event', %s)"
    shared.rows(again, event["event_id"])
    shared.live.drain()
    assert len(dependents(shared, dag)) == 1


@pytest.mark.parametrize("named", [True, False])
def test_an_event_of_an_old_generation_is_recorded_but_not_routed(
    shared: Bench, named: bool
) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    redeployed = shared.dag(name=dag.name, column="2")
    current = redeployed.datasets["work"]["dataset_version"]
    assert current != attempt.output["dataset_version"]
    event = attempt.event()
    if not named:
        del event["dataset_version"]
    assert accepted(shared, attempt, event) == 1
    shared.live.drain()
    (row,) = events_of(shared, attempt)
    assert str(row["dataset_version"]) == attempt.output["dataset_version"]
    assert row["routed_at"] is None
    assert dependents(shared, dag) == []


# --- the fence and the scope ------------------------------------------------------------------


def test_events_of_a_stale_fence_change_nothing(shared: Bench) -> None:
    first = shared.attempt()
    shared.complete(first, "Failed")
    second = shared.next_attempt(first)
    before = shared.dump()
    reply = shared.events(first, first.event())
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_attempt")
    reply = shared.events(second, second.event(), lease_token=str(uuid4()))
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_lease")
    assert shared.dump() == before


@pytest.mark.parametrize("end", ["Completed", "Failed", "Canceled"])
def test_events_after_the_end_of_the_attempt_are_refused(shared: Bench, end: str) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, end)
    before = shared.dump()
    reply = shared.events(attempt, attempt.event())
    assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")
    assert shared.dump() == before


def test_events_of_a_deleted_task_are_not_found(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.rows("DELETE FROM tasks WHERE task_id = %s", attempt.task_id)
    reply = shared.events(attempt, attempt.event())
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


def test_one_foreign_dataset_refuses_the_whole_batch(shared: Bench) -> None:
    attempt, other = shared.attempt(), shared.attempt()
    before = shared.dump()
    for foreign in (
        other.event(),
        attempt.event(cursor=1) | {"dataset_version": str(uuid4())},
        attempt.event(cursor=1) | {"dataset_uuid": str(uuid4())},
    ):
        reply = shared.events(attempt, attempt.event(), foreign)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert shared.dump() == before


def test_an_unknown_published_name_is_refused_with_the_field(shared: Bench) -> None:
    attempt = shared.attempt()
    reply = shared.events(attempt, {"dataset": "nobody_publishes_this", "cursor": 1})
    assert reply.status_code == 422
    assert [e["field"] for e in reply.json()["errors"]] == ["events.0.dataset"]


DATASET = {"dataset_uuid": str(uuid4())}


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({"cursor": 1}, "events.0"),
        (DATASET, "events.0"),
        ({**DATASET, "dataset": "name", "cursor": 1}, "events.0"),
        ({**DATASET, "cursor": 1, "partition_key": "a"}, "events.0"),
        ({**DATASET, "partition_key": "0-9", "start": 0}, "events.0"),
        ({**DATASET, "partition_key": "0-9", "start": 9, "end": 0}, "events.0"),
        ({**DATASET, "partition_key": "0-9", "start": 0, "end": 8}, "events.0"),
        ({**DATASET, "cursor": 1, "start": 0, "end": 9}, "events.0"),
        ({**DATASET, "cursor": -1}, "events.0.cursor"),
        ({**DATASET, "cursor": 2**63}, "events.0.cursor"),
        ({**DATASET, "cursor": 1.5}, "events.0.cursor"),
        ({**DATASET, "cursor": 1, "note": "x"}, "events.0.note"),
        ({"dataset": "No Such Name", "cursor": 1}, "events.0.dataset"),
        (7, "events.0"),
    ],
)
def test_a_malformed_event_is_refused_with_the_field(
    shared: Bench, event: dict, field: str
) -> None:
    attempt = shared.attempt()
    reply = shared.events(attempt, event)
    assert reply.status_code == 422, reply.text
    assert [e["field"] for e in reply.json()["errors"]] == [field]
    assert events_of(shared, attempt) == []


def test_a_call_without_events_changes_nothing(shared: Bench) -> None:
    attempt = shared.attempt()
    for fields in ({}, {"events": []}, {"events": [], "invalidations": []}):
        reply = shared.call("/v1/task/events", attempt, **fields)
        assert (reply.status_code, reply.json()["accepted"]) == (200, 0), reply.text
    shared.complete(attempt, "Failed", error_message="x")
    assert shared.call("/v1/task/events", attempt, events=[]).status_code == 409
