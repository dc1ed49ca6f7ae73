"""Results for people and spreadsheets: one CSV or JSON-lines file, whole or not at all."""

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv

from trace_etl.spark.io.parquet import Written, make_durable, named_errors


class TextFile:
    """CSV with a header, or, for a single column of JSON texts, one of them a line."""

    def __init__(self, path: Path, schema: Any, *, attempt: int) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{attempt}")
        self._schema = schema
        self._is_csv = path.suffix == ".csv"
        self._rows = 0
        self._sink: Any = None
        self._writer: Any = None

    def __enter__(self) -> "TextFile":
        with named_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = pa.OSFile(str(self._draft), "wb")
            if self._is_csv:
                self._writer = pcsv.CSVWriter(self._sink, self._schema)
        return self

    def write(self, batch: Any) -> None:
        """Take a batch in. Raises StorageFull or StorageUnwritable, naming the path."""
        with named_errors(self._path):
            if self._is_csv:
                self._writer.write(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
            elif batch.num_rows:
                self._sink.write("\n".join([*batch.column(0).to_pylist(), ""]).encode())
        self._rows += batch.num_rows

    def finish(self) -> Written:
        """Close the file and give it its name."""
        with named_errors(self._path):
            if self._writer is not None:
                self._writer.close()
            self._sink.close()
            size = make_durable(self._draft)
            self._draft.rename(self._path)
        return Written(self._path.name, self._rows, size)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            with suppress(OSError):
                self._sink.close()
                self._draft.unlink(missing_ok=True)
