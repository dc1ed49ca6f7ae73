"""Migrations of the platform's own tables in Postgres data. Tables of datasets are created on demand."""

from trace_etl import migrations


def apply(dsn: str) -> list[str]:
    """Apply all pending migrations. Returns their names."""
    return migrations.apply(dsn, __name__, ledger="data_migrations", lock="trace.data.migrations")
