"""Lambda functions in real sandboxes: runtime clients, warm environments, and poisoned ones."""

import json
import os
import shutil
import socket
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import psutil
import pytest

from support.functions import OTHER_ORG, Link, Platform, make_invocation, platform
from support.waiting import eventually
from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.invocation import Invocation
from trace_etl.dag.runtimes import shipped_runtimes
from trace_etl.objects.file_store import FileStore
from trace_etl.policy.bundles import build_bundle
from trace_etl.sandbox import bubblewrap
from trace_etl.sandbox.process import SandboxedProcess
from trace_etl.spark.errors import TaskCanceled
from trace_etl.worker.functions.bundle_programs import BundleRefused
from trace_etl.worker.functions.environments import EnvironmentPool
from trace_etl.worker.functions.function_results import Bundles, FunctionFailed, FunctionOverLimit
from trace_etl.worker.functions.function_runner import FunctionRunner
from trace_etl.worker.functions.invoker import InvocationServer
from trace_etl.worker.functions.lambda_runner import LambdaRunner, make_key

pytestmark = pytest.mark.usefixtures("sandbox")

PYTHON = """
count = 0

def handler(event, context):
    global count
    count += 1
    from trace_etl.sdk import Task
    task = Task(event)
    rows = task.query("SELECT n FROM receivers")
    task.publish({"id": row["n"]} for row in rows)
    print("call", count, context.aws_request_id == event["lease_token"], event["capability_token"][:6])
    assert context.get_remaining_time_in_millis() > 0
    return {"rows": len(rows)}
"""
NODE = """
let count = 0;
import { Task } from "trace-etl";
export const handler = async (event, context) => {
  const task = new Task(event);
  await task.publish((await task.query("SELECT n FROM receivers")).map((row) => ({ id: row.n })));
  const same = context.awsRequestId === event.lease_token ? "True" : "False";
  console.log("call", ++count, same, event.capability_token.slice(0, 6));
  if (context.getRemainingTimeInMillis() <= 0) throw new Error("no time");
};
"""
BOOTSTRAP = """#!%s
import json, os, urllib.request
API = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/"
count = 0
while True:
    with urllib.request.urlopen(API + "invocation/next") as reply:
        event, request_id = json.load(reply), reply.headers["Lambda-Runtime-Aws-Request-Id"]
    import sys
    sys.path.insert(0, "/opt/trace/python")
    from trace_etl.sdk import Task
    Task(event).publish([{"id": 1}, {"id": 2}])
    count += 1
    same = request_id == event["lease_token"]
    print("call", count, same, event["capability_token"][:6], flush=True)
    answer = urllib.request.Request(API + "invocation/" + request_id + "/response", b"{}", method="POST")
    urllib.request.urlopen(answer).close()
"""


class Lambdas:
    """A runner with warm environments, and a place to push bundles to."""

    def __init__(self, directory: Path, services: Platform, pool: EnvironmentPool) -> None:
        self.directory, self.services, self.pool = directory, services, pool
        self.objects = FileStore(directory / "objects")
        shipped = shipped_runtimes().entries
        self.bundles = Bundles(self.objects, {**shipped, "brief": shipped["lambda"]})
        self.runner = LambdaRunner(self.bundles, pool)

    def make_runner(self, runtime: str) -> FunctionRunner | LambdaRunner:
        """Return the runner with warm environments, or one that starts a sandbox for each attempt."""
        if runtime == "lambda":
            return self.runner
        place = self.directory / "attempts"
        return FunctionRunner(self.bundles, self.pool.upstream, place, self.pool.start)

    def push(self, files: dict[str, str | bytes]) -> str:
        source = self.directory / "source"
        shutil.rmtree(source, ignore_errors=True)
        for name, content in files.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            path.chmod(0o755)
        return self.push_directory(source)

    def push_directory(self, source: Path) -> str:
        bundle = build_bundle(source)
        self.objects.put(f"org/{bundle.sha256}.zip", bundle.content)
        return bundle.sha256

    def make(self, sha256: str, **changes: object) -> Invocation:
        invocation = make_invocation(sha256, **changes)
        udf = invocation.udf.model_copy(update={"bundle_url": f"s3://org/{sha256}.zip"})
        return invocation.model_copy(update={"udf": udf})

    def invoke(self, sha256: str, **changes: object) -> tuple[Invocation, str]:
        """Run one invocation and return its output."""
        invocation = self.make(sha256, **changes)
        link = Link(invocation)
        self.runner.run(invocation, link.make())
        return invocation, link.output.decode()

    def idle(self) -> int:
        return sum(map(len, self.pool._idle.values()))


@pytest.fixture
def lambdas(tmp_path: Path) -> Iterator[Lambdas]:
    with platform() as (services, upstream):
        pool = EnvironmentPool(
            tmp_path / "functions",
            upstream,
            lambda program, on_output: SandboxedProcess(program, on_output=on_output),
            max_environments=4,
            idle_limits={"lambda": None, "brief": 0},
        )
        yield Lambdas(tmp_path, services, pool)
        pool.close()


def official_python(files: dict[str, str | bytes]) -> dict[str, str | bytes]:
    """Add the official runtime client, as a user's zip would contain it."""
    site = Path(next(p for p in sys.path if Path(p, "awslambdaric").is_dir()))
    names = ["awslambdaric", "snapshot_restore_py.py", "simplejson"]
    paths = [
        p
        for name in names
        for p in ([site / name] if (site / name).is_file() else (site / name).rglob("*.py"))
    ]
    paths += list(site.glob("runtime_client*.so"))
    return {**files, **{str(p.relative_to(site)): p.read_bytes() for p in paths}}


def official_node(files: dict[str, str | bytes]) -> dict[str, str | bytes]:
    """Add the official runtime client from npm, which `make test-lambda` builds for this machine."""
    built = Path(__file__).parents[1] / "lambda" / "node_modules"
    if not (built / ".installed").exists():
        (pytest.fail if os.environ.get("TRACE_REQUIRE_LAMBDA_CLIENT") else pytest.skip)(
            "needs the official client for Node: run `make test-lambda`"
        )
    paths = [p for n in ("aws-lambda-ric", "@aws") for p in (built / n).rglob("*")]
    kept = [p for p in paths if p.is_file() and p.suffix in (".js", ".mjs", ".json", ".node")]
    return {**files, **{f"node_modules/{p.relative_to(built)}": p.read_bytes() for p in kept}}


CLIENTS = {
    "python": lambda: {"rule.py": PYTHON},
    "official python": lambda: official_python({"rule.py": PYTHON}),
    "node": lambda: {"rule.mjs": NODE},
    "bootstrap": lambda: {"bootstrap": BOOTSTRAP % bubblewrap.PYTHON},
    "official node": lambda: official_node({"rule.mjs": NODE}),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_invocations_share_a_warm_environment(lambdas: Lambdas, client: str) -> None:
    sha256 = lambdas.push(CLIENTS[client]())
    calls = [lambdas.invoke(sha256) for _ in range(3)]
    for number, (_, output) in enumerate(calls, 1):
        assert f"call {number} True token-" in output
    expected = [(i.capability_token, str(i.task_id), 2) for i, _ in calls]
    assert lambdas.services.published() == expected
    assert lambdas.idle() == 1


def test_an_idle_environment_ends_with_the_idle_timeout_of_its_runtime(lambdas: Lambdas) -> None:
    sha256 = lambdas.push({"rule.py": "def handler(event, context): pass"})
    for runtime in ("lambda", "brief"):
        lambdas.invoke(sha256, runtime=runtime)
    eventually(lambda: lambdas.idle() == 1)
    assert [key.runtime for key in lambdas.pool._idle] == ["lambda"]


PYTHON_TASKS = """
from trace_etl.sdk import Task

def handler(event, context):
    tasks = [context.task, context.task, Task(event), Task(event)]
    for number, task in enumerate(tasks):
        task.publish([{"id": number}])
"""
NODE_TASKS = """
import { Task } from "trace-etl";
export const handler = async (event, context) => {
  const tasks = [context.task, context.task, new Task(event), new Task(event)];
  for (const [number, task] of tasks.entries()) await task.publish([{ id: number }]);
};
"""


@pytest.mark.parametrize("files", [{"rule.py": PYTHON_TASKS}, {"rule.mjs": NODE_TASKS}])
def test_every_batch_of_an_attempt_is_an_object_of_its_own(
    lambdas: Lambdas, files: dict[str, str | bytes]
) -> None:
    lambdas.invoke(lambdas.push(files))
    calls = [(path, body) for _, path, body in lambdas.services.calls]
    root = "/v1/task/objects/"
    written = {"s3://" + p.removeprefix(root): body for p, body in calls if p.startswith(root)}
    uris = [body["batch_uri"] for path, body in calls if path.endswith("/buffer-publish")]
    assert [json.loads(written[uri]) for uri in uris] == [{"id": n} for n in range(4)]
    names = [uri.rpartition("/")[2] for uri in uris]
    assert [name.split("-")[2] for name in names] == [f"{n:05d}.jsonl" for n in (0, 1, 0, 0)]


STATEFUL = """
import os, pathlib
seen = []

def handler(event, context):
    pathlib.Path("/tmp/kept").touch()
    seen.append(event["task_id"])
    print("seen", len(seen), len(os.listdir("/tmp")))
"""


@pytest.mark.parametrize(
    "changes",
    [
        {"org_id": OTHER_ORG},
        {"job": {"dag_name": "dag", "name": "other"}},
        {"inputs": []},
        {
            "inputs": [
                {
                    "input_index": 0,
                    "name": "receivers",
                    "dataset_uuid": UUID(int=7),
                    "dataset_version": UUID(int=9),
                }
            ]
        },
        {
            "inputs": [
                {
                    "input_index": 0,
                    "name": "receivers",
                    "dataset_uuid": UUID(int=7),
                    "dataset_version": UUID(int=8),
                    "where": {"chain": "main"},
                }
            ]
        },
    ],
    ids=["organisation", "job", "no input", "dataset version", "filter"],
)
def test_other_grants_get_an_environment_of_their_own(
    lambdas: Lambdas, changes: dict[str, Any]
) -> None:
    sha256 = lambdas.push({"rule.py": STATEFUL})
    assert "seen 1 1" in lambdas.invoke(sha256)[1]
    assert "seen 2 1" in lambdas.invoke(sha256)[1]
    assert "seen 1 1" in lambdas.invoke(sha256, **changes)[1]
    assert "seen 3 1" in lambdas.invoke(sha256)[1]


def test_another_bundle_gets_an_environment_of_its_own(lambdas: Lambdas) -> None:
    first, second = (lambdas.push({"rule.py": STATEFUL + f"# {n}"}) for n in range(2))
    assert "seen 1 1" in lambdas.invoke(first)[1]
    assert "seen 1 1" in lambdas.invoke(second)[1]
    a, b = (make_invocation(sha256) for sha256 in (first, second))
    assert a.udf and b.udf and make_key(a, a.udf) != make_key(b, b.udf)


def test_an_environment_is_used_again_only_if_it_lives_for_the_timeout(lambdas: Lambdas) -> None:
    sha256 = lambdas.push({"rule.py": STATEFUL})
    assert "seen 1 1" in lambdas.invoke(sha256, timeout_seconds=300)[1]
    assert "seen 2 1" in lambdas.invoke(sha256, timeout_seconds=3000)[1]
    assert "seen 1 1" in lambdas.invoke(sha256, timeout_seconds=7200)[1]
    assert "seen 2 1" in lambdas.invoke(sha256, timeout_seconds=7200)[1]


LINGERING = """
import threading, time
from trace_etl.sdk import Task

def linger(event):
    while True:
        try:
            Task(event).heartbeat()
            print("answered")
        except Exception as error:
            print("refused", error)
        time.sleep(0.01)

started = []

def handler(event, context):
    if not started:
        started.append(event["capability_token"])
        threading.Thread(target=linger, args=(event,), daemon=True).start()
    time.sleep(0.2)
"""


def test_code_that_lingers_never_speaks_for_an_ended_attempt(lambdas: Lambdas) -> None:
    sha256 = lambdas.push({"rule.py": LINGERING})
    lambdas.invoke(sha256)
    ended = len(lambdas.services.calls)
    [environment] = [e for idle in lambdas.pool._idle.values() for e in idle]
    eventually(lambda: environment.is_suspended)
    assert ended <= len(lambdas.services.calls) <= ended + 1  # one call may have been on its way
    second, _ = lambdas.invoke(sha256)
    later = lambdas.services.calls[ended + 1 :]
    assert later and {token for token, _, _ in later} == {second.capability_token}
    assert {body["task_id"] for _, _, body in later} == {str(second.task_id)}


def test_an_idle_environment_uses_no_processor_time(lambdas: Lambdas) -> None:
    code = """
        import os, threading
        def burn():
            while True: pass
        def handler(event, context):
            if os.fork() == 0: burn()
            threading.Thread(target=burn, daemon=True).start()
    """
    sha256 = lambdas.push({"rule.py": code.replace("\n        ", "\n")})
    lambdas.invoke(sha256)
    [environment] = [e for idle in lambdas.pool._idle.values() for e in idle]
    eventually(lambda: environment.is_suspended)
    tree = psutil.Process(environment._process.pid).children(recursive=True)
    assert len(tree) >= 3
    # The kernel stops a process on another processor a moment later.
    eventually(lambda: {process.status() for process in tree} == {psutil.STATUS_STOPPED})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def handler(event, context): raise ValueError('broken rule')", "ValueError: broken rule"),
        ("raise ImportError('no such thing')", "no such thing"),
        ("import os\ndef handler(event, context): os._exit(3)", "ended before it answered"),
        ("import os\nprint('bye')\nos._exit(3)", "bye"),
    ],
)
def test_a_failed_invocation_ends_its_environment(
    lambdas: Lambdas, code: str, message: str
) -> None:
    sha256 = lambdas.push({"rule.py": code})
    with pytest.raises(FunctionFailed, match=message):
        lambdas.invoke(sha256)
    assert lambdas.idle() == 0
    eventually(lambda: not list((lambdas.directory / "functions").iterdir()))


def test_too_much_memory_is_reported(lambdas: Lambdas) -> None:
    code = """
import os, signal
def handler(event, context):
    for _ in range(8):
        if os.fork() == 0:
            kept = b"x" * (120 << 20)
            signal.pause()
    signal.pause()
"""
    with pytest.raises(FunctionOverLimit, match="more than 512 MiB"):
        lambdas.invoke(lambdas.push({"rule.py": code}))


def test_a_canceled_invocation_ends_at_once(lambdas: Lambdas) -> None:
    sha256 = lambdas.push(
        {"rule.py": "import time\ndef handler(e, c): print('on'); time.sleep(600)"}
    )
    task_id, errors = uuid4(), list[Exception]()

    def invoke() -> None:
        try:
            lambdas.invoke(sha256, task_id=task_id)
        except FunctionFailed as error:
            errors.append(error)

    thread = threading.Thread(target=invoke)
    thread.start()
    eventually(lambda: bool(lambdas.runner._running))
    lambdas.runner.cancel(task_id, 1)
    thread.join()
    assert errors and lambdas.idle() == 0


WAITING = """
import time

def handler(event, context):
    print("on", flush=True)
    for _ in range(event["config"]["at_least"]):
        time.sleep(0.1)
"""


@pytest.mark.parametrize("runtime", ["lambda", "ecs_udf_python"])
def test_a_cancellation_ends_one_attempt_of_a_task(lambdas: Lambdas, runtime: str) -> None:
    runner = lambdas.make_runner(runtime)
    sha256, same = lambdas.push({"rule.py": WAITING}), {"task_id": uuid4(), "runtime": runtime}
    long = {"config": {"at_least": 1000}, **same}
    links = [Link(lambdas.make(sha256, attempt=n, **long)) for n in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(runner.run, link.invocation, link.make()) for link in links)
        eventually(lambda: all(b"on" in link.output for link in links), "both attempts run")
        runner.cancel(same["task_id"], 1)
        with pytest.raises(FunctionFailed):
            first.result(60)
        runner.cancel(same["task_id"], 1)  # the first attempt has ended
        assert not second.done()
        runner.cancel(same["task_id"], 2)
        with pytest.raises(FunctionFailed):
            second.result(60)
    third = Link(lambdas.make(sha256, attempt=3, config={"at_least": 0}, **same))
    runner.cancel(same["task_id"], 2)
    runner.run(third.invocation, third.make())
    assert third.output == b"on\n"


@pytest.mark.parametrize("runtime", ["lambda", "ecs_udf_python"])
def test_an_attempt_that_is_canceled_before_it_starts_runs_no_code(
    lambdas: Lambdas, runtime: str
) -> None:
    sha256 = lambdas.push({"rule.py": WAITING})
    link = Link(lambdas.make(sha256, runtime=runtime, config={"at_least": 0}))
    with pytest.raises(TaskCanceled):
        lambdas.make_runner(runtime).run(
            link.invocation, replace(link.make(), is_interrupted=lambda: True)
        )
    assert not link.output and lambdas.idle() == 0


def test_a_bundle_without_its_handler_is_refused(lambdas: Lambdas) -> None:
    with pytest.raises(
        BundleRefused, match=r"has no rule\.py, rule\.js or the program `bootstrap`"
    ):
        lambdas.invoke(lambdas.push({"other.py": ""}))


def test_the_environments_that_were_unused_for_longest_make_room(lambdas: Lambdas) -> None:
    hashes = [lambdas.push({"rule.py": STATEFUL + f"# {n}"}) for n in range(5)]
    for number, sha256 in enumerate(hashes[:4], 1):
        lambdas.invoke(sha256)
        assert lambdas.idle() == number  # as long as there is room, each is kept
    lambdas.invoke(hashes[4])
    assert lambdas.idle() == 4
    assert "seen 2" in lambdas.invoke(hashes[4])[1]
    assert "seen 1" in lambdas.invoke(hashes[0])[1]


class Reports:
    """A Dispatcher that accepts every heartbeat and every result of an attempt."""

    def __init__(self) -> None:
        self.heartbeats = 0
        self.results: list[bodies.Complete] = []

    def heartbeat(self, *call: object, timeout: float) -> bodies.HeartbeatAccepted:
        self.heartbeats += 1
        return bodies.HeartbeatAccepted(lease_expires_at=datetime.now(UTC))

    def log(self, *call: object) -> None:
        pass

    def complete(self, body: bodies.Complete, *call: object) -> None:
        self.results.append(body)


@dataclass
class Stopping:
    """A server of invocations that was told to stop while a function runs."""

    server: InvocationServer
    reports: Reports
    http: httpx.Client
    call: dict[str, Any]


@contextmanager
def stopping(lambdas: Lambdas, directory: Path, drain_seconds: float) -> Iterator[Stopping]:
    waiting = """
        def handler(event, context):
            while not context.task.is_canceled(): pass
    """
    invocation = lambdas.make(lambdas.push({"rule.py": textwrap.dedent(waiting)}))
    invocation = invocation.model_copy(update={"heartbeat_seconds": 0.05})
    reports, stop, socket_path = Reports(), threading.Event(), directory / "invoke.sock"
    runtimes = lambdas.runner.bundles.runtimes
    client = cast("Any", reports)
    server = InvocationServer(
        socket_path, "w", lambda: "token", client, lambdas.runner, runtimes, stop, drain_seconds
    )
    headers = {"X-Trace-Worker-Token": "token", "X-Amz-Invocation-Type": "Event"}
    transport = httpx.HTTPTransport(uds=str(socket_path))
    with httpx.Client(transport=transport, base_url="http://worker", headers=headers) as http:
        call: dict[str, Any] = {
            "url": "/2015-03-31/functions/lambda/invocations",
            "content": invocation.model_dump_json(),
        }
        assert http.post(**call).status_code == 202
        try:
            eventually(lambda: lambdas.services.calls, "the function runs")
            stop.set()
            yield Stopping(server, reports, http, call)
        finally:
            lambdas.services.cancel_requested = True
            server.close()


def test_a_worker_that_stops_lets_invocations_end_and_accepts_no_more(
    lambdas: Lambdas, tmp_path: Path
) -> None:
    with stopping(lambdas, tmp_path, drain_seconds=3600) as scene:
        refused = [scene.http.get("/worker"), scene.http.post(**scene.call)]
        assert [reply.status_code for reply in refused] == [503, 503]
        before = scene.reports.heartbeats
        reports = scene.reports
        eventually(lambda: reports.heartbeats > before + 2 or reports.results, "it goes on")
        lambdas.services.cancel_requested = True
        scene.server.close()
    assert [result.status for result in scene.reports.results] == ["Completed"]


def test_an_invocation_that_does_not_end_in_time_is_interrupted(
    lambdas: Lambdas, tmp_path: Path
) -> None:
    with stopping(lambdas, tmp_path, drain_seconds=0) as scene:
        scene.server.close()
    [result] = scene.reports.results
    assert (result.status, result.error_code) == ("Failed", "worker_stopped")


HOSTILE = """
import json, os, socket

def raw(text):
    host, port = os.environ["AWS_LAMBDA_RUNTIME_API"].split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(text.encode())
        return client.recv(4096).decode().split(" ")[1]

def refused(call):
    try:
        call()
        return "opened"
    except OSError:
        return "refused"

def handler(event, context):
    path = "/2018-06-01/runtime/invocation/"
    end = " HTTP/1.1\\r\\nHost: x\\r\\n"
    print(json.dumps({
        "another id": raw("POST " + path + "x/response" + end + "Content-Length: 2\\r\\n\\r\\n{}"),
        "chunked": raw("POST " + path + "x/response" + end + "Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
        "other path": raw("GET /internal/jwks/task" + end + "\\r\\n"),
        "absolute": raw("GET http://127.0.0.1:80/" + end + "\\r\\n"),
        "host": refused(lambda: socket.create_connection(("127.0.0.1", int(event["config"]["port"])), 2)),
        "outside": refused(lambda: socket.create_connection(("10.0.0.1", 80), 2)),
        "udp": refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "raw": refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW)),
        "ipv6": refused(lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM)),
        "sctp": refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)),
        "netlink": refused(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        "vsock": refused(lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)),
    }))
"""


def test_the_loopback_of_a_function_reaches_nothing_but_its_runtime_api(lambdas: Lambdas) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = {"port": server.getsockname()[1]}
        output = lambdas.invoke(lambdas.push({"rule.py": HOSTILE}), config=config)[1]
    answers = json.loads(output)
    statuses = {"another id": "400", "chunked": "400", "other path": "404", "absolute": "400"}
    refused = ("host", "outside", "udp", "raw", "ipv6", "sctp", "netlink", "vsock")
    assert answers == {**statuses, **dict.fromkeys(refused, "refused")}
