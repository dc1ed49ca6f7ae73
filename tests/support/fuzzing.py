"""Random calls of an API, generated from its OpenAPI document, for some seconds."""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from support.openapi_calls import negative, positive

# Per document. The setting is for each of the two listeners that have one parser.
SECONDS = 2 * float(os.environ.get("TRACE_FUZZ_SECONDS", "2.5"))
_ROUND = settings(
    max_examples=10,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def assert_no_server_errors(
    api: str,
    labels: Iterable[str],
    malformable: Iterable[str],
    send: Callable[[Any, bool], httpx.Response],
) -> int:
    """Send random calls of these operations in turn, and fail at the first 5xx. Returns their number.

    `send` gets a case and whether to replace its generated ids with existing ones. Malformed cases
    keep theirs: their bodies may have any shape.
    """
    seeds = itertools.count(random.randrange(2**32))
    turns = [(label, st.tuples(positive(api, label), st.booleans())) for label in labels]
    turns += [(label, st.tuples(negative(api, label), st.just(False))) for label in malformable]
    deadline, sent = time.monotonic() + SECONDS, 0
    for label, cases in itertools.cycle(turns):
        if time.monotonic() > deadline:
            break
        sent += _send_some(label, cases, next(seeds), send)
    return sent


def _send_some(
    label: str, cases: Any, number: int, send: Callable[[Any, bool], httpx.Response]
) -> int:
    sent = 0

    @_ROUND
    @seed(number)
    @given(cases)
    def call(case_and_real: tuple[Any, bool]) -> None:
        nonlocal sent
        sent += 1
        reply = send(*case_and_real)
        assert reply.status_code < 500, f"seed {number}: {label}: {reply.text}"

    call()
    return sent
