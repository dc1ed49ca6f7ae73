"""The schema of Postgres data: what the platform itself keeps there. Tables of rows come and go."""

from trace_etl import migrations


def apply(dsn: str) -> list[str]:
    """Bring Postgres data up to date. Returns what was applied."""
    return migrations.apply(dsn, __name__, ledger="data_migrations", lock="trace.data.migrations")
