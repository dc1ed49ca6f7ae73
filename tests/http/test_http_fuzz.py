"""Random and damaged bytes on the listeners of processes: no 5xx, no memory growth, no stall."""

import json
import os
import random
import ssl
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.fuzz.damaged_requests import damaged, read_statuses, sending
from support.fuzz.fuzzing import MAX_GROWTH, MAX_SECONDS, Fuzzer
from support.fuzz.openapi_calls import labels, register
from support.lifecycle.lifecycle import Bench, bench
from support.processes import (
    ConsoleProcess,
    DispatcherProcess,
    QueryProcess,
    ServiceProcess,
)
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied

SECONDS = float(os.environ.get("TRACE_FUZZ_SECONDS", "1"))  # per listener


@dataclass(frozen=True)
class Target:
    """A listener, and the process that it belongs to."""

    process: ServiceProcess
    port: int


@pytest.fixture(scope="module")
def targets(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[dict[str, Target]]:
    directory = tmp_path_factory.mktemp("fuzzed")
    limits = {"TRACE_HTTP_LIMITS": '{"request_seconds": 2, "idle_seconds": 2}'}
    with copied(templates) as dsns:
        dispatcher = DispatcherProcess(secrets, dsns, directory, limits)
        known = {"TRACE_DISPATCHER_URL": dispatcher.internal_url}
        query = QueryProcess(secrets, directory, dsns, settings=limits | known)
        console = ConsoleProcess(secrets, directory, settings=limits)
        try:
            for process in (dispatcher, query, console):
                process.up()
            yield {
                "api": Target(dispatcher, dispatcher.api_port),
                "internal": Target(dispatcher, dispatcher.internal_port),
                "query": Target(query, query.port),
                "console": Target(console, console.port),
            }
        finally:
            for process in (dispatcher, query, console):
                process.stop()


@pytest.mark.parametrize("listener", ["api", "internal", "query", "console"])
def test_damaged_requests_do_no_harm(
    targets: dict[str, Target],
    secrets: Secrets,
    listener: str,
    record_property: Callable[[str, object], None],
) -> None:
    process, port = targets[listener].process, targets[listener].port
    context = ssl.create_default_context(cafile=str(secrets.ca))
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


def test_random_calls_of_the_query_service_do_no_harm(
    templates: Templates, secrets: Secrets, tmp_path: Path
) -> None:
    """Half of the calls have valid SQL, so that queries run with random parameters, formats and limits."""
    with (
        copied(templates) as dsns,
        live(secrets, dsns, tmp_path / "objects") as running,
        bench(running) as made,
    ):
        url = f"https://127.0.0.1:{running.cfg.internal_port}"
        query = QueryProcess(secrets, tmp_path, dsns, settings={"TRACE_DISPATCHER_URL": url}).up()
        try:
            run_random_queries(query, made)
        finally:
            query.stop()


def run_random_queries(query: QueryProcess, made: Bench) -> None:
    dag = made.dag()
    attempt = made.attempt(dag=dag)
    tokens = {
        "Authorization": f"Bearer {query.secrets.user_token}",
        "X-Trace-Task-Capability": attempt.token,
    }
    context = ssl.create_default_context(cafile=str(query.ca))
    statuses: Counter[int] = Counter()
    with httpx.Client(verify=context, trust_env=False, timeout=60) as http:
        register("query", http.get(f"{query.url}/openapi.json").json())
        operations = labels("query")

        def send(case: Any, real: bool) -> httpx.Response:
            sent = case.as_transport_kwargs(base_url=query.url)
            body = sent.get("json")
            if real and isinstance(body, dict) and "sql" in body:
                body["sql"], body["params"] = "SELECT range AS n FROM range(3)", None
            reply = http.request(
                sent["method"],
                sent["url"],
                params=sent.get("params"),
                headers={**dict(sent["headers"] or {}), **tokens},
                content=json.dumps(body) if "json" in sent else sent.get("data"),
            )
            statuses[reply.status_code] += 1
            return reply

        malformable = [label for label, op in operations.items() if "requestBody" in op]
        assert set(malformable) == {"POST /v1/query", "POST /v1/task/query"}
        others = [label for label in operations if label not in malformable]
        assert Fuzzer(query, send).run("query", [*malformable, *others], malformable)
    assert statuses[200], statuses
