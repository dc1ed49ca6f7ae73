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
_DONE = SQL("SELECT name FROM {}")
_NOTE = SQL("INSERT INTO {} (name) VALUES (%s)")


def apply(dsn: str, package: str, *, ledger: str, lock: str) -> list[str]:
    """Bring a database up to date; many processes may try at once. Returns what was applied.

    `ledger` is the table that remembers what was applied, `lock` what the processes queue up for.
    """
    files = sorted(
        (file for file in resources.files(package).iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    table = Identifier(ledger)
    with psycopg.connect(dsn) as conn:
        conn.execute(_LOCK, (lock,))
        conn.execute(_LEDGER.format(table))
        done = {row[0] for row in conn.execute(_DONE.format(table))}
        fresh = [file for file in files if file.name not in done]
        for file in fresh:
            conn.execute(file.read_bytes())
            conn.execute(_NOTE.format(table), (file.name,))
    return [file.name for file in fresh]
