"""Spark's sockets always get a path that is short enough."""

import os
from pathlib import Path

import pytest

from trace_etl.spark.session.scratch import Scratch

SPARK_REFUSES_FROM = 61


@pytest.mark.parametrize("length", range(30, 80))
def test_the_sockets_directory_is_always_short_enough_for_spark(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(f"/tmp/trace-scratch-{os.getpid()}-".ljust(length, "x"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # a long path, as under test runners
    try:
        scratch = Scratch.make(directory)
        assert scratch.sockets.is_dir()
        assert len(os.fsencode(scratch.sockets)) < SPARK_REFUSES_FROM
        scratch.remove()
    finally:
        for path in sorted(directory.rglob("*"), reverse=True):
            path.rmdir()
        directory.rmdir()
