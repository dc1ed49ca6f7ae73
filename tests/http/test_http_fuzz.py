"""Random and damaged bytes on the listeners of a Dispatcher process: no 5xx, no memory growth, no stall."""

import os
import random
import ssl
import time
from collections.abc import Callable, Generator

import httpx
import pytest

from support.damaged_requests import damaged, read_statuses, sending
from support.dispatcher import Secrets
from support.fuzzing import MAX_GROWTH, MAX_SECONDS
from support.postgres import Templates, copied
from support.processes import DispatcherProcess

SECONDS = float(os.environ.get("TRACE_FUZZ_SECONDS", "5"))  # per listener


@pytest.fixture(scope="module")
def process(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[DispatcherProcess]:
    directory = tmp_path_factory.mktemp("fuzzed")
    limits = {"TRACE_HTTP_LIMITS": '{"request_seconds": 2, "idle_seconds": 2}'}
    with copied(templates) as dsns:
        started = DispatcherProcess(secrets, dsns, directory, limits).up()
        try:
            yield started
        finally:
            started.stop()


@pytest.mark.parametrize("listener", ["api", "internal"])
def test_damaged_requests_do_no_harm(
    process: DispatcherProcess, listener: str, record_property: Callable[[str, object], None]
) -> None:
    port = process.api_port if listener == "api" else process.internal_port
    context = ssl.create_default_context(cafile=str(process.secrets.ca))
    seed = random.randrange(2**32)
    rng, baseline, longest = random.Random(seed), 0, 0.0
    deadline = time.monotonic() + SECONDS
    with httpx.Client(verify=context, trust_env=False, timeout=60) as http:
        while time.monotonic() < deadline:
            for data in [damaged(rng) for _ in range(20)]:
                with sending(port, context, data) as connection:
                    before = process.loop_seconds
                    assert http.get(f"https://127.0.0.1:{port}/healthz").status_code == 200
                    spent = process.loop_seconds - before
                    if baseline:  # the first round loads code
                        longest = max(longest, spent)
                    assert longest < MAX_SECONDS, f"seed {seed}: {data!r} took {spent:.3f} s"
                    for status in read_statuses(connection):
                        assert status < 500, f"seed {seed}: {data!r} was answered with {status}"
            baseline = baseline or process.resident_kib
    growth = process.resident_kib - baseline
    record_property("seed", seed)
    record_property("longest_wait_in_processor_seconds", longest)
    record_property("growth_kib", growth)
    assert growth < MAX_GROWTH, f"seed {seed}: the process grew by {growth} KiB"
    assert process.log.read_bytes() == b"", "a client without a token can write to the log"
