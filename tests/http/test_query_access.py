"""Who may query which dataset, for several organisations in one process, and the record of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import jwt
import pyarrow as pa
import pytest

from support.services.dispatcher import Secrets
from support.services.postgres import sql
from support.services.query import ORG, QuerySetup, running_query_service
from trace_etl.lite.credentials import keys
from trace_etl.model.roles import may_read

DAG = """
name: reading
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks, transactions, logs]
publish:
  - {name: blocks, from: {job: ingest, output: blocks}}
  - {name: salaries, from: {job: ingest, output: logs}, read_roles: [admin]}
  - {name: drafts, from: {job: ingest, output: transactions}, read_roles: [writer]}
"""
OTHER = uuid4()


def one_row(value: str) -> pa.Table:
    return pa.table({"block_number": [1], "value": [value]})


@dataclass(frozen=True)
class Organisations(QuerySetup):
    """Two organisations with the same published names and other rows, in one Query Service."""

    def ask(self, name: str, query: str, org_id: UUID = ORG) -> Any:
        key = keys.ensure_user_key(self.query.secrets.directory / "user")
        token = keys.sign_user_token(key, name, now=datetime.now(UTC))
        claims = jwt.decode(token, options={"verify_signature": False})
        signed = jwt.encode(
            {**claims, "org_id": str(org_id)},
            key.read_bytes(),
            algorithm="ES256",
            headers={"kid": jwt.get_unverified_header(token)["kid"]},
        )
        with self.query.client(signed) as http:
            return http.post("/v1/query", json={"sql": query})

    def send(self, name: str, body: bytes) -> Any:
        """Send a body as it is."""
        key = keys.ensure_user_key(self.query.secrets.directory / "user")
        with self.query.client(keys.sign_user_token(key, name, now=datetime.now(UTC))) as http:
            return http.post(
                "/v1/query", content=body, headers={"content-type": "application/json"}
            )

    def audit(self, user: str) -> list[tuple[Any, ...]]:
        return sql(
            self.warehouse.dsns.state,
            """SELECT outcome, datasets, row_count, byte_count, org_id FROM query_audit
                WHERE user_name = %s ORDER BY asked_at""",
            (user,),
        )


def add_user(dsn: str, name: str, role: str, org_id: UUID = ORG) -> None:
    sql(dsn, "INSERT INTO users (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,))
    sql(
        dsn,
        "INSERT INTO memberships (org_id, user_name, role) VALUES (%s, %s, %s)",
        (org_id, name, role),
    )


@pytest.fixture(scope="module")
def orgs(reading: QuerySetup) -> Organisations:
    warehouse, state = reading.warehouse, reading.warehouse.dsns.state
    sql(state, "INSERT INTO orgs (org_id, name) VALUES (%s, 'other')", (OTHER,))
    warehouse.deploy(DAG, OTHER)
    for org_id, value in ((ORG, "ours"), (OTHER, "theirs")):
        for name in ("blocks", "salaries", "drafts"):
            warehouse.commit(name, 0, 9, one_row(value), org_id=org_id)
    for role in ("reader", "writer", "admin"):
        add_user(state, role, role)
    add_user(state, "reader", "admin", OTHER)
    return Organisations(reading.query, warehouse)


def test_each_organisation_reads_its_own_rows_under_the_same_name(orgs: Organisations) -> None:
    assert orgs.ask("reader", "SELECT value FROM blocks").json()["rows"] == [["ours"]]
    assert orgs.ask("reader", "SELECT value FROM blocks", OTHER).json()["rows"] == [["theirs"]]
    assert orgs.ask("writer", "SELECT value FROM blocks", OTHER).status_code == 403
    assert orgs.ask("reader", "SELECT value FROM blocks", uuid4()).status_code == 403


@pytest.mark.parametrize(
    ("user", "readable"),
    [
        ("reader", {"blocks"}),
        ("writer", {"blocks", "drafts"}),
        ("admin", {"blocks", "drafts", "salaries"}),
    ],
)
def test_a_role_reads_the_datasets_that_name_it_or_a_lower_one(
    orgs: Organisations, user: str, readable: set[str]
) -> None:
    for name in ("blocks", "drafts", "salaries"):
        answer = orgs.ask(user, f"SELECT value FROM {name}")
        assert answer.status_code == (200 if name in readable else 403), answer.text
        if name not in readable:
            problem = answer.json()
            assert problem["code"] == "forbidden"
            assert f"{name!r} (read_roles: " in problem["detail"]
            assert "ours" not in answer.text and "value" not in answer.text


def test_one_unreadable_dataset_refuses_the_whole_query(orgs: Organisations) -> None:
    answer = orgs.ask("reader", "SELECT 1 FROM blocks WHERE EXISTS (SELECT * FROM salaries)")
    assert answer.status_code == 403


def test_the_role_of_the_queried_organisation_counts(orgs: Organisations) -> None:
    assert orgs.ask("reader", "SELECT value FROM salaries", OTHER).json()["rows"] == [["theirs"]]


def test_a_role_reads_what_lower_roles_read() -> None:
    assert may_read("reader", None)
    assert may_read("admin", ["reader"])
    assert not may_read("writer", ["admin"])
    assert may_read("writer", ["admin", "writer"])


def test_every_query_is_recorded_without_its_text(orgs: Organisations) -> None:
    add_user(orgs.warehouse.dsns.state, "auditee", "reader")
    version = str(orgs.warehouse.generation("blocks")[1])
    orgs.ask("auditee", "SELECT value, 'sesame' FROM blocks")
    orgs.ask("auditee", "SELECT * FROM salaries")
    orgs.ask("auditee", "SELECT * FROM nowhere")
    orgs.ask("auditee", "SELEC")
    orgs.ask("auditee", "SELECT 'sesame\0'")
    # No row is written after the answer.
    ok, refused, unknown, malformed, unreadable = orgs.audit("auditee")
    assert ok[0] == "ok" and ok[2] == 1 and ok[3] > 0 and ok[4] == ORG
    assert ok[1] == [{"dataset": "blocks", "dataset_version": version}]
    assert refused[:3] == ("forbidden", [{"dataset": "salaries", "dataset_version": None}], 0)
    assert unknown[:2] == ("invalid", [{"dataset": "nowhere", "dataset_version": None}])
    assert malformed[:2] == unreadable[:2] == ("invalid", [])
    stored = sql(orgs.warehouse.dsns.state, "SELECT string_agg(a::text, '') FROM query_audit a")
    assert "sesame" not in stored[0][0] and "SELEC" not in stored[0][0]


@pytest.mark.parametrize(
    ("body", "status", "outcome"),
    [
        (b'{"sql": "SELECT 1 -- \xff"}', 422, "invalid"),  # not UTF-8
        (b"[" * 100_000, 422, "invalid"),
        (b'{"sql": "SELECT 1", "limit": []}', 422, "invalid"),
        (b'{"sql": "' + b"x" * 2**20 + b'"}', 413, "too_large"),
    ],
    ids=["not-text", "nested", "wrong-field", "too-large"],
)
def test_a_request_that_cannot_be_read_is_recorded(
    orgs: Organisations, body: bytes, status: int, outcome: str
) -> None:
    user = f"unread_{uuid4().hex[:8]}"
    add_user(orgs.warehouse.dsns.state, user, "reader")
    assert orgs.send(user, body).status_code == status
    assert [row[0] for row in orgs.audit(user)] == [outcome]


def test_a_query_that_cannot_be_recorded_has_no_answer(
    secrets: Secrets, orgs: Organisations
) -> None:
    state, warehouse = orgs.warehouse.dsns.state, orgs.warehouse
    add_user(state, "unrecorded", "reader")
    with running_query_service(secrets, warehouse.dsns, warehouse.objects) as query:
        live = Organisations(query, warehouse)
        sql(state, "REVOKE INSERT ON query_audit FROM trace_reader")
        try:
            refused = live.ask("unrecorded", "SELECT value FROM blocks")
        finally:
            sql(state, "GRANT INSERT ON query_audit TO trace_reader")
        assert refused.status_code == 503 and "recorded" in refused.json()["detail"]
        assert live.ask("unrecorded", "SELECT value FROM blocks").status_code == 200
    # The first row was kept, and written when that was possible again.
    assert [row[0] for row in orgs.audit("unrecorded")] == ["ok", "ok"]


def test_the_role_of_the_service_can_add_to_the_record_but_not_read_or_change_it(
    orgs: Organisations,
) -> None:
    for statement in (
        "SELECT count(*) FROM query_audit",
        "UPDATE query_audit SET outcome = 'ok'",
        "DELETE FROM query_audit",
    ):
        with pytest.raises(Exception, match=r"permission denied|read-only transaction"):
            sql(orgs.warehouse.dsns.reader, statement)


def test_the_delivery_log_is_a_table_with_the_datasets_that_the_role_may_read(
    orgs: Organisations,
) -> None:
    state = orgs.warehouse.dsns.state
    dataset, version = orgs.warehouse.generation("blocks", ORG)
    sql(
        state,
        """INSERT INTO deliveries (dataset_uuid, dataset_version, kind, partition_key, range_start,
                                   range_end, new_hash, row_count)
           VALUES (%s, %s, 'published', '0-9', 0, 9, 'rows.v1:ab', 1)""",
        (dataset, version),
    )
    sql(state, "SELECT number_deliveries(1000, '{}')")
    query = "SELECT DISTINCT dataset FROM trace_changes ORDER BY 1"
    assert orgs.ask("reader", query).json()["rows"] == [["blocks"]]
    assert orgs.ask("writer", query).json()["rows"] == [["blocks"], ["drafts"]]
    assert orgs.ask("admin", query).json()["rows"] == [["blocks"], ["drafts"], ["salaries"]]
    query = """
        SELECT c.kind, c.reason, c.range_start, c.new_hash, c.changed_at > TIMESTAMP '2020-01-01', b.value
          FROM trace_changes c JOIN blocks b ON b.block_number BETWEEN c.range_start AND c.range_end
         WHERE c.kind = 'published' ORDER BY c.number"""
    answer = orgs.ask("reader", query)
    assert answer.json()["rows"] == [["published", "new", 0, "rows.v1:ab", True, "ours"]], (
        answer.text
    )
    # Another organisation has its own log, and a version but nothing published.
    query = "SELECT count(*), count(*) FILTER (kind = 'published') FROM trace_changes WHERE dataset = 'blocks'"
    assert orgs.ask("reader", query, OTHER).json()["rows"] == [[1, 0]]
    assert orgs.ask("reader", "SELECT number FROM trace_changes WHERE false").json()["rows"] == []


def test_a_delivery_log_that_is_too_long_for_a_query_is_an_error(
    orgs: Organisations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trace_etl.query.pins._MAX_CHANGES", 0)
    answer = orgs.ask("reader", "SELECT 1 FROM trace_changes")
    assert answer.status_code == 422 and "`trace changes DATASET`" in answer.text
