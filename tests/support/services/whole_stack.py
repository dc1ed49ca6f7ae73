"""One embedded stack with its real services and a real JVM, for all tests that need a whole stack."""

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from support.cli import run_command, start_command
from support.waiting import eventually
from trace_etl.cli.client import StackClient
from trace_etl.client import stack_client
from trace_etl.devtools.devchain.chain.blocks import FINALITY_DEPTH
from trace_etl.devtools.devchain.chain.devchain import DevChain
from trace_etl.devtools.devchain.rpc.server import RunningServer, start_server
from trace_etl.lite import stack as lite
from trace_etl.lite import status
from trace_etl.lite.home import Home
from trace_etl.lite.status import ProcessStatus

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart" / "dag.yaml"
DATASETS = ("blocks", "transactions", "logs", "receivers")
LAST_BLOCK = 399
_INSIDE = Path(__file__).parents[1] / "inside"
_ORDER = {
    "blocks": "block_number",
    "transactions": "block_number, transaction_index",
    "logs": "block_number, log_index",
    "receivers": "token, receiver, transfers, amount",
}


@contextmanager
def connect(home: Path) -> Generator[StackClient]:
    """Open a client like the command line's."""
    with closing(stack_client.connect_home(home)) as client:
        yield client


class Stack:
    """A home, and the command line for it."""

    def __init__(self, home: Path, chain: DevChain, node: RunningServer) -> None:
        self.home, self.chain, self.node = home, chain, node

    def trace(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"TRACE_HOME": str(self.home)}
        if words[:2] == ("udf", "test"):  # it configures the logs of its process
            return start_command(*words, **environment)
        if words[0] != "up":
            return run_command(*words, **environment)
        # The DAG sets a short lease; this sets a short delay before the next attempt.
        environment["TRACE_RETRY_INITIAL"] = "PT1S"
        paths = [str(_INSIDE), *os.environ.get("PYTHONPATH", "").split()]
        return start_command(*words, **environment, PYTHONPATH=os.pathsep.join(paths))

    def json(self, *words: str) -> Any:
        done = self.trace(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def tasks(self, dag: str) -> list[dict[str, Any]]:
        """List tasks in process: starting one process per poll would take the cores from Spark."""
        with connect(self.home) as stack:
            return stack.get_all("/v1/tasks", dag=dag)["items"]

    def service(self, name: str) -> ProcessStatus:
        """Return the status of a process of the stack, also without a new process."""
        return next(
            service for service in status.check(Home(self.home)).parts if service.name == name
        )

    @contextmanager
    def node_outage(self) -> Generator[None]:
        """Stop the node while the block runs, then serve the same chain at the same address."""
        self.node.close()
        try:
            yield
        finally:
            port = int(self.node.url.rsplit(":", 1)[1].strip("/"))
            self.node = start_server(self.chain, "127.0.0.1", port)

    def deploy(self, name: str, directory: Path) -> None:
        """Deploy the example under another name, with other published names and a short lease."""
        text = QUICKSTART.read_text().replace("name: quickstart", f"name: {name}")
        text = text.replace("size: 500", "size: 50").replace(
            "jobs:\n", "defaults: {heartbeat_timeout: 4s}\n\njobs:\n", 1
        )
        head, publish = text.split("\npublish:\n")
        for dataset in DATASETS:
            publish = publish.replace(f"- name: {dataset}\n", f"- name: {name}_{dataset}\n")
        file = directory / f"{name}.yaml"
        file.write_text(f"{head}\npublish:\n{publish}")
        done = self.trace("deploy", "--no-check", str(file))
        assert done.returncode == 0, done.stderr

    def rows(self, name: str, dataset: str) -> list[Any]:
        with connect(self.home) as stack:
            return stack.query(f"SELECT * FROM {name}_{dataset} ORDER BY {_ORDER[dataset]}")["rows"]


def wait_until_completed(stack: Stack, name: str) -> None:
    """Wait until every range is ingested and aggregated."""

    def ended() -> bool:
        tasks = stack.tasks(name)
        failed = [t for t in tasks if t["status"] == "Failed" and t["retry_at"] is None]
        assert not failed, failed[0]["error_message"]
        done = [t for t in tasks if t["status"] == "Completed"]
        return len([t for t in done if t["job"] == "receivers"]) == 8 and len(done) == len(tasks)

    eventually(ended, f"all tasks of {name} are completed")


@contextmanager
def running_stack(home: Path, *rpc_urls: str) -> Generator[Stack]:
    """Start a stack on a development chain, and remove it at the end of the block.

    `rpc_urls` are further endpoints, as NAME=URL.
    """
    # The tests ingest up to the finalized block, and may replace the blocks after it.
    length = LAST_BLOCK + 1 + FINALITY_DEPTH
    chain = DevChain(seed=11, length=length, initial=length)
    made = Stack(home, chain, start_server(chain, "127.0.0.1", 0))
    try:
        urls = [word for url in (made.node.url, *rpc_urls) for word in ("--rpc-url", url)]
        started = made.trace("up", "--detach", *urls)
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        lite.purge(Home(home))
        made.node.close()
