"""Completions that end at the same time share a call, and each gets its own answer."""

import threading
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

import pytest

from support.waiting import eventually
from trace_etl.api.task import lifecycle as bodies
from trace_etl.http.clients.dispatcher_client import Refused, Unreachable, render_completions
from trace_etl.worker.completions import CompletionReport, Completions

STOP = threading.Event()


class Dispatcher:
    """Answers one call at a time, when the test allows it. Refuses the attempts in `refused`."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.allowed = threading.Semaphore(0)
        self.refused: set[Any] = set()
        self.is_away = False

    def complete(self, body: bodies.Complete, token: str, stop: threading.Event) -> None:
        [refusal] = self._answer([body])
        if refusal is not None:
            raise refusal

    def complete_many(
        self, completions: list[tuple[bodies.Complete, str]], stop: threading.Event
    ) -> list[Refused | None]:
        assert {token for _, token in completions} == {"token"}
        return self._answer([body for body, _ in completions])

    def _answer(self, items: list[Any]) -> list[Refused | None]:
        self.calls.append([item.task_id for item in items])
        self.allowed.acquire()
        if self.is_away:
            raise Unreachable("away")
        refusal = Refused(409, "lease_lost", "late")
        return [refusal if item.task_id in self.refused else None for item in items]


def completion(outputs: int = 0) -> bodies.Complete:
    output = {"output_index": 0, "dataset_uuid": uuid4(), "location": "s3://trace/x/"}
    return bodies.Complete.model_validate(
        {
            "task_id": uuid4(),
            "attempt": 1,
            "lease_token": uuid4(),
            "status": "Completed",
            "outputs": [output] * outputs,
        }
    )


def add(completions: Completions, body: bodies.Complete) -> Future[Any]:
    answer = Future[Any]()
    completions.add(CompletionReport(body, "token", STOP, answer.set_result))
    return answer


def send_all(dispatcher: Dispatcher, sent: list[bodies.Complete]) -> list[Any]:
    """Send the first one, the others while it is under way, and return the answer to each."""
    completions = Completions(dispatcher)
    answers = [add(completions, sent[0])]
    eventually(lambda: len(dispatcher.calls) == 1, "the first call is under way")
    answers += [add(completions, body) for body in sent[1:]]
    dispatcher.allowed.release(len(sent))
    completions.close()
    return [answer.result(120) for answer in answers]


def test_completions_that_wait_share_the_next_call() -> None:
    dispatcher, sent = Dispatcher(), [completion() for _ in range(6)]
    assert send_all(dispatcher, sent) == [None] * 6
    assert [len(call) for call in dispatcher.calls] == [1, 5]
    assert {task for call in dispatcher.calls for task in call} == {body.task_id for body in sent}


def test_a_refusal_answers_only_its_own_completion() -> None:
    dispatcher, sent = Dispatcher(), [completion() for _ in range(4)]
    dispatcher.refused = {sent[2].task_id}
    got = send_all(dispatcher, sent)
    assert [getattr(error, "refusal", None) for error in got] == [None, None, "lease_lost", None]


def test_an_outage_answers_every_completion_and_the_next_one_is_sent() -> None:
    dispatcher, sent = Dispatcher(), [completion() for _ in range(3)]
    dispatcher.is_away = True
    assert all(isinstance(error, Unreachable) for error in send_all(dispatcher, sent))
    dispatcher.is_away = False
    dispatcher.allowed.release()
    assert add(Completions(dispatcher), completion()).result(120) is None


def test_a_large_completion_is_sent_alone() -> None:
    dispatcher = Dispatcher()
    sent = [completion(), completion(outputs=21), completion(), completion()]
    assert send_all(dispatcher, sent) == [None] * 4
    assert sorted(len(call) for call in dispatcher.calls) == [1, 1, 2]
    assert [sent[1].task_id] in dispatcher.calls


@pytest.mark.parametrize("count", [1, 120])
def test_many_completions_are_all_answered(count: int) -> None:
    dispatcher = Dispatcher()
    dispatcher.allowed.release(count)
    completions = Completions(dispatcher)
    answers = [add(completions, completion()) for _ in range(count)]
    assert [answer.result(120) for answer in answers] == [None] * count
    assert sum(map(len, dispatcher.calls)) == count
    assert max(map(len, dispatcher.calls)) <= 100


def test_several_completions_are_rendered_as_the_body_of_one_call() -> None:
    failed = completion().model_copy(update={"status": "Failed", "error_message": 'a "b"'})
    for body in (completion(), completion(outputs=2), failed):
        text = render_completions([(body, "t1"), (body, "t2")])
        rendered = bodies.CompleteMany.parse_json(text.encode())
        with_token = {**body.model_dump(exclude_unset=True), "capability_token": "t1"}
        assert rendered.completions[0].model_dump(exclude_unset=True) == with_token
        assert rendered.completions[1].capability_token == "t2"
