"""Let an engine read signed URLs of an object store, without credentials and without a download."""

from importlib.resources import files

import duckdb

# The file comes from a wheel whose hash is pinned. Its signature is not checked again, because that would
# take longer than a small query. SQL cannot load extensions: the SQL guard and the locked engine refuse it.
ENGINE_CONFIG = {"allow_unsigned_extensions": True}
_EXTENSION = files("duckdb_extension_httpfs") / (
    f"extensions/v{duckdb.__version__}/httpfs.duckdb_extension"
)


def load_reader(engine: duckdb.DuckDBPyConnection, ca_file: str | None) -> None:
    """Load the HTTP client into a new engine. It has no secrets, and cannot store any."""
    engine.execute(f"LOAD '{_quote(str(_EXTENSION))}'")
    engine.execute("SET allow_persistent_secrets = false")
    engine.execute("SET enable_server_cert_verification = true")
    engine.execute(
        "SET enable_http_metadata_cache = true"
    )  # a query reads each object more than once
    if ca_file is not None:
        engine.execute(f"SET ca_cert_file = '{_quote(ca_file)}'")


def _quote(text: str) -> str:
    return text.replace("'", "''")
