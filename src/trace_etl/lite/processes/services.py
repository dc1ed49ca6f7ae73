"""The services of a stack. A service is one process: its command, environment and readiness probe."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trace_etl.lite.configuration import Configuration
from trace_etl.lite.connection import StackConnection
from trace_etl.lite.credentials import keys, passwords, private_files
from trace_etl.lite.credentials.keys import LOCAL_ORG
from trace_etl.lite.home import Home
from trace_etl.lite.isolation import Access
from trace_etl.lite.jvm import JavaHome
from trace_etl.lite.objects import StackObjects
from trace_etl.lite.postgres.account import Account
from trace_etl.lite.postgres.databases import DATA, DATA_READER, QUEUE, READER, STATE, Dsns, dsns
from trace_etl.lite.postgres.server import EmbeddedPostgres, Server
from trace_etl.lite.processes import forks, probes
from trace_etl.lite.processes.ports import LOOPBACK
from trace_etl.objects.settings import explain_shared_keys
from trace_etl.secret_store import VARIABLE

ROLES: Mapping[str, tuple[str, ...]] = {
    "dispatcher": (STATE, QUEUE),
    "worker": (QUEUE,),
    "host": (DATA,),
    "functions": (QUEUE,),
    "sink": (DATA, QUEUE),
    "query": (READER, DATA_READER),
}
"""The Postgres roles that each service uses."""


@dataclass(frozen=True)
class StackService:
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
    access: Access | None = None
    """The paths that the process may use; None if nothing restricts it."""
    is_forked: bool = False
    """Whether the fork server starts it: a module, the last word of `argv`, with a function `main`."""
    restricts_itself: bool = False
    """Whether the process applies `access` itself, after it started a child with more rights."""
    warning: str | None = None
    """What an administrator should know of this process, for `trace up` and `trace status`."""
    stop_with: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGKILL)
    grace: float = 6.0
    ready_within: float = 60.0

    @property
    def isolation(self) -> str:
        """What keeps the process from the files of other services, for `trace status`."""
        other = self.account is not None and not self.account.is_ours
        kinds = [f"uid {self.account.uid}"] if self.account and other else []
        return ", ".join([*kinds, *(["landlock"] if self.access else [])]) or "none"


@dataclass(frozen=True)
class Blueprint:
    """Settings that the services of one start share."""

    home: Home
    configuration: Configuration
    connection: StackConnection
    server: Server
    jvm: JavaHome
    temporary: Path
    access: Access | None
    """The paths that all services may use; None if services cannot be restricted."""
    objects: StackObjects
    workers: int = 1
    host_view: Access | None = None
    """The paths that operator hosts see as another account, if services cannot be restricted."""

    def port(self, name: str) -> str:
        return str(self.configuration.ports[name].number)

    def dsns(self, service: str) -> Dsns:
        """Return connection strings that name the password file of this service."""
        return dsns(replace(self.server, passfile=self.home.credentials(service) / "pgpass"))


def postgres_service(
    server: EmbeddedPostgres, provision: Callable[[], object], access: Access | None
) -> StackService:
    """Describe the Postgres process. `provision` creates databases and roles after each start."""
    dsn = server.server().admin_dsn()
    return StackService(
        name="postgres",
        argv=tuple(server.command()),
        environment=server.environment,
        is_ready=probes.postgres(dsn),
        where=f"{LOOPBACK}:{server.port}",
        on_ready=provision,
        account=server.account,
        directory=str(server.data),
        access=access and access.add(write=[server.directory]),
        # Fast, then immediate shutdown: SIGTERM would wait for every client to disconnect.
        stop_with=(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL),
    )


def write_credentials(home: Home, passfile: Path) -> None:
    """Give each service the credentials that it uses, in a directory of its own."""
    for service, roles in ROLES.items():
        passwords.share(passfile, home.credentials(service) / "pgpass", roles)
    keys.ensure_service_tokens(home.service_keys, home.service_tokens)


def list_services(plan: Blueprint, inherited: Mapping[str, str]) -> list[StackService]:
    """Describe the service processes, each with only the environment that it needs."""
    services = [
        _describe_dispatcher(plan),
        *(
            replace(
                _describe_worker(plan, number),
                warning=warn_of_shared_keys(plan.objects.url, inherited),
            )
            for number in range(1, plan.workers + 1)
        ),
        _describe_functions(plan),
        _describe_sink(plan),
        _describe_query_service(plan),
        _describe_scheduler(plan),
        _describe_console(plan),
    ]
    # A setting of one service must not reach another service through the user's shell.
    ours = {name for service in services for name in service.environment}
    base = {name: value for name, value in inherited.items() if name not in ours}
    return [
        replace(service, environment={**_limit_keys(service, base), **service.environment})
        for service in services
    ]


def _limit_keys(service: StackService, inherited: Mapping[str, str]) -> dict[str, str]:
    """Give AWS credentials only to services that use objects in S3, and secrets to those that pass them on."""
    uses_s3 = service.environment.get("TRACE_OBJECTS_URL", "").startswith("s3://")
    withheld = () if uses_s3 else ("AWS_",)
    if "TRACE_SECRETS_DIR" not in service.environment:
        withheld = (*withheld, VARIABLE)
    return {name: value for name, value in inherited.items() if not name.startswith(withheld)}


def inherited_environment() -> dict[str, str]:
    """Return the environment of the user: PATH, PYTHONPATH and settings that the stack does not set."""
    return dict(os.environ)


def _describe_service(
    plan: Blueprint,
    module: str,
    environment: Mapping[str, str],
    name: str = "",
    *,
    read: Sequence[Path] = (),
    write: Sequence[Path] = (),
    credentials: str = "",
) -> StackService:
    """Describe a service. It can read `read` and write `write` beside its own directories."""
    name, home = name or module, plan.home
    directory = home.make_service_directory(name)
    temporary = private_files.make_directory(plan.temporary / name)
    ca = home.tls / "ca.pem"
    common = {
        "TRACE_HOME": str(home.path),
        "TRACE_TLS_CA": str(ca),
        "TMPDIR": str(temporary),
        "PYTHONUNBUFFERED": "1",
    }
    access = plan.access and plan.access.add(
        read=[ca, home.credentials(credentials or module), *read],
        write=[directory, temporary, *write],
    )
    return StackService(
        name=name,
        # -P: a file in the working directory must not shadow a module.
        argv=(sys.executable, "-P", "-m", f"trace_etl.{module}"),
        environment={**common, **environment},
        is_ready=probes.alive,
        directory=str(directory),
        access=access,
        is_forked=forks.can_fork(),
        after=("dispatcher",),
    )


def _set_server_tls(home: Home) -> dict[str, str]:
    certificate, key = _find_server_certificate(home)
    return {"TRACE_TLS_CERT": str(certificate), "TRACE_TLS_KEY": str(key)}


def _find_server_certificate(home: Home) -> tuple[Path, Path]:
    return home.tls / "server.pem", home.tls / "server.key"


def _set_runtimes_file(home: Home) -> dict[str, str]:
    """Name the file with the runtimes of this stack, if it has one."""
    return {"TRACE_RUNTIMES_FILE": str(home.runtimes)} if home.runtimes.exists() else {}


def _describe_dispatcher(plan: Blueprint) -> StackService:
    home, urls, dsns = plan.home, plan.connection, plan.dsns("dispatcher")
    environment = {
        **_set_server_tls(home),
        "TRACE_STATE_DSN": dsns.state,
        "TRACE_QUEUE_DSN": dsns.queue,
        "TRACE_API_HOST": LOOPBACK,
        "TRACE_API_PORT": plan.port("api"),
        "TRACE_INTERNAL_HOST": LOOPBACK,
        "TRACE_INTERNAL_PORT": plan.port("internal"),
        "TRACE_TASK_KEYS_DIR": str(home.task_keys),
        "TRACE_CERTIFICATE_KEYS_DIR": str(home.certificate_keys),
        "TRACE_USER_KEYS_DIR": str(home.user_public_keys),
        "TRACE_SERVICE_KEYS_DIR": str(home.service_public_keys),
        "TRACE_WORKER_TOKENS_FILE": str(home.worker_token),
        **plan.objects.settings,
        "TRACE_SECRETS_DIR": str(home.secrets),
        "TRACE_INVOKER_SOCKET": str(_find_functions_directory(home) / "invoke.sock"),
        "TRACE_ORG_ID": LOCAL_ORG,
        **_set_runtimes_file(home),
    }
    read = [
        home.runtimes,
        *_find_server_certificate(home),
        home.task_keys,
        home.certificate_keys,
        home.user_public_keys,
        home.service_public_keys,
        home.worker_token.parent,
        home.secrets,
    ]
    read += plan.objects.read
    return replace(
        _describe_service(plan, "dispatcher", environment, read=read, write=[home.objects]),
        is_ready=probes.http(urls.ca, urls.api_url, urls.internal_url),
        where=urls.api_url,
        after=("postgres",),
    )


def _describe_worker(plan: Blueprint, number: int) -> StackService:
    """Describe a worker. Its operator hosts can use a part of its files only."""
    home = plan.home
    name = "worker" if plan.workers == 1 else f"worker-{number}"
    ready_file, spark = home.ready_file(name), private_files.make_directory(home.spark / name)
    shared = [plan.jvm.home.resolve(), home.programs, *plan.objects.read]
    operators = home.credentials("host")
    hosts, view = (
        access and access.add(read=[operators, *shared]) for access in (plan.access, plan.host_view)
    )
    environment = {
        "TRACE_DISPATCHER_URL": plan.connection.internal_url,
        "TRACE_WORKER_TOKEN_FILE": str(home.worker_token),
        "TRACE_QUEUE_DSN": plan.dsns("worker").queue,
        "TRACE_DATA_DSN": plan.dsns("host").data,
        **plan.objects.settings,
        "TRACE_SPARK_DIR": str(spark),
        "TRACE_JAVA_HOME": str(plan.jvm.home),
        "TRACE_PROGRAMS_DIR": str(home.programs),
        "TRACE_RPC_POOLS": json.dumps(plan.configuration.rpc_pools),
        "TRACE_WORKER_ID": name,
        "TRACE_READY_FILE": str(ready_file),
        "TRACE_SECRETS_DIR": str(home.secrets),
        "TRACE_ORG_ID": LOCAL_ORG,
        "TRACE_HOST_PATHS": json.dumps(asdict(hosts)) if hosts else "null",
        "TRACE_HOST_VIEW": json.dumps(asdict(view)) if view else "null",
        **_set_runtimes_file(home),
    }
    read = [home.runtimes, home.worker_token.parent, home.secrets, operators, *shared]
    service = _describe_service(
        plan, "worker", environment, name, read=read, write=[home.objects, spark]
    )
    if service.access is not None and os.geteuid() == 0:
        # Its first child gives hosts an account of their own, which Landlock forbids.
        allowed = json.dumps(asdict(service.access))
        environment = {**service.environment, "TRACE_ALLOWED_PATHS": allowed}
        service = replace(service, environment=environment, restricts_itself=True)
    return replace(service, is_ready=probes.announced(ready_file), grace=15.0)


def warn_of_shared_keys(url: str, inherited: Mapping[str, str]) -> str | None:
    """Say that operators use the keys of the stack for its objects. None if they do not."""
    role = inherited.get("TRACE_CREDENTIALS_ROLE_ARN")
    master = inherited.get("TRACE_SPARK_MASTER", "local")
    reason = explain_shared_keys(url, role, master)
    if reason is None:
        return None
    return (
        f"Operators on Spark use the keys of the stack for {url}: {reason}. They can reach the"
        " objects of all organisations (docs/how-to/s3.md)."
    )


def _find_functions_directory(home: Home) -> Path:
    return private_files.make_directory(home.path / "functions")


def _describe_functions(plan: Blueprint) -> StackService:
    """Describe the worker of user-defined functions.

    It restricts itself: its first child mounts the file systems of sandboxes, which Landlock forbids.
    """
    home = plan.home
    directory = _find_functions_directory(home)
    environment = {
        "TRACE_DISPATCHER_URL": plan.connection.internal_url,
        "TRACE_QUERY_URL": plan.connection.query_url,
        "TRACE_WORKER_TOKEN_FILE": str(home.worker_token),
        "TRACE_QUEUE_DSN": plan.dsns("functions").queue,
        **plan.objects.settings,
        "TRACE_FUNCTIONS_DIR": str(directory),
        "TRACE_INVOKER_SOCKET": str(directory / "invoke.sock"),
        "TRACE_WORKER_ID": "functions",
        "TRACE_READY_FILE": str(home.ready_file("functions")),
        **_set_runtimes_file(home),
    }
    service = _describe_service(
        plan,
        "worker.functions",
        environment,
        "functions",
        read=[home.runtimes, home.worker_token.parent, home.objects, *plan.objects.read],
        write=[directory],
        credentials="functions",
    )
    allowed = json.dumps(asdict(service.access)) if service.access else "null"
    return replace(
        service,
        environment={**service.environment, "TRACE_ALLOWED_PATHS": allowed},
        is_ready=probes.announced(home.ready_file("functions")),
        restricts_itself=True,
        grace=8.0,
    )


def _describe_sink(plan: Blueprint) -> StackService:
    home, dsns = plan.home, plan.dsns("sink")
    environment = {
        "TRACE_DISPATCHER_URL": plan.connection.internal_url,
        "TRACE_SERVICE_TOKEN_FILE": str(home.service_tokens["sink"]),
        "TRACE_QUEUE_DSN": dsns.queue,
        "TRACE_DATA_DSN": dsns.data,
        **plan.objects.settings,
        "TRACE_READY_FILE": str(home.ready_file("sink")),
    }
    return replace(
        _describe_service(
            plan,
            "sink",
            environment,
            read=[home.objects, *plan.objects.read],
        ),
        is_ready=probes.announced(home.ready_file("sink")),
    )


def _describe_query_service(plan: Blueprint) -> StackService:
    home, dsns = plan.home, plan.dsns("query")
    environment = {
        **_set_server_tls(home),
        "TRACE_STATE_DSN": dsns.reader,
        "TRACE_DATA_DSN": dsns.data_reader,
        "TRACE_QUERY_HOST": LOOPBACK,
        "TRACE_QUERY_PORT": plan.port("query"),
        "TRACE_USER_KEYS_DIR": str(home.user_public_keys),
        **plan.objects.settings,
        "TRACE_DISPATCHER_URL": plan.connection.internal_url,
    }
    read = [
        *_find_server_certificate(home),
        home.user_public_keys,
        home.objects,
        *plan.objects.read,
    ]
    return replace(
        _describe_service(plan, "query", environment, read=read, write=[home.scratch]),
        is_ready=probes.http(plan.connection.ca, plan.connection.query_url),
        where=plan.connection.query_url,
        after=("postgres",),
    )


def _describe_scheduler(plan: Blueprint) -> StackService:
    home = plan.home
    environment = {
        **_set_server_tls(home),
        "TRACE_API_URL": plan.connection.api_url,
        "TRACE_SERVICE_TOKEN_FILE": str(home.service_tokens["scheduler"]),
        "TRACE_SCHEDULER_HOST": LOOPBACK,
        "TRACE_SCHEDULER_PORT": plan.port("scheduler"),
    }
    where = f"https://{LOOPBACK}:{plan.port('scheduler')}"
    service = _describe_service(plan, "scheduler", environment, read=_find_server_certificate(home))
    return replace(service, where=where)


def _describe_console(plan: Blueprint) -> StackService:
    urls = plan.connection
    url = urls.console_url or ""
    environment = {
        "TRACE_API_URL": urls.api_url,
        "TRACE_QUERY_URL": urls.query_url,
        "TRACE_CONSOLE_HOST": LOOPBACK,
        "TRACE_CONSOLE_PORT": plan.port("console"),
    }
    return replace(
        _describe_service(plan, "console", environment),
        is_ready=probes.http(urls.ca, url),
        where=url,
    )
