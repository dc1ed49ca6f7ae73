"""Showing plans and rollouts."""

from collections.abc import Mapping
from difflib import ndiff
from typing import TYPE_CHECKING, Any

import typer

from trace_etl.cli.output import number, shown

if TYPE_CHECKING:
    from trace_etl.cli.client import Client

Json = Mapping[str, Any]
_SIGNS = {"added": "+", "changed": "~", "removed": "-", "unchanged": "="}
_MOST_LINES = 20


def print_plan(plan: Json) -> None:
    """A plan, a line a job; what keeps running in one line."""
    kept = [job["name"] for job in plan["jobs"] if job["action"] == "keep"]
    for job in plan["jobs"]:
        if job["action"] != "keep":
            sign = "~" if job["action"] == "build" else _SIGNS[job["change"]]
            typer.echo(f"  {sign} {job['name']}: {_fate(job)}")
            for change in job["fields"]:
                _print_change(change)
    if kept:
        typer.echo(f"  = {', '.join(kept)}: {'keep' if len(kept) > 1 else 'keeps'} running")
    for name in plan["names"]:
        typer.echo(f"  {_name_line(name)}")
        if name["readers"]:
            typer.echo(f"      read by {', '.join(name['readers'])}: deploy them anew, too")
    if plan["builds"]:
        typer.echo(
            f"{_count(plan['partitions'], 'partition')} to rebuild. Readers see the old ones until "
            "the new are complete."
        )


def _print_change(change: Json) -> None:
    before, after = change["before"], change["after"]
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        typer.echo(f"      {change['field']}:")
        lines = [line for line in ndiff(before.splitlines(), after.splitlines()) if line[0] in "-+"]
        for line in lines[:_MOST_LINES]:
            typer.echo(f"        {line}")
        if len(lines) > _MOST_LINES:
            typer.echo(f"        … {len(lines) - _MOST_LINES} lines more")
    else:
        typer.echo(f"      {change['field']}: {_brief(before)} → {_brief(after)}")


def _fate(job: Json) -> str:
    if job["action"] == "retire":
        return "removed"
    if job["action"] == "adopt":
        return "added again" if job["change"] == "added" else "changed; its rows stay"
    if job["change"] == "added":
        return "added"
    why = f"new generation ({', '.join(job['because'])})"
    if job["action"] == "start":
        return f"{why}, current at once: there is nothing to serve"
    return f"{why}, built beside the old: {_rebuilt(job['rebuild'])}"


def _rebuilt(outputs: Mapping[str, Json]) -> str:
    return "; ".join(f"{name}: {_stock(stock)}" for name, stock in outputs.items())


def _stock(stock: Json) -> str:
    what = "partition" if stock["partitions"] else "scope"
    ranges = [f"{start}-{end}" for start, end in stock["ranges"][:3]]
    more = ", …" if len(stock["ranges"]) > 3 else ""
    return _count(stock["scopes"], what) + (f" ({', '.join(ranges)}{more})" if ranges else "")


def _name_line(name: Json) -> str:
    if name["before"] is None:
        return f"+ published as {name['name']}: {name['after']}"
    if name["after"] is None:
        return f"- not published any more: {name['name']}"
    when = ", when that is complete" if name["rebuild"] else ""
    return f"~ {name['name']} moves from {name['before']} to {name['after']}{when}"


def _count(count: int, what: str) -> str:
    return f"{number(count)} {what}" + ("" if count == 1 else "s")


def _brief(value: object) -> str:
    text = " ".join(shown(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def print_rollout(rollout: Json) -> None:
    """How far a rollout is, and what it waits for."""
    typer.echo(f"{rollout['dag']}: {rollout['state']} (version {rollout['dag_version']})")
    for target in rollout["targets"]:
        typer.echo(f"  {target['job']}.{target['output']}: {_covered(target)}")
    if rollout["reason"]:
        typer.echo(f"  {rollout['reason']}")


def _covered(target: Json) -> str:
    if target["blocks"]:
        done = target["blocks"] - target["missing_blocks"]
        return f"{number(done)} of {number(target['blocks'])} blocks"
    if target["cursor"] is not None:
        return f"at {shown(target['new_cursor'])} of {number(target['cursor'])}"
    return f"{number(target['new_partitions'])} of {number(target['old_partitions'])} partitions"


def wait(client: "Client", dag: str, dag_version: str, *, quiet: bool) -> dict[str, Any]:
    """Follow a rollout until it ends, or until nothing is left that could end it."""
    from trace_etl.cli.tasks.watch import signals

    said = ""
    with signals(client, dag) as news:
        for _ in news:
            found = client.get(f"/v1/dags/{dag}/rollout", dag_version=dag_version)
            if found["state"] != "building" or is_stuck(found):
                return found
            line = f"  {_percent(found)}: {found['reason'] or 'moving the pointers'}"
            if line != said and not quiet:
                typer.echo(line)
            said = line
    raise AssertionError("signals never end")


def is_stuck(rollout: Json) -> bool:
    """Whether a rollout cannot become complete by itself."""
    if rollout["state"] != "building" or rollout["reason"] is None:
        return False
    jobs: list[Json] = rollout["jobs"]
    return not any(job["queued"] or job["running"] or job["retrying"] for job in jobs)


def _percent(rollout: Json) -> str:
    total = sum(target["blocks"] for target in rollout["targets"])
    missing = sum(target["missing_blocks"] for target in rollout["targets"])
    return f"{(total - missing) / total:.0%} of the blocks" if total else "building"
