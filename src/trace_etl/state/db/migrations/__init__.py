"""The schema of Postgres state."""

from trace_etl import migrations


def apply(dsn: str) -> list[str]:
    """Bring Postgres state up to date. Returns what was applied."""
    return migrations.apply(dsn, __name__, ledger="schema_migrations", lock="trace.migrations")
