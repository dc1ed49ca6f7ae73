"""A Query Service in a thread, over real HTTPS, and datasets to query."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from support.services.dispatcher import Secrets, _client
from support.services.postgres import Templates, copied, sql
from support.services.service_thread import running_on_thread, wait_until_listening
from trace_etl.dag.parsing import parse_dag
from trace_etl.http.server.listeners import Listener, Tls, serve
from trace_etl.lite.credentials import keys
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.processes.ports import free_port
from trace_etl.model.storage import attempt_prefix, generation_prefix
from trace_etl.query.service import open_app
from trace_etl.query.settings import QuerySettings
from trace_etl.state.catalog import dags
from trace_etl.state.db.connection import Connection
from trace_etl.state.rollout import deploy as deploys

ORG = UUID("00000000-0000-0000-0000-000000000001")


@dataclass(frozen=True)
class Warehouse:
    """Published datasets, committed like the Dispatcher commits them."""

    dsns: Dsns
    objects: Path

    def deploy(self, text: str, org_id: UUID = ORG) -> None:
        async def run() -> None:
            async with await Connection.connect(self.dsns.state) as conn:
                dag = parse_dag(text)
                base = await dags.get_deployed_version(conn, org_id, dag.name)
                await deploys.deploy(conn, org_id, dag, text, base=base)

        asyncio.run(run())

    def new_reader(self, secrets: Secrets) -> str:
        """Create a user with the role `reader`. Returns a token."""
        name = f"r{uuid4().hex[:12]}"
        sql(self.dsns.state, "INSERT INTO users (name) VALUES (%s)", (name,))
        sql(
            self.dsns.state,
            "INSERT INTO memberships (org_id, user_name, role) VALUES (%s, %s, 'reader')",
            (ORG, name),
        )
        key = keys.ensure_user_key(secrets.directory / "user")
        return keys.sign_user_token(key, name, now=datetime.now(UTC))

    def commit(
        self,
        name: str,
        start: int,
        end: int,
        rows: pa.Table | None,
        *,
        org_id: UUID = ORG,
        **marker: Any,
    ) -> Path:
        """Write a partition's file and marker, and commit it. Returns its directory."""
        (dataset, version) = self.generation(name, org_id)
        task = uuid4()
        ref = {
            "scheme": "file",
            "bucket": "trace",
            "prefix": attempt_prefix(generation_prefix(dataset, version), task, 1),
            "glob": "*.parquet",
        }
        directory = self.objects / "trace" / ref["prefix"]
        directory.mkdir(parents=True)
        files = []
        if rows is not None:
            file = directory / f"{name}_{start}_{end}.parquet"
            pq.write_table(rows, file)
            files = [{"name": file.name, "rows": rows.num_rows, "bytes": file.stat().st_size}]
        count = rows.num_rows if rows is not None else 0
        columns = marker.pop("schema", [])
        (directory / "_SUCCESS").write_text(
            json.dumps({"files": files, "rows": count, "bytes": 1, "schema": columns, **marker})
        )
        sql(
            self.dsns.state,
            """INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start,
                   range_end, storage_ref, row_count, byte_count, columns, task_id, attempt)
               SELECT dataset_version, generation_no, %s, %s, %s, %s, %s, 1, %s, %s, 1
                 FROM dataset_versions WHERE dataset_version = %s""",
            (
                *(f"{start}-{end}", start, end, json.dumps(ref), count),
                *(json.dumps(columns), task, version),
            ),
        )
        return directory

    def generation(self, name: str, org_id: UUID = ORG) -> tuple[UUID, UUID]:
        (row,) = sql(
            self.dsns.state,
            """SELECT d.dataset_uuid, d.dataset_version FROM publications p
                 JOIN datasets d USING (dataset_uuid) WHERE p.name = %s AND p.org_id = %s""",
            (name, org_id),
        )
        return row[0], row[1]


@dataclass(frozen=True)
class LiveQuery:
    """A running Query Service."""

    cfg: QuerySettings
    secrets: Secrets

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.cfg.query_port}"

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token or self.secrets.user_token}"}
        return _client(self.secrets.ca, self.url, headers)

    def send_raw(self, path: str, body: bytes, headers: dict[str, str]) -> socket.socket:
        """Send a request on a connection that the test can close."""
        host = "127.0.0.1"
        context = ssl.create_default_context(cafile=str(self.secrets.ca))
        plain = socket.create_connection((host, self.cfg.query_port))
        channel = context.wrap_socket(plain, server_hostname=host)
        sent = {"Host": host, "Content-Type": "application/json", **headers}
        lines = [f"{name}: {value}\r\n" for name, value in sent.items()]
        head = f"POST {path} HTTP/1.1\r\n{''.join(lines)}Content-Length: {len(body)}\r\n\r\n"
        channel.sendall(head.encode() + body)
        return channel

    def ask(self, sql: str, **fields: Any) -> dict[str, Any]:
        """Run a query that must succeed. Returns the answer."""
        with self.client() as http:
            answer = http.post("/v1/query", json={"sql": sql, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, sql: str, status: int = 422) -> dict[str, Any]:
        """Run a query that must fail. Returns the problem document."""
        with self.client() as http:
            answer = http.post("/v1/query", json={"sql": sql})
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.json()


def settings(secrets: Secrets, dsns: Dsns, objects: Path, **changes: Any) -> QuerySettings:
    values: dict[str, Any] = {
        "state_dsn": dsns.reader,
        "data_dsn": dsns.data_reader,
        "query_port": free_port(),
        "tls_cert": secrets.directory / "tls" / "server.pem",
        "tls_key": secrets.directory / "tls" / "server.key",
        "user_keys_dir": secrets.directory / "user" / "public",
        "objects_url": objects.as_uri(),
    }
    return QuerySettings(**{**values, **changes})


@dataclass(frozen=True)
class QuerySetup:
    """A Query Service and the datasets behind it."""

    query: LiveQuery
    warehouse: Warehouse


@contextmanager
def opened_warehouse(
    secrets: Secrets, templates: Templates, objects: Path, dag: str, **changes: Any
) -> Generator[QuerySetup]:
    """Deploy a DAG to new databases, and run a Query Service over them."""
    with copied(templates) as dsns:
        warehouse = Warehouse(dsns, objects)
        warehouse.deploy(dag)
        with running_query_service(secrets, dsns, objects, **changes) as query:
            yield QuerySetup(query, warehouse)


@contextmanager
def running_query_service(
    secrets: Secrets, dsns: Dsns, objects: Path, **changes: Any
) -> Generator[LiveQuery]:
    """Run a Query Service until the end of the block."""
    cfg = settings(secrets, dsns, objects, **changes)

    @asynccontextmanager
    async def open_service(stop: asyncio.Event) -> AsyncGenerator[None]:
        async with open_app(cfg) as app, asyncio.TaskGroup() as group:
            listener = Listener(app, cfg.query_host, cfg.query_port)
            tls = Tls(cfg.tls_cert, cfg.tls_key)
            group.create_task(serve([listener], tls=tls, stop=stop, limits=cfg.http_limits))
            await wait_until_listening(cfg.query_port)
            yield

    with running_on_thread("query", open_service):
        yield LiveQuery(cfg, secrets)
