"""Retry delays of tasks and outbox rows."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from trace_etl.policy.retry import OUTBOX_RETRY, TASK_RETRY, retry_delay


def test_task_retries_start_at_half_a_minute_and_double_to_ten_minutes():
    waits = [TASK_RETRY.delay(n, spread=0).total_seconds() * 2 for n in range(1, 8)]
    assert waits == [30, 60, 120, 240, 480, 600, 600]


def test_outbox_retries_start_at_a_second_and_double_to_five_minutes():
    waits = [OUTBOX_RETRY.delay(n).total_seconds() for n in (1, 2, 9, 10, 20)]
    assert waits == [1, 2, 256, 300, 300]


@given(st.integers(1, 1000))
def test_jitter_stays_within_half_of_the_delay_and_below_the_longest_delay(tries):
    base = TASK_RETRY.delay(tries, spread=0) * 2
    longest = TASK_RETRY.delay(tries, spread=1)
    assert longest == min(base * 1.5, TASK_RETRY.max_delay)
    assert base * 0.5 <= TASK_RETRY.delay(tries) <= longest


def test_a_failure_that_is_not_retryable_has_no_retry_delay():
    assert retry_delay(1, TASK_RETRY, retryable=False) is None
    delay = retry_delay(1, TASK_RETRY, retryable=True)
    assert delay is not None
    assert delay >= timedelta(seconds=15)
