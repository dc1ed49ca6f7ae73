"""Forward-only migrations of Postgres data, applied in the order of their file names."""

from importlib import resources

import psycopg

_LEDGER = """
CREATE TABLE IF NOT EXISTS data_migrations (
    name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('trace.data.migrations', 0))"


def apply(dsn: str) -> list[str]:
    """Bring a database up to date; many processes may try at once. Returns what was applied."""
    files = sorted(
        (f for f in resources.files(__name__).iterdir() if f.name.endswith(".sql")),
        key=lambda f: f.name,
    )
    with psycopg.connect(dsn) as conn:
        conn.execute(_LOCK)
        conn.execute(_LEDGER)
        done = {row[0] for row in conn.execute("SELECT name FROM data_migrations")}
        fresh = [f for f in files if f.name not in done]
        for file in fresh:
            conn.execute(file.read_bytes())
            conn.execute("INSERT INTO data_migrations (name) VALUES (%s)", (file.name,))
    return [f.name for f in fresh]
