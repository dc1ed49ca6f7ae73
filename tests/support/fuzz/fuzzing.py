"""Random calls of an API, generated from its OpenAPI document, for some seconds."""

import itertools
import os
import random
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from support.fuzz.openapi_calls import negative, positive
from support.lifecycle.lifecycle import Bench, bench
from support.processes import DispatcherProcess, ServiceProcess
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied

# Per document. The setting is for each listener that gets damaged bytes.
SECONDS = 2 * float(os.environ.get("TRACE_FUZZ_SECONDS", "1"))
# KiB; an unlimited head grew the process by 2 GiB, connections that wait for the garbage collector by 100 MiB.
MAX_GROWTH = 32 * 1024
# Of processor time that the event loop may use for a request, and between a call of /healthz and its answer.
# It is not clock time: on a busy machine everything takes longer, but what blocks the loop uses the processor.
MAX_SECONDS = 0.1
_ROUND = settings(
    max_examples=10,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def fuzzed_dispatcher(
    templates: Templates, secrets: Secrets, directory: Path
) -> Generator[tuple[DispatcherProcess, Bench]]:
    """A Dispatcher process, and a bench that prepares its tasks through another Dispatcher."""
    with copied(templates) as dsns, live(secrets, dsns, directory / "objects") as running:
        process = DispatcherProcess(secrets, dsns, directory).up()
        try:
            with bench(running) as made:
                yield process, made
        finally:
            process.stop()


@dataclass
class Fuzzer:
    """Sends random calls to a process: no 5xx, no memory growth, no stall."""

    process: ServiceProcess
    send: Callable[[Any, bool], httpx.Response]
    """Gets a case and whether to replace its generated ids with existing ones."""
    longest: float = 0.0
    accepted: int = 0
    """Calls that were not refused."""
    _known: set[str] = field(default_factory=set[str])

    def run(self, api: str, labels: Iterable[str], malformable: Iterable[str]) -> int:
        """Call these operations in a random order, and fail at the first answer that is wrong.

        Returns the number of calls. A short run reaches a part of the operations, each time another one, until
        a call is accepted.
        Malformed cases keep their ids: their bodies may have any shape.
        """
        seeds = itertools.count(random.randrange(2**32))
        turns = [(label, st.tuples(positive(api, label), st.booleans())) for label in labels]
        turns += [(label, st.tuples(negative(api, label), st.just(False))) for label in malformable]
        random.shuffle(turns)
        deadline, sent, baseline = time.monotonic() + SECONDS, 0, 0
        for turn, (label, cases) in enumerate(itertools.cycle(turns)):
            # On a busy machine, one turn may take all of the time.
            if time.monotonic() > deadline and (self.accepted or turn >= len(turns)):
                break
            sent += self._send_some(label, cases, next(seeds))
            baseline = baseline or self.process.resident_kib
        growth = self.process.resident_kib - baseline
        assert growth < MAX_GROWTH, f"the process grew by {growth} KiB"
        assert self.process.answers()
        return sent

    def _send_some(self, label: str, cases: Any, number: int) -> int:
        sent = 0

        @_ROUND
        @seed(number)
        @given(cases)
        def call(case_and_real: tuple[Any, bool]) -> None:
            nonlocal sent
            sent += 1
            before = self.process.loop_seconds
            reply = self.send(*case_and_real)
            spent = self.process.loop_seconds - before
            assert reply.status_code < 500, f"seed {number}: {label}: {reply.text}"
            self.accepted += reply.status_code < 400
            if label in self._known:  # the first call of an operation loads code
                self.longest = max(self.longest, spent)
                assert spent < MAX_SECONDS, f"seed {number}: {label} took {spent:.3f} s"
            self._known.add(label)

        call()
        return sent
