"""The parts of a stack. A part is one process: its command, environment and readiness probe."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trace_etl.lite.configuration import Configuration
from trace_etl.lite.connection import StackConnection
from trace_etl.lite.credentials.keys import LOCAL_ORG
from trace_etl.lite.home import Home
from trace_etl.lite.jvm import JavaHome
from trace_etl.lite.postgres.account import Account
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.lite.processes import probes
from trace_etl.lite.processes.ports import LOOPBACK


@dataclass(frozen=True)
class Part:
    """One supervised process."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    is_ready: probes.Probe
    where: str = ""
    after: tuple[str, ...] = ()
    on_ready: Callable[[], object] | None = None
    account: Account | None = None
    directory: str = "/"
    stop_with: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGKILL)
    grace: float = 6.0
    ready_within: float = 60.0


@dataclass(frozen=True)
class Blueprint:
    """Settings that the parts of one start share."""

    home: Home
    configuration: Configuration
    connection: StackConnection
    dsns: Dsns
    jvm: JavaHome
    workers: int = 1

    def port(self, name: str) -> str:
        return str(self.configuration.ports[name].number)


def postgres_part(server: EmbeddedPostgres, provision: Callable[[], object]) -> Part:
    """Describe the Postgres process. `provision` creates databases and roles after each start."""
    dsn = server.server().admin_dsn()
    return Part(
        name="postgres",
        argv=tuple(server.command()),
        environment=server.environment,
        is_ready=probes.postgres(dsn),
        where=f"{LOOPBACK}:{server.port}",
        on_ready=provision,
        account=server.account,
        # Fast, then immediate shutdown: SIGTERM would wait for every client to disconnect.
        stop_with=(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL),
    )


def service_parts(plan: Blueprint, inherited: Mapping[str, str]) -> list[Part]:
    """Describe the service processes, each with only the environment that it needs."""
    parts = [
        _dispatcher(plan),
        *(_worker(plan, number) for number in range(1, plan.workers + 1)),
        _sink(plan),
        _query(plan),
        _scheduler(plan),
    ]
    # A setting of one part must not reach another part through the user's shell.
    ours = {name for part in parts for name in part.environment}
    base = {name: value for name, value in inherited.items() if name not in ours}
    return [replace(part, environment={**base, **part.environment}) for part in parts]


def inherited_environment() -> dict[str, str]:
    """Return the environment of the user: PATH, PYTHONPATH and settings that the stack does not set."""
    return dict(os.environ)


def _service(plan: Blueprint, module: str, environment: Mapping[str, str], name: str = "") -> Part:
    common = {
        "TRACE_HOME": str(plan.home.path),
        "TRACE_TLS_CA": plan.connection.ca,
        "PYTHONUNBUFFERED": "1",
    }
    return Part(
        name=name or module,
        # -P: a file in the working directory must not shadow a module.
        argv=(sys.executable, "-P", "-m", f"trace_etl.{module}"),
        environment={**common, **environment},
        is_ready=probes.alive,
        directory=str(plan.home.run),
        after=("dispatcher",),
    )


def _server_tls(home: Home) -> dict[str, str]:
    return {
        "TRACE_TLS_CERT": str(home.tls / "server.pem"),
        "TRACE_TLS_KEY": str(home.tls / "server.key"),
    }


def _dispatcher(plan: Blueprint) -> Part:
    home, urls = plan.home, plan.connection
    environment = {
        **_server_tls(home),
        "TRACE_STATE_DSN": plan.dsns.state,
        "TRACE_QUEUE_DSN": plan.dsns.queue,
        "TRACE_API_HOST": LOOPBACK,
        "TRACE_API_PORT": plan.port("api"),
        "TRACE_INTERNAL_HOST": LOOPBACK,
        "TRACE_INTERNAL_PORT": plan.port("internal"),
        "TRACE_TASK_KEYS_DIR": str(home.task_keys),
        "TRACE_USER_KEYS_DIR": str(home.user_keys),
        "TRACE_WORKER_TOKENS_FILE": str(home.worker_token),
        "TRACE_OBJECTS_URL": home.objects.as_uri(),
        "TRACE_SECRETS_DIR": str(home.secrets),
        "TRACE_ORG_ID": LOCAL_ORG,
    }
    return replace(
        _service(plan, "dispatcher", environment),
        is_ready=probes.https(urls.ca, urls.api_url, urls.internal_url),
        where=urls.api_url,
        after=("postgres",),
    )


def _worker(plan: Blueprint, number: int) -> Part:
    home = plan.home
    name = "worker" if plan.workers == 1 else f"worker-{number}"
    ready_file = home.run / f"{name}.ready"
    environment = {
        "TRACE_DISPATCHER_URL": plan.connection.internal_url,
        "TRACE_WORKER_TOKEN_FILE": str(home.worker_token),
        "TRACE_QUEUE_DSN": plan.dsns.queue,
        "TRACE_DATA_DSN": plan.dsns.data,
        "TRACE_OBJECTS_URL": home.objects.as_uri(),
        "TRACE_SPARK_DIR": str(home.spark / name),
        "TRACE_JAVA_HOME": str(plan.jvm.home),
        "TRACE_RPC_POOLS": json.dumps(plan.configuration.rpc_pools),
        "TRACE_WORKER_ID": name,
        "TRACE_READY_FILE": str(ready_file),
    }
    return replace(
        _service(plan, "worker", environment, name),
        is_ready=probes.announced(ready_file),
        grace=8.0,
    )


def _sink(plan: Blueprint) -> Part:
    home = plan.home
    ready_file = home.run / "sink.ready"
    environment = {
        "TRACE_DISPATCHER_URL": plan.connection.internal_url,
        "TRACE_WORKER_TOKEN_FILE": str(home.worker_token),
        "TRACE_QUEUE_DSN": plan.dsns.queue,
        "TRACE_DATA_DSN": plan.dsns.data,
        "TRACE_OBJECTS_URL": home.objects.as_uri(),
        "TRACE_READY_FILE": str(ready_file),
    }
    return replace(_service(plan, "sink", environment), is_ready=probes.announced(ready_file))


def _query(plan: Blueprint) -> Part:
    environment = {
        **_server_tls(plan.home),
        "TRACE_STATE_DSN": plan.dsns.reader,
        "TRACE_DATA_DSN": plan.dsns.data_reader,
        "TRACE_QUERY_HOST": LOOPBACK,
        "TRACE_QUERY_PORT": plan.port("query"),
        "TRACE_USER_KEYS_DIR": str(plan.home.user_keys),
        "TRACE_OBJECTS_URL": plan.home.objects.as_uri(),
        "TRACE_ORG_ID": LOCAL_ORG,
    }
    return replace(
        _service(plan, "query", environment),
        is_ready=probes.https(plan.connection.ca, plan.connection.query_url),
        where=plan.connection.query_url,
        after=("postgres",),
    )


def _scheduler(plan: Blueprint) -> Part:
    environment = {
        **_server_tls(plan.home),
        "TRACE_API_URL": plan.connection.api_url,
        "TRACE_USER_TOKEN_FILE": str(plan.home.user_token),
        "TRACE_SCHEDULER_HOST": LOOPBACK,
        "TRACE_SCHEDULER_PORT": plan.port("scheduler"),
    }
    where = f"https://{LOOPBACK}:{plan.port('scheduler')}"
    return replace(_service(plan, "scheduler", environment), where=where)
