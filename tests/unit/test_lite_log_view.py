"""The combined log of all processes."""

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trace_etl.lite.processes import log_view

AT = "2026-11-15T12:00:01.250000Z"


def entry(**values: object) -> str:
    return json.dumps({"event": "task_claimed", "level": "info", "timestamp": AT, **values})


def test_an_event_becomes_one_readable_line() -> None:
    line = log_view.parse("dispatcher", entry(process="dispatcher", task_id="7f", attempt=2))
    assert line is not None
    local = datetime(2026, 11, 15, 12, 0, 1, tzinfo=UTC).astimezone()
    assert str(line) == f"{local:%H:%M:%S} dispatcher  task_claimed task_id=7f attempt=2"


def test_text_with_spaces_is_quoted_and_a_traceback_is_indented() -> None:
    line = log_view.parse("worker", entry(error="no space", exception="Traceback\nValueError"))
    assert line is not None
    assert line.text == 'task_claimed error="no space"\n    Traceback\n    ValueError'


@pytest.mark.parametrize("text", ["WARN something", "{not json", '{"no": "event"}', '["a"]'])
def test_other_lines_are_shown_unchanged(text: str) -> None:
    line = log_view.parse("worker", text)
    assert line is not None
    assert line.text == text


def test_only_problems_of_postgres_are_shown() -> None:
    timestamp = "2026-11-15 12:00:01.250 UTC "
    assert log_view.parse("postgres", f"{timestamp}LOG:  database system is ready") is None
    assert log_view.parse("postgres", f"{timestamp}STATEMENT:  SELECT 1") is None
    assert (
        log_view.parse("postgres", f"{timestamp}FATAL:  the database system is starting up") is None
    )
    line = log_view.parse("postgres", f"{timestamp}FATAL:  password authentication failed")
    assert line is not None
    assert (line.level, line.text) == ("warning", "password authentication failed")


def test_a_log_follower_reads_only_new_complete_lines_in_order(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text(entry(event="old") + "\n")
    follower = log_view.LogFollower(tmp_path)
    with (tmp_path / "worker.log").open("a") as log:
        log.write(entry(event="second", timestamp="2026-11-15T12:00:02Z") + "\n" + entry()[:9])
        log.flush()
        (tmp_path / "query.log").write_text(entry(event="first") + "\n")
        assert [line.text for line in follower.lines()] == ["first", "second"]
        assert follower.lines() == []
        log.write(entry()[9:] + "\n")
    assert [line.text for line in follower.lines()] == ["task_claimed"]


def test_a_full_log_is_rotated_and_still_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "_ROTATE_AT", 100)
    path = tmp_path / "worker.log"
    with path.open("a", buffering=1) as writer:
        writer.write("x" * 200 + "\n")
        follower = log_view.LogFollower(tmp_path)
        log_view.rotate(tmp_path)
        writer.write("after\n")
        assert [line.text for line in follower.lines()] == ["after"]
    assert path.read_text() == "after\n"
    assert path.with_suffix(".log.1").stat().st_size == 201


def test_supervisor_events_have_the_format_of_the_other_processes(tmp_path: Path) -> None:
    log = log_view.EventLog(tmp_path / "supervisor.log")
    log.event("service_exited", "error", service="worker", code=-9)
    log.close()
    assert log_view.tail(tmp_path / "supervisor.log") == "service_exited service=worker code=-9"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_event_that_cannot_be_written_to_disk_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = log_view.EventLog(Path("/dev/full"))
    log.event("service_exited", service="worker")
    log.close()
    assert "service_exited" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_event_that_no_disk_has_space_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    with io.TextIOWrapper(io.FileIO(full, "w"), write_through=True) as standard_error:
        monkeypatch.setattr(sys, "stderr", standard_error)
        log = log_view.EventLog(full)
        log.event("service_exited", "error", service="sink")
        log.close()
