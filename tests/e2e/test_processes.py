"""The whole stack with its real services and a real JVM, through the command line."""

import json
import os
import re
import signal
import ssl
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.waiting import eventually
from support.whole_stack import Stack
from trace_etl import landlock
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
        *("run/worker", "runtimes.yaml"),
    ],
    "functions": [
        *("credentials/functions", "tokens/workers", "tls/ca.pem", "objects", "run/functions"),
        "runtimes.yaml",
    ],
    "sink": ["credentials/sink", "tls/ca.pem", "objects", "run/sink"],
    "query": [
        *("credentials/query", "keys/user/public", "tls/ca.pem", "tls/server", "objects"),
        "run/query",
    ],
    "scheduler": ["credentials/scheduler", "tls/ca.pem", "tls/server", "run/scheduler"],
}


def ask_to_open(home: Path, name: str, paths: list[str]) -> set[str]:
    """Return the paths that code inside a process of the stack can open."""
    directory = home / "run" / name
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
    outside = tmp_path / "file"
    outside.write_text("of the user")
    pids = {service.name: service.pid for service in checks.check(Home(home)).parts}
    pids["supervisor"] = connection(stack)["supervisor_pid"]
    files = [path for path in home.rglob("*") if path.is_file() and "postgres" not in path.parts]
    stored = [path for path in files if "probe" not in path.name and "spark" not in path.parts]
    postgres = (home / "postgres").resolve() / "data" / "PG_VERSION"
    for name, own in OWN_FILES.items():
        memory = [f"/proc/{pid}/{file}" for pid in pids.values() for file in ("environ", "mem")]
        opened = ask_to_open(home, name, [*map(str, stored), str(outside), str(postgres), *memory])
        expected = {str(path) for path in stored if str(path.relative_to(home)).startswith((*own,))}
        assert len(expected) >= len(own) - 2, f"{name}: its files do not exist"
        assert {path for path in opened if not path.startswith("/proc/")} == expected, name
        assert {path for path in opened if path.startswith("/proc/")} <= {
            f"/proc/{pids[name]}/environ",
            f"/proc/{pids[name]}/mem",
        }
    isolation = {service.name: service.isolation for service in checks.check(Home(home)).parts}
    assert {isolation[name] for name in OWN_FILES} == {"landlock"}


def test_each_process_knows_only_its_own_credentials(stack: Stack) -> None:
    for name in OWN_FILES:
        environment = psutil.Process(stack.service(name).pid).environ()
        named = re.findall(r"credentials/(\w+)", " ".join(environment.values()))
        assert set(named) <= {name}
        dsns = [value for key, value in environment.items() if key.endswith("_DSN")]
        assert all("require_auth=scram-sha-256" in dsn for dsn in dsns)
    roles = {
        path.parent.name: set(passwords.read(path))
        for path in stack.home.glob("credentials/*/pgpass")
    }
    assert roles.pop("supervisor") == {SUPERUSER, *databases.ROLES}
    assert roles == {
        "dispatcher": {databases.STATE, databases.QUEUE},
        "worker": {databases.DATA, databases.QUEUE},
        "functions": {databases.QUEUE},
        "sink": {databases.DATA, databases.QUEUE},
        "query": {databases.READER, databases.DATA_READER},
    }


def test_a_killed_sink_is_restarted(stack: Stack) -> None:
    eventually(lambda: stack.service("sink").health == "healthy")
    os.kill(stack.service("sink").pid, signal.SIGKILL)
    eventually(lambda: stack.service("sink").restarts == 1)
    eventually(lambda: stack.service("sink").health == "healthy")
    assert (stack.home / "logs" / "sink.log").read_text().count('"sink_ready"') == 2
