"""Functions in Node: the handlers of bundles, the SDK and the limits, in real sandboxes."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest

from trace_etl.api.task.payload import TaskFunction
from trace_etl.dag.runtimes import shipped_runtimes
from trace_etl.sandbox import node
from trace_etl.sandbox.bubblewrap import BUNDLE, SOCKETS, Shown
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.process import Ended, SandboxedProcess
from trace_etl.worker.functions.bundle_programs import BundleRefused, make_program

NODE = shipped_runtimes().entries["ecs_udf_ts"]
BIG = 2**200 + 1
EVENT = {
    "config": {"at_least": 5},
    "scope": {"start": 0, "end": 9},
    "inputs": [{"name": "receivers"}],
    "outputs": [
        {
            "name": "alerts",
            "dataset_uuid": "u",
            "dataset_version": "v",
            "storage_ref": {"bucket": "b/org", "prefix": "buffers/x y/"},
        }
    ],
    "scratch_ref": {"bucket": "b", "prefix": "scratch/"},
    "export_ref": {"bucket": "b", "prefix": "export/"},
}
ANSWERS: dict[str, object] = {
    "/v1/task/query": {
        "columns": [{"name": "token"}, {"name": "amount"}],
        "rows": [["0xaa", BIG], ["0xbb", 7]],
    },
    "/v1/task/buffer-publish": {},
    "/v1/task/events": {},
    "/v1/task/heartbeat": {"cancel_requested": True},
}
RULE = """
exports.handler = async (event, context) => {
  const task = context.task;
  const rows = await task.query("SELECT * FROM receivers WHERE n >= ?", [task.config.at_least]);
  const all = await task.rows();
  const number = await task.publish(rows.map((row) => ({ ...row, raw: Buffer.from([0, 255]) })));
  await task.emit([{ dataset: "alerts", cursor: 9 }]);
  await task.putObject(task.scratchUrl + "a b.txt", "hello");
  const read = await task.getObject(task.exportUrl + "r");
  const canceled = await task.isCanceled();
  const text = `${number} ${all.length} ${typeof rows[0].amount} ${read} ${canceled} ${task.scope.end}`;
  console.log(text);
};
"""


class Platform(BaseHTTPRequestHandler):
    """Answers the calls of a function, and records them."""

    calls: list[tuple[str, str, bytes]]

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        assert self.headers.get("Transfer-Encoding") is None
        self.calls.append((self.command, self.path, self.rfile.read(length)))
        reply = ANSWERS.get(self.path)
        content = b"object" if reply is None else json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return ""


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[list[tuple[str, str, bytes]]]:
    made: list[tuple[str, str, bytes]] = []
    handler = type("Recorded", (Platform,), {"calls": made})
    directory = tmp_path / "run"
    directory.mkdir()
    with ThreadingUnixStreamServer(str(directory / "broker.sock"), handler) as server:
        (directory / "broker.sock").chmod(0o666)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()


def run(
    tmp_path: Path, files: dict[str, str], handler: str = "rule.handler", **changes: Any
) -> Ended:
    bundle, place = tmp_path / "bundle", tmp_path / "run"
    bundle.mkdir()
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        (bundle / name).write_text(text)
    (place / "event.json").write_text(json.dumps(EVENT))
    function = TaskFunction(bundle="b", sha256="", handler=handler, bundle_url="")
    program = make_program(function, bundle, NODE.model_copy(update=changes))
    program = replace(
        program,
        environment={"TRACE_SOCKET": f"{SOCKETS}/broker.sock"},
        files=[Shown(bundle, BUNDLE), Shown(place, SOCKETS)],
    )
    return SandboxedProcess(program).wait()


@pytest.mark.usefixtures("sandbox")
def test_a_function_uses_every_call_of_the_sdk(
    tmp_path: Path, calls: list[tuple[str, str, bytes]]
) -> None:
    ended = run(tmp_path, {"rule.js": RULE})
    assert ended.output == b"2 2 bigint object true 9\n", ended.output.decode()
    sent = {path: body for _, path, body in calls}
    assert json.loads(sent["/v1/task/query"])["sql"] == 'SELECT * FROM "receivers"'
    published = json.loads(sent["/v1/task/buffer-publish"])
    name = published["batch_uri"].removeprefix("s3://b/org/buffers/x y/")
    assert re.fullmatch(r"batch-[0-9a-f]{16}-00000\.jsonl", name)
    batch = f"/v1/task/objects/b/org/buffers/x%20y/{name}"
    lines = [json.loads(line) for line in sent[batch].splitlines()]
    assert lines[0] == {"token": "0xaa", "amount": BIG, "raw": "0x00ff"}
    assert (published["record_count"], published["batch_size_bytes"]) == (2, len(sent[batch]))
    assert sent["/v1/task/objects/b/scratch/a%20b.txt"] == b"hello"


SAY = 'console.log("ran");'
MODULES = {
    "rule.js": f"exports.handler = (event, context) => {{ {SAY} }};",
    "rule.mjs": f"import {{ Task }} from 'trace-etl'; export const handler = async () => {{ {SAY} }};",
    "rule.cjs": f"exports.handler = (event, context, done) => {{ {SAY} done(null, 1); }};",
    "rule.ts": "import type { FunctionContext } from 'trace-etl';\n"
    f"export const handler = async (event: unknown, context: FunctionContext) => {{ {SAY} }};",
}


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("name", MODULES)
def test_handlers_may_be_any_kind_of_module(tmp_path: Path, name: str) -> None:
    ended = run(tmp_path, {name: MODULES[name]})
    assert (ended.exit_code, ended.output) == (0, b"ran\n"), ended.output.decode()


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"other.js": ""}, b"the bundle has no file rule"),
        ({"rule.js": ""}, b"rule.js exports no function handler"),
        ({"rule.js": "exports.handler = async () => { throw new Error('broken') }"}, b"broken"),
        (
            {"rule.js": "exports.handler = (e, c) => c.task.publish([{ n: NaN }])"},
            b"n is NaN, which JSON cannot hold",
        ),
        (
            {"rule.js": "exports.handler = (e, c) => c.task.publish([{}], 'x')"},
            b"the task has no output x",
        ),
    ],
)
def test_a_failing_function_says_why(tmp_path: Path, files: dict[str, str], message: bytes) -> None:
    ended = run(tmp_path, files)
    assert ended.exit_code == 1 and message in ended.output, ended.output.decode()


@pytest.mark.usefixtures("sandbox")
def test_memory_is_limited_and_web_assembly_works(tmp_path: Path) -> None:
    code = """
        exports.handler = async () => {
            new WebAssembly.Memory({ initial: 1, maximum: 65536 });
            await WebAssembly.instantiate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]));
            console.log("assembled");
            const kept = [];
            while (true) kept.push(Buffer.alloc(1 << 20, 1));
        };
    """
    ended = run(tmp_path, {"rule.js": code}, memory_mib=128)
    assert b"assembled" in ended.output, ended.output.decode()
    assert ended.reason == "memory" or ended.exit_code != 0


@pytest.mark.usefixtures("sandbox")
def test_a_function_can_use_worker_threads(tmp_path: Path) -> None:
    code = """
        const { Worker } = require("node:worker_threads");
        const start = () => new Promise((resolve, reject) => {
            new Worker("1 + 1", { eval: true }).on("exit", resolve).on("error", reject);
        });
        exports.handler = async () => {
            await Promise.all([1, 2, 3, 4].map(start));
            console.log("threads ended");
        };
    """
    assert run(tmp_path, {"rule.js": code}).output == b"threads ended\n"


def test_a_native_runtime_refuses_a_bundle_without_a_program(tmp_path: Path) -> None:
    function = TaskFunction(bundle="b", sha256="", handler="rule.handler", bundle_url="")
    native = shipped_runtimes().entries["ecs_udf_rust"]
    with pytest.raises(BundleRefused, match="no program `bootstrap`"):
        make_program(function, tmp_path, native)


def test_an_old_node_of_the_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "node"
    program.write_text("#!/bin/sh\necho v20.1.2\n")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name, path: str(program))
    with pytest.raises(SandboxUnavailable, match=r"v20.1.2, which is too old; install the extra"):
        node._find_system_node()
    program.write_text("#!/bin/sh\necho v22.18.0\n")
    assert node._find_system_node() == program
