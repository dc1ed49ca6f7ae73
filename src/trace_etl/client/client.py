"""Connect to a stack, query it, and read the schemas and files of its datasets."""

import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from trace_etl.api.user.data.changes import DatasetChange
from trace_etl.api.user.data.datasets import DatasetColumn, DatasetDetail, DatasetItem
from trace_etl.client.packages import import_package
from trace_etl.client.remote_files import open_dataset
from trace_etl.client.results import QueryResult
from trace_etl.client.schemas import read_schema
from trace_etl.client.stack_client import StackClient, connect_home, open_client, quote_segment

if TYPE_CHECKING:
    import polars

_DEFAULT_HOME = "~/.trace"


class NotScannable(Exception):
    """The rows of a dataset are not in files that this machine can read."""


def connect(
    home: str | Path | None = None,
    *,
    api_url: str | None = None,
    query_url: str | None = None,
    token: str | None = None,
    ca: str | Path | None = None,
) -> "Client":
    """Connect to a stack: to the one in `home` (default: `$TRACE_HOME`, else `~/.trace`), or by URLs.

    With `api_url` and `query_url`, `token` is a user's token, and `ca` a PEM file with the
    authority of the certificates (default: those that the system trusts). Raises NotRunning.
    """
    if api_url is None and query_url is None and token is None:
        path = Path(home or os.environ.get("TRACE_HOME") or _DEFAULT_HOME)
        return Client(connect_home(path.expanduser()))
    if api_url is None or query_url is None or token is None:
        raise ValueError(
            "connect() by URL needs all of api_url, query_url and token; give all three"
        )
    return Client(open_client(api_url, query_url, token, None if ca is None else str(ca)))


class Client:
    """A connection to one stack. Use it in a `with` block, or call `close`."""

    def __init__(self, stack: StackClient) -> None:
        self._stack = stack

    def query(
        self, sql: str, params: Mapping[str, Any] | Sequence[Any] | None = None
    ) -> QueryResult:
        """Prepare one SELECT. It runs when a method of the result asks for rows.

        `params` are the values of `$name` in the SQL, or of `?` in a sequence: None, bool, int,
        float or str.
        """
        return QueryResult(self._stack, sql, params)

    def datasets(self) -> list[DatasetItem]:
        """List the published datasets, by name."""
        answer = self._stack.get_all("/v1/datasets", published=True)
        return [DatasetItem.model_validate(item) for item in answer["items"]]

    def dataset(self, name: str) -> DatasetDetail:
        """Return one dataset with its columns, and up to 1000 of its partitions."""
        path = f"/v1/datasets/{quote_segment(name)}"
        return DatasetDetail.model_validate(self._stack.get(path, limit=1000))

    def schema(self, name: str) -> list[DatasetColumn]:
        """Return the columns of a dataset: names, types and comments."""
        return read_schema(self._stack, name)

    def scan(self, name: str) -> "polars.LazyFrame":
        """Return a lazy frame over the files that are committed now. Needs the extra `polars`.

        The frame stays the same when the dataset changes. On a remote object store it reads signed
        URLs, which expire after an hour: collect it before, or scan again. Raises NotScannable if
        rows are not in Parquet files that this machine can read: use `query` then.
        """
        polars = import_package("polars")
        snapshot = self._stack.get_snapshot(name)
        files: list[str] = snapshot["files"]
        if snapshot["has_table"]:
            raise _make_not_scannable(
                name, "rows are in a table of Postgres data, or none is committed"
            )
        if not files:
            return self.query(f'FROM "{name}" LIMIT 0').polars().lazy()
        if not all(urlsplit(file).path.endswith(".parquet") for file in files):
            raise _make_not_scannable(name, "its files are text")
        if snapshot["expires_at"] is not None:
            return polars.scan_pyarrow_dataset(open_dataset(files))
        if not all(os.access(file, os.R_OK) for file in files):
            raise _make_not_scannable(
                name,
                "this user or machine cannot read the files of the stack",
                "run where it can, or ",
            )
        return polars.scan_parquet(files, hive_partitioning=False, glob=False)

    def changes(self, name: str, since: str | None = None) -> Generator[DatasetChange]:
        """Yield what changed in a dataset after a cursor, up to now. None: all changes that are kept.

        Raises RequestRejected with the status 410 if the cursor is too old: read the whole dataset
        again, and continue with `problem["cursor"]`.
        """
        path, more = f"/v1/datasets/{quote_segment(name)}/changes", True
        while more:
            page = self._stack.get(path, since=since, limit=1000)
            yield from (DatasetChange.model_validate(item) for item in page["items"])
            since, more = page["cursor"], page["more"]

    def changes_cursor(self, name: str) -> str:
        """Return the cursor after the last change. Take it before you read the whole dataset."""
        path = f"/v1/datasets/{quote_segment(name)}/changes"
        return str(self._stack.get(path, since="now")["cursor"])

    def close(self) -> None:
        """Close the connections."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _make_not_scannable(name: str, reason: str, fix: str = "") -> NotScannable:
    return NotScannable(
        f'{name!r} cannot be scanned: {reason}; {fix}read it with client.query("FROM {name}")'
    )
