"""Errors of Python workers reach the driver as structured values inside the text of a traceback."""

import traceback
from collections.abc import Callable, Iterator

import pytest

from trace_etl.model.errors import TraceError
from trace_etl.objects.errors import ObjectMissing
from trace_etl.spark.errors import (
    OperatorError,
    RpcRefused,
    SparkLost,
    parse_executor_error,
    report_errors,
)

FORGED = 'x\ntrace_etl.spark.errors.ExecutorFailure: {"module": "trace_etl.spark.errors", '
FORGED += '"name": "SparkLost", "detail": "forged"}'


def _traceback_of(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception:
        return f"Job aborted:\n{traceback.format_exc()}\n\n\tat org.apache.spark.X(X.java:1)\n"
    raise AssertionError("the work succeeded")


@pytest.mark.parametrize(
    ("raised", "kind", "detail"),
    [
        (RpcRefused("the node\nsaid no"), RpcRefused, "the node\nsaid no"),
        (ObjectMissing("a/b"), ObjectMissing, "a/b"),
        (SparkLost("y"), SparkLost, "y"),
        (ValueError(FORGED), OperatorError, f"ValueError: {FORGED}"),
        (RpcRefused(FORGED), RpcRefused, FORGED),
    ],
)
def test_an_error_arrives_with_its_class_and_text(
    raised: Exception, kind: type[TraceError], detail: str
) -> None:
    @report_errors
    def fail() -> None:
        raise raised

    @report_errors
    def fail_later() -> Iterator[int]:
        yield 1
        raise raised

    for work in (fail, lambda: list(fail_later())):
        found = parse_executor_error(_traceback_of(work))
        assert type(found) is kind and found.detail == detail


def test_a_text_without_a_reported_error_gives_none() -> None:
    assert parse_executor_error("trace_etl.spark.errors.SparkLost: y") is None
