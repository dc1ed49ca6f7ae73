"""The text of a plan."""

import pytest

from trace_etl.cli.dags.plans import is_stuck, print_plan

EXISTING_DATA = {
    "scopes": 2,
    "partitions": 2,
    "row_count": 1,
    "byte_count": 1,
    "ranges": [[0, 9], [20, 29]],
}
UNCHANGED_JOB = {
    "change": "unchanged",
    "action": "keep",
    "fields": [],
    "because": [],
    "rebuild": {},
}


def shown(
    capsys: pytest.CaptureFixture[str], jobs: list[dict], names: tuple[dict, ...] = ()
) -> str:
    builds = any(job["action"] == "build" for job in jobs)
    print_plan(
        {
            "jobs": jobs,
            "names": names,
            "builds": builds,
            "partitions": 2,
            "tasks": 2,
            "breaking": {},
        }
    )
    return capsys.readouterr().out


def test_a_change_of_a_long_text_shows_only_the_lines_that_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sql = {
        "field": "config.sql",
        "before": "SELECT a,\n  b\nFROM t",
        "after": "SELECT a,\n  c\nFROM t",
    }
    job = {**UNCHANGED_JOB, "name": "top", "change": "changed", "action": "build", "fields": [sql]}
    text = shown(capsys, [{**job, "because": ["config.sql"], "rebuild": {"out": EXISTING_DATA}}])
    assert "~ top: new generation (config.sql), built beside the old one: out: 2 partitions" in text
    assert "(0-9, 20-29)" in text
    assert "        -   b\n        +   c\n" in text
    assert "SELECT a" not in text


def test_values_that_look_alike_are_shown_with_their_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "SELECT " + "a, " * 40
    fields = [
        {"field": "config.size", "before": "1000", "after": 1000},
        {"field": "config.sql", "before": f"{long}b FROM t", "after": f"{long}c FROM t"},
    ]
    job = {**UNCHANGED_JOB, "name": "top", "change": "changed", "action": "adopt", "fields": fields}
    text = shown(capsys, [job])
    assert 'config.size: "1000" → 1000' in text
    assert f"- {long}b FROM t" in text and f"+ {long}c FROM t" in text


def test_unchanged_jobs_share_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [{**UNCHANGED_JOB, "name": name} for name in ("a", "b")]
    assert shown(capsys, jobs) == "  = a, b: keep running\n"


def test_a_new_generation_is_marked_as_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    job = {**UNCHANGED_JOB, "name": "a", "action": "start", "because": ["upstream b"]}
    assert shown(capsys, [job]).startswith(
        "  ~ a: new generation (upstream b), current immediately"
    )


def test_each_published_name_shows_its_old_and_new_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = (
        {"name": "n", "before": None, "after": "a.x", "rebuild": None, "readers": []},
        {"name": "o", "before": "a.x", "after": None, "rebuild": None, "readers": ["other.job"]},
        {"name": "p", "before": "a.x", "after": "b.y", "rebuild": EXISTING_DATA, "readers": []},
    )
    text = shown(capsys, [{**UNCHANGED_JOB, "name": "a"}], names)
    assert "+ published as n: a.x" in text
    assert "- no longer published: o\n      read by other.job: refused" in text
    assert "~ p moves from a.x to b.y, when the new data is complete" in text


@pytest.mark.parametrize(
    ("live", "stuck"), [({"queued": 1}, False), ({"retrying": 1}, False), ({"failed": 3}, True)]
)
def test_a_rollout_is_stuck_when_no_task_can_complete_it(live: dict, stuck: bool) -> None:
    job = {"job": "a", "queued": 0, "running": 0, "retrying": 0, "failed": 0, "canceled": 0, **live}
    assert is_stuck({"state": "building", "reason": "…", "jobs": [job]}) is stuck
