"""Client of the Dispatcher's internal API, for the sink."""

from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from pydantic import BaseModel

from trace_etl.api.task.buffers import (
    BufferBatch,
    BufferBatches,
    BufferComplete,
    BufferFetch,
    BufferResult,
)
from trace_etl.api.task.retired_tables import RetiredTables, TablesHeld, TablesToDrop
from trace_etl.http.clients.dispatcher_client import DispatcherConnection


class SinkClient(DispatcherConnection):
    """Calls with the identity of the sink. They do not retry, and raise Refused or Unreachable."""

    def __init__(self, url: str, ca: Path, token: Callable[[], str]) -> None:
        super().__init__(url, ca)
        self._token = token

    def fetch_batches(self, publish_ids: Sequence[UUID]) -> dict[UUID, BufferBatch]:
        """Read batches as the Dispatcher recorded them. Unknown batches are left out."""
        reply = self._send("/internal/buffer-fetch", BufferFetch(publish_ids=list(publish_ids)))
        batches = BufferBatches.model_validate_json(reply).batches
        return {batch.publish_id: batch for batch in batches}

    def complete_batches(self, results: Sequence[BufferResult]) -> None:
        """Report that batches were written, or why they failed."""
        self._send("/internal/buffer-complete", BufferComplete(results=list(results)))

    def tables_to_drop(self, tables: list[str]) -> list[RetiredTables]:
        """Ask which of these tables may be dropped."""
        reply = self._send("/internal/tables-to-drop", TablesHeld(tables=tables))
        return TablesToDrop.model_validate_json(reply).retired

    def _send(self, path: str, body: BaseModel) -> bytes:
        headers = {"Authorization": f"Bearer {self._token()}"}
        return self._post(path, body.model_dump_json(), headers)
