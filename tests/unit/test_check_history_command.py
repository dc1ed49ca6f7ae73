"""`trace check-history`: its output and its exit codes."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from support.lifecycle.histories import HistoryBuilder
from trace_etl.cli.main import app

GOOD = HistoryBuilder().claim(0, "t").complete(1, "t")
BAD = HistoryBuilder().claim(0, "t").complete(1, "t").claim(5, "t", 2)


def run(file: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["check-history", str(file), *options])


def write_history(path: Path, story: HistoryBuilder) -> Path:
    path.write_text("\n".join(story.text))
    return path


def test_a_proven_history_exits_0_and_lists_what_was_not_checked(tmp_path: Path) -> None:
    result = run(write_history(tmp_path / "h.jsonl", GOOD))
    assert result.exit_code == 0
    assert "Proven: 2 calls (0 unanswered), 1 tasks, 1 attempts, 0 violations." in result.output
    assert "not checked: side effects" in result.output


def test_a_refuted_history_exits_1_and_names_the_lines(tmp_path: Path) -> None:
    result = run(write_history(tmp_path / "h.jsonl", BAD))
    assert result.exit_code == 1
    assert "one_completion_per_attempt" in result.output
    assert "(lines 2, 3)" in result.output


def test_the_verdict_can_be_printed_as_json(tmp_path: Path) -> None:
    result = run(write_history(tmp_path / "h.jsonl", BAD), "--json")
    document = json.loads(result.output)
    assert result.exit_code == 1
    assert not document["proven"]
    assert [v["lines"] for v in document["violations"]] == [[2, 3]]


def test_clocks_may_differ_by_the_given_amount(tmp_path: Path) -> None:
    early = HistoryBuilder().claim(0, "t", lease_seconds=60).claim(55, "t", 2)
    file = write_history(tmp_path / "h.jsonl", early)
    assert run(file).exit_code == 1
    assert run(file, "--clock-skew", "10").exit_code == 0


def test_a_file_that_cannot_be_read_exits_2(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("once upon a time")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("text", "bytes", "missing"):
        result = run(tmp_path / name)
        assert result.exit_code == 2
        assert name in result.output
