"""The mark that ties a home to its database: both hold the same id.

Without it, a home whose database is missing would start with an empty one, and look healthy.
"""

import json
from pathlib import Path
from uuid import uuid4

from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import HomeUnusable
from trace_etl.lite.home import Home


def check(home: Home) -> None:
    """Check that the home has its own database, or none because it is new. Raises HomeUnusable."""
    if home.restoring.exists():
        raise HomeUnusable(
            f"{home.path} is the target of a restore that has not ended",
            f"wait for it; if it was interrupted, delete {home.path} and restore again",
        )
    own, database = _read_id(home.mark), _read_id(home.database_mark)
    if own is None or home.postgres.is_symlink():  # a link is checked when its data moves in
        return
    if not (home.postgres / "data" / "PG_VERSION").exists():
        raise HomeUnusable(
            f"the database of this home is missing: {home.postgres / 'data'} has no database",
            "restore it from a copy; `trace down --purge` deletes the rest, to start over",
        )
    if database is not None and database != own:
        raise HomeUnusable(
            f"the database in {home.postgres} belongs to another home",
            f"put the database of {home.path} back, or use the other home",
        )


def mark(home: Home) -> None:
    """Write the marks that are missing. Call it when the database exists."""
    known = _read_id(home.mark) or _read_id(home.database_mark) or str(uuid4())
    # The home is marked last: a start that was interrupted before can be repeated.
    for path in (home.database_mark, home.mark):
        if _read_id(path) is None:
            private_files.write(path, json.dumps({"home_id": known}))


def read_home_id(home: Home) -> str:
    """Return the id of a home; empty for a home of a release without marks."""
    return _read_id(home.mark) or ""


def _read_id(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text())["home_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise HomeUnusable(f"{path} is damaged", "restore it from a copy, or delete it") from error
