"""The whole stack with its real services and a real JVM, through the command line."""

import json
import os
import re
import signal
import ssl
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest

from support.services.whole_stack import Stack
from support.waiting import eventually
from trace_etl import account, landlock
from trace_etl.lite import status as checks
from trace_etl.lite.credentials import passwords
from trace_etl.lite.home import Home
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import SUPERUSER


def connection(stack: Stack) -> dict[str, Any]:
    return json.loads((stack.home / "connection.json").read_text())


def client(stack: Stack) -> httpx.Client:
    context = ssl.create_default_context(cafile=connection(stack)["ca"])
    return httpx.Client(verify=context, trust_env=False)


def test_every_service_answers_and_accepts_the_local_user(stack: Stack) -> None:
    found = connection(stack)
    token = Path(found["user_token"]).read_text().strip()
    with client(stack) as http:
        for name in ("api_url", "internal_url", "query_url"):
            assert http.get(f"{found[name]}/healthz").json()["status"] == "ok"
        url = f"{found['api_url']}/v1/dags"
        assert http.get(url).status_code == 401
        assert http.get(url, headers={"authorization": f"Bearer {token}"}).status_code == 200


OWN_FILES = {
    "dispatcher": [
        *("credentials/dispatcher", "keys/task", "keys/user/public", "tokens/workers", "secrets"),
        "keys/certificates",
        *("tls/ca.pem", "tls/server", "objects", "run/dispatcher", "keys/service/public"),
        "runtimes.yaml",
    ],
    "worker": [
        *("credentials/worker", "tokens/workers", "tls/ca.pem", "objects", "spark/worker"),
        *("run/worker", "runtimes.yaml", "credentials/host", "secrets"),
    ],
    "host": ["credentials/host", "objects/trace/"],
    "functions": [
        *("credentials/functions", "tokens/workers", "tls/ca.pem", "objects", "run/functions"),
        *("runtimes.yaml", "functions"),  # the second: bundles of warm environments
    ],
    "sink": ["credentials/sink", "tls/ca.pem", "objects", "run/sink"],
    "query": [
        *("credentials/query", "keys/user/public", "tls/ca.pem", "tls/server", "objects"),
        "run/query",
    ],
    "scheduler": ["credentials/scheduler", "tls/ca.pem", "tls/server", "run/scheduler"],
    "console": ["tls/ca.pem", "run/console"],
}


def find_host(stack: Stack) -> psutil.Process:
    """Return the process that runs the operators of the worker."""
    below = psutil.Process(stack.service("worker").pid).children(recursive=True)
    [host] = [process for process in below if "trace_etl.worker.hosts.host" in process.cmdline()]
    return host


def ask_to_open(directory: Path, paths: list[str]) -> set[str]:
    """Return the paths that code inside the process with this working directory can open."""
    draft = directory / "probe.new"
    draft.write_text(json.dumps(paths))
    draft.replace(directory / "probe.paths")
    eventually((directory / "probe.opened").exists)
    return set(json.loads((directory / "probe.opened").read_text()))


@pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")
def test_a_process_opens_only_its_own_files(stack: Stack, tmp_path: Path) -> None:
    """Code inside each process tries every file of the stack, and the memory of the others."""
    home = stack.home
    (home / "secrets" / "hook").write_text("secret")
    (home / "objects" / "trace" / "object").write_text("rows")
    foreign = home / "objects" / f"trace-{uuid4()}"  # as the file store names it
    foreign.mkdir()
    (foreign / "object").write_text("rows of another organisation")
    outside = tmp_path / "file"
    outside.write_text("of the user")
    pids = {service.name: service.pid for service in checks.check(Home(home)).parts}
    pids["supervisor"] = connection(stack)["supervisor_pid"]
    host = find_host(stack)
    pids["host"] = host.pid
    files = [path for path in home.rglob("*") if path.is_file() and "postgres" not in path.parts]
    stored = [path for path in files if "probe" not in path.name and "spark" not in path.parts]
    postgres = (home / "postgres").resolve() / "data" / "PG_VERSION"
    for name, own in OWN_FILES.items():
        memory = [f"/proc/{pid}/{file}" for pid in pids.values() for file in ("environ", "mem")]
        directory = Path(host.cwd()) if name == "host" else home / "run" / name
        asked = [*map(str, stored), str(outside), str(postgres), *memory]
        opened = ask_to_open(directory, asked)
        expected = {str(path) for path in stored if str(path.relative_to(home)).startswith((*own,))}
        assert len(expected) >= len(own) - 2, f"{name}: its files do not exist"
        assert {path for path in opened if not path.startswith("/proc/")} == expected, name
        # A worker starts its host, so it may look into it. The host cannot look into the worker.
        visible = {"worker", "host"} if name == "worker" else {name}
        assert {path for path in opened if path.startswith("/proc/")} <= {
            f"/proc/{pids[other]}/{file}" for other in visible for file in ("environ", "mem")
        }
    isolation = {service.name: service.isolation for service in checks.check(Home(home)).parts}
    assert {isolation[name] for name in OWN_FILES if name != "host"} == {"landlock"}


@pytest.mark.skipif(os.geteuid() != 0 or not landlock.version(), reason="needs root and Landlock")
def test_an_operator_host_of_root_has_an_account_beside_landlock(stack: Stack) -> None:
    host = find_host(stack)
    tree = [host, *host.children(recursive=True)]
    assert {uid for process in tree for uid in process.uids()} <= {*account.UIDS}
    assert "NoNewPrivs:\t1" in Path(f"/proc/{host.pid}/status").read_text()


def test_each_process_knows_only_its_own_credentials(stack: Stack) -> None:
    for name in OWN_FILES:
        process = find_host(stack) if name == "host" else psutil.Process(stack.service(name).pid)
        environment = process.environ()
        named = re.findall(r"credentials/(\w+)", " ".join(environment.values()))
        assert set(named) <= ({"worker", "host"} if name == "worker" else {name})
        dsns = [value for key, value in environment.items() if key.endswith("_DSN")]
        assert all("require_auth=scram-sha-256" in dsn for dsn in dsns)
    roles = {
        path.parent.name: set(passwords.read(path))
        for path in stack.home.glob("credentials/*/pgpass")
    }
    assert roles.pop("supervisor") == {SUPERUSER, *databases.ROLES}
    assert roles == {
        "dispatcher": {databases.STATE, databases.QUEUE},
        "worker": {databases.QUEUE},
        "host": {databases.DATA},
        "functions": {databases.QUEUE},
        "sink": {databases.DATA, databases.QUEUE},
        "query": {databases.READER, databases.DATA_READER},
    }


def test_an_operator_host_gets_no_settings_of_workers(stack: Stack) -> None:
    environment = find_host(stack).environ()
    settings = {name for name in environment if name.startswith("TRACE_")}
    withheld = ("WORKER", "QUEUE", "SECRET", "DISPATCHER", "TLS", "READY", "RUNTIMES", "STATE")
    assert not [name for name in settings if any(word in name for word in withheld)]
    assert "TRACE_DATA_DSN" in settings


def test_a_killed_sink_is_restarted(stack: Stack) -> None:
    eventually(lambda: stack.service("sink").health == "healthy")
    os.kill(stack.service("sink").pid, signal.SIGKILL)
    eventually(lambda: stack.service("sink").restarts == 1)
    eventually(lambda: stack.service("sink").health == "healthy")
    assert (stack.home / "logs" / "sink.log").read_text().count('"sink_ready"') == 2
