"""Create the databases and roles of the stack, with owners and connect privileges."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from trace_etl.lite.credentials import passwords
from trace_etl.lite.postgres.server import Server
from trace_etl.queues import pgqueue

STATE = "trace_state"
READER = "trace_reader"
DATA = "trace_data"
DATA_READER = "trace_data_reader"
QUEUE = "trace_queue"
ROLES = (STATE, READER, DATA, DATA_READER, QUEUE)

Conn = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True)
class Dsns:
    """One connection string per role."""

    state: str
    reader: str
    data: str
    queue: str
    data_reader: str


def provision(server: Server, *, state: str = STATE, data: str = DATA) -> Dsns:
    """Create the roles, the two databases and the queue's schema if they are missing."""
    create_roles(server)
    create_database(server, state, owner=STATE, connect=[READER])
    create_database(server, data, owner=DATA, connect=[QUEUE, DATA_READER])
    pgqueue.create_schema(server.admin_dsn(data), owner=QUEUE)
    return dsns(server, state=state, data=data)


def dsns(server: Server, *, state: str = STATE, data: str = DATA) -> Dsns:
    """Return the connection string of each role."""
    return Dsns(
        state=server.dsn(STATE, state),
        reader=server.dsn(READER, state),
        data=server.dsn(DATA, data),
        queue=server.dsn(QUEUE, data),
        data_reader=server.dsn(DATA_READER, data),
    )


def create_roles(server: Server) -> None:
    """Create the roles with passwords from the password file; revoke access to system databases."""
    known = passwords.ensure(server.passfile, ROLES)
    with psycopg.connect(server.admin_dsn(), autocommit=True) as conn:
        for role in ROLES:
            _ensure_role(conn, role, known[role])
        for reader in (READER, DATA_READER):
            conn.execute(
                sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(
                    sql.Identifier(reader)
                )
            )
        for database in ("postgres", "template1"):
            _revoke_public_access(conn, database)


def create_database(
    server: Server,
    name: str,
    *,
    owner: str,
    connect: Sequence[str] = (),
    template: str | None = None,
) -> None:
    """Create a database if it is missing. Only its owner and the roles in `connect` may connect."""
    with psycopg.connect(server.admin_dsn(), autocommit=True) as conn:
        if not _exists(conn, "SELECT 1 FROM pg_database WHERE datname = %s", name):
            conn.execute(
                sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {} STRATEGY {}").format(
                    sql.Identifier(name),
                    sql.Identifier(owner),
                    sql.Identifier(template or "template1"),
                    sql.SQL("FILE_COPY" if template else "WAL_LOG"),
                )
            )
        _revoke_public_access(conn, name)
        for role in connect:
            conn.execute(
                sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                    sql.Identifier(name), sql.Identifier(role)
                )
            )


def _ensure_role(conn: Conn, role: str, password: str) -> None:
    known = _exists(conn, "SELECT 1 FROM pg_roles WHERE rolname = %s", role)
    verb = "ALTER" if known else "CREATE"
    # Only a verifier of the password is sent, so the password cannot appear in the server's log.
    verifier = conn.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
    conn.execute(
        sql.SQL("{} ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD {}").format(
            sql.SQL(verb), sql.Identifier(role), sql.Literal(verifier.decode())
        )
    )


def _revoke_public_access(conn: Conn, database: str) -> None:
    conn.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database)))


def _exists(conn: Conn, query: sql.SQL | str, name: str) -> bool:
    return conn.execute(query, (name,)).fetchone() is not None  # type: ignore[arg-type]
