"""A thread that handles together what has arrived together."""

import threading

from support.waiting import eventually
from trace_etl.worker.batch_thread import BatchThread


def test_items_that_arrive_during_the_work_are_handled_together_up_to_the_limit() -> None:
    batches: list[list[int]] = []
    may_work = threading.Semaphore(0)

    def handle(batch: list[int]) -> None:
        batches.append(batch)
        may_work.acquire()

    thread = BatchThread("batches", handle, 3)
    thread.put(0)
    eventually(lambda: batches == [[0]], "one item does not wait for others")
    for number in range(1, 6):
        thread.put(number)
    may_work.release(10)
    thread.close()
    assert batches == [[0], [1, 2, 3], [4, 5]]


def test_an_error_does_not_end_the_thread() -> None:
    handled: list[int] = []

    def handle(batch: list[int]) -> None:
        if batch == [1]:
            raise ValueError("odd")
        handled.extend(batch)

    thread = BatchThread("batches", handle, 1)
    for number in range(3):
        thread.put(number)
    thread.close()
    assert handled == [0, 2]
