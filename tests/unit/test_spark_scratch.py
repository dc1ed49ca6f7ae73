"""Where Spark's sockets go: never to a path that Spark refuses."""

import os
from pathlib import Path

import pytest

from trace_etl.spark.session.scratch import Scratch

SPARK_REFUSES_FROM = 61


@pytest.mark.parametrize("length", range(30, 80))
def test_the_sockets_directory_is_always_short_enough_for_spark(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(f"/tmp/trace-scratch-{os.getpid()}-".ljust(length, "x"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # a long one, as test runners have
    try:
        made = Scratch.make(place)
        assert made.sockets.is_dir()
        assert len(os.fsencode(made.sockets)) < SPARK_REFUSES_FROM
        made.remove()
    finally:
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir()
        place.rmdir()
