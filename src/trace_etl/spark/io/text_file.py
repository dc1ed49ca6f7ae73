"""One CSV or JSON-lines file, for people and spreadsheets."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv

from trace_etl.objects.store import ObjectStore, ObjectWriter
from trace_etl.spark.io.parquet import HashingStream, WrittenFile


@contextmanager
def open_text_file(
    store: ObjectStore, key: str, schema: Any, *, attempt: int
) -> Generator["TextFile"]:
    """Write a CSV file, or JSON lines for any other suffix; discard it unless it is finished."""
    with store.open_writer(key, attempt=attempt) as output:
        yield TextFile(output, schema, is_csv=key.endswith(".csv"))


class TextFile:
    """CSV with a header, or JSON lines from a single column of JSON texts."""

    def __init__(self, output: ObjectWriter, schema: Any, *, is_csv: bool) -> None:
        self._output = output
        self._stream = HashingStream(output.stream)
        self._schema = schema
        self._rows = 0
        with output.errors():
            self._csv = pcsv.CSVWriter(self._stream.file, schema) if is_csv else None

    def write(self, batch: Any) -> None:
        """Write a batch. Raises StorageFull or StorageUnwritable."""
        with self._output.errors():
            if self._csv is not None:
                self._csv.write(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
            elif batch.num_rows:
                lines = "\n".join([*batch.column(0).to_pylist(), ""])
                self._stream.write(lines.encode())
        self._rows += batch.num_rows

    def finish(self) -> WrittenFile:
        """Close the file and commit it under its key."""
        if self._csv is not None:
            with self._output.errors():
                self._csv.close()
        size = self._output.commit()
        return WrittenFile(self._output.name, self._rows, size, self._stream.sha256)
