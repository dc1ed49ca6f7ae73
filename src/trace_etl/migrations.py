"""Forward-only migrations: the SQL files of a package, applied in the order of their names."""

from importlib import resources

import psycopg
from psycopg.sql import SQL, Identifier

_LEDGER = SQL("""
CREATE TABLE IF NOT EXISTS {} (
    name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()
)
""")
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_LIST_APPLIED = SQL("SELECT name FROM {}")
_RECORD = SQL("INSERT INTO {} (name) VALUES (%s)")


def apply(dsn: str, package: str, *, ledger: str, lock: str) -> list[str]:
    """Apply pending migrations and return their names. Safe in several processes concurrently.

    `ledger` is the table of applied migrations, `lock` the name of the advisory lock.
    """
    files = sorted(
        (file for file in resources.files(package).iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    table = Identifier(ledger)
    with psycopg.connect(dsn) as conn:
        conn.execute(_LOCK, (lock,))
        conn.execute(_LEDGER.format(table))
        applied = {row[0] for row in conn.execute(_LIST_APPLIED.format(table))}
        pending = [file for file in files if file.name not in applied]
        for file in pending:
            conn.execute(file.read_bytes())
            conn.execute(_RECORD.format(table), (file.name,))
    return [file.name for file in pending]
