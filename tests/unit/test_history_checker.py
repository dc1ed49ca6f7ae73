"""The history checker: good runs are proven, and every invariant can be refuted."""

import pytest

from support.lifecycle.histories import HistoryBuilder, event, iso, publication, uid
from trace_etl.devtools.history.checker import check
from trace_etl.devtools.history.lines import Unreadable, parse
from trace_etl.devtools.history.report import HistoryReport, Invariant

LEASE = Invariant.ONE_LIVE_LEASE
GROW = Invariant.ATTEMPTS_ONLY_GROW
FENCE = Invariant.STALE_FENCE
EVENTS = Invariant.EVENTS_ONCE
COMPLETION = Invariant.ONE_COMPLETION
EFFECTS = Invariant.SIDE_EFFECTS


def verdict(story: HistoryBuilder) -> HistoryReport:
    return check(parse(story.text))


def assert_proven(story: HistoryBuilder) -> None:
    report = verdict(story)
    assert report.proven, report.violations


def assert_refuted(story: HistoryBuilder, invariant: Invariant, *lines: int) -> None:
    report = verdict(story)
    assert [(v.invariant, v.lines) for v in report.violations] == [(invariant, lines)]


# --- good runs ----------------------------------------------------------------------------------


def test_a_run_with_a_retry_and_all_side_effects_is_proven() -> None:
    story = (
        HistoryBuilder()
        .claim(0, "t")
        .events(1, "t", [1, 2], accepted=2)
        .complete(2, "t", status="Failed", error_message="boom")
        .loop(3, "retry", "t", 2)
        .claim(4, "t", 2)
        .beat(5, "t", 2)
        .events(6, "t", [2, 3], accepted=1, attempt=2)
        .buffer(7, "t", "batch", "publish", attempt=2)
        .complete(8, "t", 2, datasets_published=[publication("t", 2, 0, 9)], events=[event(4)])
        .complete(9, "t", 2, datasets_published=[publication("t", 2, 0, 9)], events=[event(4)])
        .dump("tasks", "task_attempts", "events", "outbox", "partitions", "buffer_publishes")
        .task_row("t", "Completed", 2)
        .row("task_attempts", task_id=uid("t"), attempt=1, outcome="Failed")
        .row("task_attempts", task_id=uid("t"), attempt=2, outcome="Completed")
        .event_row("t", 1)
        .event_row("t", 2)
        .event_row("t", 3, 2)
        .event_row("t", 4, 2)
        .partition_row("t", 2, 0, 9)
        .row(
            "buffer_publishes",
            publish_id=uid("publish"),
            task_id=uid("t"),
            attempt=2,
            dataset_uuid=uid("alerts"),
            batch_uri="s3://b/batch",
        )
        .row("outbox", outbox_id=1, kind="buffer_message", subject=uid("publish"))
    )
    assert_proven(story)
    assert verdict(story).attempts == 2


def test_a_reaped_attempt_may_complete_late_until_the_next_one_starts() -> None:
    story = HistoryBuilder().claim(0, "t").expire(1, "t").loop(2, "reap", "t", 1).complete(3, "t")
    assert_proven(story)


def test_the_next_attempt_may_start_after_the_lease_has_expired() -> None:
    assert_proven(HistoryBuilder().claim(0, "t", lease_seconds=60).claim(70, "t", 2))
    assert_refuted(HistoryBuilder().claim(0, "t", lease_seconds=60).claim(50, "t", 2), LEASE, 1, 2)


def test_the_next_attempt_may_start_after_the_hard_timeout() -> None:
    story = (
        HistoryBuilder().claim(0, "t", timeout=30).beat(20, "t", lease_seconds=60).claim(40, "t", 2)
    )
    assert_proven(story)


def test_an_unanswered_completion_explains_the_next_attempt() -> None:
    lost = HistoryBuilder().claim(0, "t").complete(1, "t", status="Failed", error="ReadTimeout")
    assert_proven(lost.claim(5, "t", 2))


def test_an_error_before_anything_was_sent_explains_nothing() -> None:
    story = (
        HistoryBuilder()
        .claim(0, "t")
        .complete(1, "t", status="Failed", error="refused", sent=False)
    )
    assert_refuted(story.claim(5, "t", 2), LEASE, 1, 3)


def test_a_scope_that_is_triggered_again_ends_the_lease_of_its_canceled_task() -> None:
    def story(*calls: str) -> HistoryBuilder:
        made = HistoryBuilder().claim(0, "t", lease_seconds=60)
        for second, call in enumerate(calls, start=1):
            made.call(second, call, {"task_id": uid("t")} if call == "cancel" else {}, {})
        return made.claim(5, "t", 2)

    assert_proven(story("cancel", "trigger"))
    for calls in (["trigger", "cancel"], ["cancel"], ["trigger"]):
        assert_refuted(story(*calls), LEASE, 1, 2 + len(calls))


def test_a_503_counts_as_unanswered() -> None:
    story = HistoryBuilder().claim(0, "t")
    story.call(
        1,
        "complete",
        {"task_id": uid("t"), "attempt": 1, "lease_token": uid("t/1"), "status": "Failed"},
        {"code": "unavailable"},
        status=503,
    )
    story.claim(5, "t", 2)
    assert_proven(story)
    assert verdict(story).unanswered == 1


def test_concurrent_calls_may_have_happened_in_any_valid_order() -> None:
    story = (
        HistoryBuilder().claim(0, "t").complete(1, "t", status="Failed").loop(2, "retry", "t", 2)
    )
    assert_proven(story.claim(3, "t", 2, took=4).beat(4, "t", 2))
    racing = HistoryBuilder().claim(0, "t").expire(1, "t").beat(2, "t", took=9).claim(3, "t", 2)
    assert_proven(racing)


def test_an_unanswered_publish_may_have_committed_its_rows() -> None:
    story = (
        HistoryBuilder()
        .claim(0, "t")
        .events(1, "t", [1], accepted=0, error="ReadTimeout")
        .events(2, "t", [1], accepted=0)
        .dump("events")
        .event_row("t", 1)
    )
    assert_proven(story)


def test_unrecorded_attempts_are_not_checked() -> None:
    story = HistoryBuilder().dump("tasks", "events").event_row("elsewhere", 1, routed_at="now")
    assert_proven(story.task_row("elsewhere", "Completed"))


# --- one live lease -----------------------------------------------------------------------------


def test_two_grants_of_one_attempt_are_refuted() -> None:
    assert_refuted(HistoryBuilder().claim(0, "t").claim(0.2, "t", lease="other"), LEASE, 1, 2)


def test_a_grant_while_another_attempt_sends_heartbeats_is_refuted() -> None:
    story = (
        HistoryBuilder()
        .claim(0, "t", lease_seconds=5)
        .beat(4, "t", lease_seconds=60)
        .claim(20, "t", 2)
    )
    assert_refuted(story, LEASE, 1, 3)


def test_a_failed_completion_before_a_heartbeat_does_not_explain_a_grant() -> None:
    story = HistoryBuilder().claim(0, "t").complete(1, "t", status="Failed", error="ReadTimeout")
    story.claim(5, "t", 2).beat(7, "t")
    kinds = {v.invariant for v in verdict(story).violations}
    assert kinds == {LEASE, FENCE}


def test_every_claim_in_one_answer_is_a_grant() -> None:
    single = HistoryBuilder().claim(0, "t").lines[0]["answer"]["body"]
    story = HistoryBuilder().claim(0, "t")
    story.call(
        1,
        "claim_many",
        {"runtime": "r", "worker_id": "w", "max_tasks": 2},
        {"claimed": [{**single, "lease_token": uid("other")}]},
    )
    assert_refuted(story, LEASE, 1, 2)


# --- attempts only grow -------------------------------------------------------------------------


def test_an_older_attempt_granted_after_a_newer_one_is_refuted() -> None:
    story = (
        HistoryBuilder().claim(0, "t", 2).complete(1, "t", 2, status="Failed").claim(200, "t", 1)
    )
    assert_refuted(story, GROW, 1, 3)


def test_a_task_read_at_an_older_attempt_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t", 2)
    story.call(1, "fetch", {"task_id": uid("t")}, {"task_id": uid("t"), "attempt": 1})
    assert_refuted(story, GROW, 1, 2)


def test_a_task_that_ended_below_a_granted_attempt_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t", 2).dump("tasks").task_row("t", "Running", 1)
    assert_refuted(story, GROW, 1, 3)


def test_more_attempts_than_allowed_are_refuted() -> None:
    assert_refuted(HistoryBuilder().dump("tasks").task_row("t", "Running", 4), GROW, 2)


def test_an_attempt_that_ended_before_it_started_is_refuted() -> None:
    story = HistoryBuilder().dump("tasks", "task_attempts").task_row("t", "Queued", 1)
    story.row("task_attempts", task_id=uid("t"), attempt=2, outcome="Failed")
    assert_refuted(story, GROW, 2, 3)


# --- a stale fence changes nothing --------------------------------------------------------------


@pytest.mark.parametrize("call", ["beat", "events", "buffer", "complete"])
def test_a_call_of_an_old_attempt_accepted_after_a_new_grant_is_refuted(call: str) -> None:
    story = HistoryBuilder().claim(0, "t").expire(1, "t").claim(3, "t", 2)
    add_call = {
        "beat": lambda: story.beat(5, "t"),
        "events": lambda: story.events(5, "t", [1], accepted=1),
        "buffer": lambda: story.buffer(5, "t", "b", "p"),
        "complete": lambda: story.complete(5, "t", status="Failed"),
    }
    add_call[call]()
    violations = [v for v in verdict(story).violations if v.invariant == FENCE]
    assert [v.lines for v in violations] == [(3, 4)]


def test_a_late_completion_after_the_next_attempt_was_queued_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").expire(1, "t").loop(2, "retry", "t", 2)
    assert_refuted(story.complete(4, "t", status="Failed"), FENCE, 3, 4)


def test_a_call_with_an_unknown_lease_is_refuted() -> None:
    assert_refuted(HistoryBuilder().claim(0, "t").beat(1, "t", lease="stolen"), FENCE, 1, 2)
    assert_refuted(HistoryBuilder().beat(1, "t"), FENCE, 1)


def test_a_call_before_its_grant_is_refuted() -> None:
    assert_refuted(HistoryBuilder().beat(0, "t").claim(5, "t"), FENCE, 1, 2)


def test_a_heartbeat_after_the_attempt_ended_is_refuted() -> None:
    completed = HistoryBuilder().claim(0, "t").complete(1, "t").beat(3, "t")
    assert_refuted(completed, FENCE, 2, 3)
    reaped = HistoryBuilder().claim(0, "t").expire(1, "t").loop(2, "reap", "t", 1).beat(3, "t")
    assert_refuted(reaped, FENCE, 3, 4)


# --- events once --------------------------------------------------------------------------------


def test_an_event_counted_as_new_twice_is_refuted() -> None:
    story = (
        HistoryBuilder()
        .claim(0, "t")
        .events(1, "t", [1, 2], accepted=2)
        .events(2, "t", [2], accepted=1)
    )
    assert_refuted(story, EVENTS, 2, 3)


def test_a_new_event_may_be_uncounted_when_the_dispatcher_retried() -> None:
    """The first try may have committed without an answer; the rows must exist."""
    story = HistoryBuilder().claim(0, "t").events(1, "t", [1, 2], accepted=0)
    assert_proven(story.dump("events").event_row("t", 1).event_row("t", 2))


def test_an_event_of_a_failed_attempt_stays_counted_in_the_next() -> None:
    story = HistoryBuilder().claim(0, "t").events(1, "t", [1], accepted=1)
    story.complete(2, "t", status="Failed").claim(4, "t", 2)
    assert_refuted(story.events(5, "t", [1], accepted=1, attempt=2), EVENTS, 2, 5)


def test_partly_known_events_are_checked_only_in_their_known_fields() -> None:
    story = HistoryBuilder().claim(0, "t")
    fields = {"events": [{"dataset": "blocks", "cursor": 1}]}
    story.fenced(1, "events", "t", 1, fields, {"status": "Accepted", "accepted": 1})
    story.events(2, "t", [1], accepted=0)
    assert_proven(story)


def test_a_duplicate_event_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").events(1, "t", [1], accepted=1).dump("events")
    story.event_row("t", 1).event_row("t", 1, event_id=uid("again"))
    assert_refuted(story, EVENTS, 4, 5)


# --- one completion per attempt -----------------------------------------------------------------


def test_two_accepted_completions_with_different_content_are_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").complete(1, "t", status="Failed", error_message="a")
    assert_refuted(story.complete(2, "t", status="Failed", error_message="b"), COMPLETION, 2, 3)


def test_a_grant_after_the_task_was_completed_is_refuted() -> None:
    assert_refuted(
        HistoryBuilder().claim(0, "t").complete(1, "t").claim(5, "t", 2), COMPLETION, 2, 3
    )


def test_a_completion_missing_from_the_database_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").complete(1, "t").dump("tasks").task_row("t", "Running")
    assert_refuted(story, COMPLETION, 2, 4)


def test_a_success_without_a_completion_call_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").dump("tasks").task_row("t", "Completed")
    assert_refuted(story, COMPLETION, 3)


def test_an_ended_attempt_without_its_record_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").complete(1, "t", status="Failed")
    story.dump("tasks", "task_attempts").task_row("t", "Failed")
    assert_refuted(story, COMPLETION, 2)


def test_an_attempt_recorded_with_another_outcome_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").complete(1, "t").dump("tasks", "task_attempts")
    story.task_row("t", "Completed").row(
        "task_attempts", task_id=uid("t"), attempt=1, outcome="Failed"
    )
    assert_refuted(story, COMPLETION, 2, 5)


# --- side effects exactly when their transaction committed --------------------------------------


def test_a_missing_accepted_event_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").events(1, "t", [1], accepted=1).dump("events")
    assert_refuted(story, EFFECTS, 2)


def test_an_event_of_a_refused_call_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").events(1, "t", [1], accepted=0, status=409)
    assert_refuted(story.dump("events").event_row("t", 1), EFFECTS, 4)


def test_an_event_without_a_routing_request_is_refuted() -> None:
    story = HistoryBuilder().dump("events", "outbox", "datasets").event_row("t", 1)
    story.row("datasets", dataset_uuid=uid("blocks"), dataset_version=uid("blocks/1"))
    assert_refuted(story, EFFECTS, 2)


def test_an_event_of_an_old_generation_need_not_be_routed() -> None:
    story = HistoryBuilder().dump("events", "outbox", "datasets").event_row("t", 1)
    story.row("datasets", dataset_uuid=uid("blocks"), dataset_version=uid("blocks/2"))
    assert_proven(story)


def test_a_routing_request_for_a_rolled_back_event_is_refuted() -> None:
    story = HistoryBuilder().dump("events", "outbox")
    story.row("outbox", outbox_id=1, kind="route_event", subject=uid("gone"))
    assert_refuted(story, EFFECTS, 2)


def test_a_duplicate_routing_request_is_refuted() -> None:
    story = HistoryBuilder().dump("events", "outbox").event_row("t", 1)
    for n in (1, 2):
        story.row("outbox", outbox_id=n, kind="route_event", subject=uid("event t 1"))
    assert_refuted(story, EFFECTS, 3, 4)


def routed_event(*task_names: str) -> HistoryBuilder:
    scope = {
        "job_id": uid("sql"),
        "dataset_uuid": uid("blocks"),
        "dataset_version": uid("blocks/1"),
        "cursor_value": 1,
        "revision_id": uid("r"),
    }
    story = HistoryBuilder().dump("events", "tasks", "consumers")
    story.event_row("t", 1, routed_at="now")
    story.row("consumers", dataset_uuid=uid("blocks"), job_id=uid("sql"))
    for name in task_names:
        story.task_row(name, "Queued", **scope)
    return story


def test_a_routed_event_has_one_task_for_each_consumer() -> None:
    assert_proven(routed_event("a"))
    assert_refuted(routed_event(), EFFECTS, 2)
    assert_refuted(routed_event("a", "b"), EFFECTS, 2, 4, 5)


def test_a_task_for_an_unknown_event_is_refuted() -> None:
    story = HistoryBuilder().dump("events", "tasks")
    story.task_row(
        "t", "Queued", dataset_uuid=uid("blocks"), dataset_version=uid("blocks/1"), cursor_value=1
    )
    assert_refuted(story, EFFECTS, 2)


def test_a_missing_published_partition_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t")
    story.complete(1, "t", datasets_published=[publication("t", 1, 0, 9)])
    assert_refuted(story.dump("partitions"), EFFECTS, 2)


def test_a_partition_of_an_attempt_that_never_completed_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").dump("partitions").partition_row("t", 1, 0, 9)
    assert_refuted(story, EFFECTS, 3)


def test_a_partition_that_was_not_replaced_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "old")
    story.complete(1, "old", datasets_published=[publication("old", 1, 0, 9)])
    story.claim(2, "new")
    story.complete(3, "new", datasets_published=[publication("new", 1, 0, 9)])
    story.dump("partitions").partition_row("old", 1, 0, 9)
    assert_refuted(story, EFFECTS, 4, 6)


def test_a_result_from_older_inputs_need_not_be_visible() -> None:
    story = HistoryBuilder().claim(0, "late").claim(1, "new")
    story.complete(2, "new", datasets_published=[publication("new", 1, 0, 9)])
    story.complete(3, "late", datasets_published=[publication("late", 1, 0, 9)])
    assert_proven(story.dump("partitions").partition_row("new", 1, 0, 9))


def test_a_task_for_an_invalidation_needs_no_event() -> None:
    story = routed_event("a")
    scope = {"job_id": uid("sql"), "dataset_uuid": uid("blocks"), "revision_id": uid("r")}
    again = {"dataset_version": uid("blocks/1"), "cursor_value": 1, **scope}
    assert_proven(story.task_row("b", "Queued", invalidation_id=uid("i"), **again))


def test_a_partition_may_be_replaced_by_a_later_wider_one() -> None:
    story = HistoryBuilder().claim(0, "old").claim(0, "new")
    story.complete(1, "old", datasets_published=[publication("old", 1, 0, 9)])
    story.complete(2, "new", datasets_published=[publication("new", 1, 0, 99)])
    assert_proven(story.dump("partitions").partition_row("new", 1, 0, 99))


def test_one_batch_published_as_two_records_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").buffer(1, "t", "b", "p1").buffer(2, "t", "b", "p2")
    assert_refuted(story, EFFECTS, 2, 3)


def test_an_accepted_publish_without_its_record_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").buffer(1, "t", "b", "p").dump("buffer_publishes")
    assert_refuted(story, EFFECTS, 2)


def test_a_batch_record_without_a_publish_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").dump("buffer_publishes").buffer_row("p", "t", "b")
    assert_refuted(story, EFFECTS, 3)


def test_a_batch_record_without_its_message_is_refuted() -> None:
    story = HistoryBuilder().claim(0, "t").buffer(1, "t", "b", "p")
    story.dump("buffer_publishes", "outbox", "messages").buffer_row("p", "t", "b")
    assert_refuted(story, EFFECTS, 4)


def test_a_batch_record_with_a_pending_or_sent_message_is_proven() -> None:
    waits = HistoryBuilder().claim(0, "t").buffer(1, "t", "b", "p")
    waits.dump("buffer_publishes", "outbox", "messages").buffer_row("p", "t", "b")
    sent = HistoryBuilder().claim(0, "t").buffer(1, "t", "b", "p")
    sent.dump("buffer_publishes", "outbox", "messages").buffer_row("p", "t", "b")
    waits.row("outbox", outbox_id=1, kind="buffer_message", subject=uid("p"))
    producer = {"task_id": uid("t"), "attempt": 1}
    sent.row("messages", queue="buffer", body={"producer": producer, "batch_uri": "s3://b/b"})
    assert_proven(waits)
    assert_proven(sent)


def test_a_message_of_a_rolled_back_publish_is_refuted() -> None:
    story = HistoryBuilder().dump("buffer_publishes", "outbox", "messages")
    producer = {"task_id": uid("t"), "attempt": 1}
    story.row("messages", queue="buffer", body={"producer": producer, "batch_uri": "s3://b/b"})
    assert_refuted(story, EFFECTS, 2)


def test_duplicate_and_unfounded_message_requests_are_refuted() -> None:
    twice = HistoryBuilder().dump("buffer_publishes", "outbox").buffer_row("p", "t", "b")
    for n in (1, 2):
        twice.row("outbox", outbox_id=n, kind="buffer_message", subject=uid("p"))
    assert_refuted(twice, EFFECTS, 3, 4)
    nothing = HistoryBuilder().dump("buffer_publishes", "outbox")
    nothing.row("outbox", outbox_id=1, kind="buffer_message", subject=uid("p"))
    assert_refuted(nothing, EFFECTS, 2)


def test_a_wake_up_for_a_rolled_back_task_is_refuted() -> None:
    story = HistoryBuilder().dump("tasks", "outbox", "messages")
    story.row("outbox", outbox_id=1, kind="wake_up", subject=uid("gone"))
    assert_refuted(story, EFFECTS, 2)
    story = HistoryBuilder().dump("tasks", "outbox", "messages")
    story.row("messages", queue="ecs_python", body={"task_id": uid("gone")})
    assert_refuted(story, EFFECTS, 2)


# --- the format ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"history": 2}',
        '{"call": "claim", "began": 1, "ended": 2}',
        '{"call": "claim", "error": "x", "answer": {"status": 200}, "began": 1, "ended": 2}',
        '{"call": "claim", "error": "x", "began": 2, "ended": 1}',
        '{"call": "claim", "error": "x", "began": NaN, "ended": 1}',
        '{"table": "tasks", "row": {}}',
        '{"dump": ["nonsense"]}',
        '{"dump": 1}',
    ],
)
def test_an_unreadable_line_is_reported_with_its_number(line: str) -> None:
    with pytest.raises(Unreadable, match="line 2"):
        parse(['{"history": 1}', line])


def test_a_row_without_its_columns_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="line 2: status"):
        parse(HistoryBuilder().dump("tasks").row("tasks", task_id=uid("t")).text)


def test_an_inconsistent_accepted_call_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="line 1"):
        verdict(HistoryBuilder().call(0, "heartbeat", {}, {"status": "Accepted"}))
    with pytest.raises(Unreadable, match="line 1"):
        verdict(HistoryBuilder().call(0, "claim", {}, {"status": "Claimed"}))


def test_the_verdict_lists_what_a_history_cannot_prove() -> None:
    assert verdict(HistoryBuilder()).unchecked == [
        "side effects: the history has no dump of the database"
    ]
    assert "table events: not dumped" in verdict(HistoryBuilder().dump("tasks")).unchecked


# --- correct runs that look unusual -------------------------------------------------------------


def test_the_sink_announces_the_batches_of_an_attempt() -> None:
    story = HistoryBuilder().claim(0, "t").buffer(1, "t", "b", "p").dump("events")
    assert_proven(story.event_row("t", 7, dataset_uuid=uid("alerts")))
    silent = HistoryBuilder().claim(0, "t").dump("events")
    assert_refuted(silent.event_row("t", 7, dataset_uuid=uid("alerts")), EFFECTS, 3)


@pytest.mark.parametrize("settled", [{"sunk_at": "now"}, {"failed_at": "now"}, {}])
def test_a_batch_that_the_sink_has_settled_needs_no_message(settled: dict[str, str]) -> None:
    story = HistoryBuilder().claim(0, "t").buffer(1, "t", "b", "p")
    story.dump("buffer_publishes", "outbox", "messages").buffer_row("p", "t", "b")
    story.lines[-1]["row"] |= settled
    if settled:
        assert_proven(story)
    else:
        assert_refuted(story, EFFECTS, 4)


def test_a_batch_of_a_task_that_the_history_does_not_contain_is_not_checked() -> None:
    story = HistoryBuilder().dump("buffer_publishes", "outbox", "messages")
    assert_proven(story.buffer_row("p", "other", "b"))


def made_by_key(key: str) -> HistoryBuilder:
    story = routed_event("a")
    names = ("job_id", "dataset_uuid", "dataset_version", "cursor_value", "revision_id")
    scope = {name: story.lines[-1]["row"][name] for name in names}
    return story.task_row("b", "Queued", dedupe_key=key, **scope)


@pytest.mark.parametrize("kind", ["rewrite:b:1", "1700000000000000", "canceled:t"])
def test_a_forced_backfill_creates_a_second_task_for_an_event(kind: str) -> None:
    assert_proven(made_by_key(f"d:v:g:c:1:{kind}"))
    assert_refuted(made_by_key("d:v:g:c:1"), EFFECTS, 2, 4, 5)


def test_a_backfill_creates_tasks_without_an_event() -> None:
    story = HistoryBuilder().dump("events", "tasks")
    scope = {"dataset_uuid": uid("blocks"), "dataset_version": uid("blocks/1")}
    assert_proven(story.task_row("t", "Queued", bulk=True, partition_key="0-4", **scope))


def test_the_event_of_a_task_from_before_the_history_may_be_deleted() -> None:
    scope = {"dataset_uuid": uid("blocks"), "dataset_version": uid("blocks/1"), "cursor_value": 1}
    for second, is_proven in ((-60, True), (60, False)):
        story = HistoryBuilder().claim(0, "t").dump("events", "tasks")
        story.task_row("u", "Queued", created_at=iso(second), **scope)
        assert verdict(story).proven is is_proven


@pytest.mark.parametrize(
    "consumer",
    [{"dataset_version": uid("blocks/2")}, {"since": iso(10)}, {}],
    ids=["another generation", "deployed later", "read it"],
)
def test_only_a_job_that_read_the_generation_needs_a_task(consumer: dict[str, str]) -> None:
    story = HistoryBuilder().dump("events", "tasks", "consumers")
    story.event_row("t", 1, routed_at="now", accepted_at=iso(0))
    story.row("consumers", dataset_uuid=uid("blocks"), job_id=uid("sql"), **consumer)
    assert verdict(story).proven is bool(consumer)


def test_a_deferred_event_needs_no_task() -> None:
    story = routed_event()
    story.lines[0]["dump"].append("deferred_events")
    story.row("deferred_events", event_id=uid("event t 1"), job_id=uid("sql"))
    assert_proven(story)


def test_a_cursor_that_is_reported_again_after_an_invalidation_is_new() -> None:
    invalid = {"kind": "row_range", "dataset_uuid": uid("blocks"), "start": 1, "end": 1}
    story = HistoryBuilder().claim(0, "t").events(1, "t", [1], accepted=1)
    body = {"status": "Accepted", "accepted": 0}
    story.fenced(2, "events", "t", 1, {"events": [], "invalidations": [invalid]}, body)
    assert_proven(story.events(3, "t", [1], accepted=1))


def test_a_publication_without_a_range_is_the_partition_of_its_task() -> None:
    story = HistoryBuilder().claim(0, "t")
    story.lines[-1]["answer"]["body"]["task"]["scope"] = {"partition_key": "eu"}
    published = publication("t", 1, 0, 9)
    del published["range_start"], published["range_end"]
    story.complete(1, "t", datasets_published=[published])
    story.dump("partitions", "events").partition_row("t", 1, 0, 9)
    story.lines[-1]["row"] |= {"partition_key": "eu", "range_start": None, "range_end": None}
    story.event_row("t", 1, scope_key="p:eu", dataset_uuid=published["dataset_uuid"])
    story.lines[-1]["row"]["dataset_version"] = published["dataset_version"]
    assert_proven(story)
