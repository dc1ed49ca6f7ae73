"""A watched file is read again only when it changes."""

import os
import time
from pathlib import Path

import pytest

from trace_etl.dispatcher.task_api.authorization.watched_files import WatchedPath


class Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: list[str] = []
        self.watched = WatchedPath(path, self.load)

    def load(self) -> None:
        self.texts.append(self.path.read_text())


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    path = tmp_path / "tokens"
    _write(path, "old", age=60)
    return Reader(path)


def _write(path: Path, text: str, *, age: float) -> None:
    path.write_text(text)
    when = time.time() - age
    os.utime(path, (when, when))


def test_an_unchanged_file_is_read_once(reader: Reader) -> None:
    for _ in range(3):
        reader.watched.refresh_now()
    assert reader.texts == ["old"]


def test_a_changed_file_is_read_again(reader: Reader) -> None:
    reader.watched.refresh_now()
    _write(reader.path, "new", age=30)
    reader.watched.refresh_now()
    assert reader.texts == ["old", "new"]


def test_a_second_change_with_the_same_timestamp_is_read(reader: Reader) -> None:
    when = time.time() + 60  # a timestamp that does not change during the test
    for text in ("one", "two"):
        reader.path.write_text(text)
        os.utime(reader.path, (when, when))
        reader.watched.refresh_now()
    assert reader.texts == ["one", "two"]


def test_a_failed_read_is_repeated(reader: Reader) -> None:
    good = reader.path
    reader.path = good.parent / "nothing"
    with pytest.raises(FileNotFoundError):
        reader.watched.refresh_now()
    reader.path = good
    reader.watched.refresh_now()
    assert reader.texts == ["old"]
