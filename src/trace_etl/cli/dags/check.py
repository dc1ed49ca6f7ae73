"""`trace check`: every SELECT of a DAG file, judged by Spark before anything is deployed."""

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.client import Client, fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from trace_etl.model.dag import Dag
    from trace_etl.model.errors import Fault
    from trace_etl.spark.analysis import Analysis, JobProblem


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(check)


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DAG file (YAML).")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Check a DAG file with Spark's own analyser: SQL, columns, filters. Changes nothing.

    Starts a Spark of its own, which takes some seconds. Columns of published datasets are asked of
    the stack, if the DAG reads any.
    """
    found = checked(file, home)
    _print(found, as_json=as_json)


def checked(file: Path, home: Path) -> "Analysis":
    """What Spark says about a whole DAG file. Ends the program when something is wrong with it."""
    text = read(file)
    dag = _parsed(file, text)
    names = {item.dataset for job in dag.jobs for item in job.inputs if item.dataset}
    if not names:
        return _judged(file, text, dag, {}, None)
    with session(home) as client:
        published = _published(client, names)
    return _judged(file, text, dag, published, None)


def checked_changes(
    file: Path, text: str, plan: Mapping[str, Any], client: Client
) -> "Analysis | None":
    """What Spark says about the SQL that a plan adds or changes; None when it changes none.

    Ends the program when something is wrong with it.
    """
    from trace_etl.policy.sql_checks import changed_sql, with_upstream

    dag = _parsed(file, text)
    names = changed_sql(dag, plan["jobs"])
    if not names:
        return None
    needed = with_upstream(dag, names)
    outside = {i.dataset for job in dag.jobs if job.name in needed for i in job.inputs if i.dataset}
    typer.echo(
        f"Checking the SQL of {', '.join(names)} with Spark, which takes some seconds to start "
        "(--no-check skips it) …",
        err=True,
    )
    found = _judged(file, text, dag, _published(client, outside), names)
    for name in found.unknown:
        if name in names:
            typer.echo(f"note: {name} is {_UNKNOWN}", err=True)
    return found


_UNKNOWN = "not checked: the columns of an input are not known yet"
_NO_SPARK = (
    "SQL is checked by Spark, and {missing} is not installed where this program runs: install "
    "trace-etl with all it needs (`pip install trace-etl`), or skip the check with --no-check"
)


def columns(found: "Analysis") -> list[dict[str, Any]]:
    """The columns of every output that is known, as a deploy records them."""
    return [
        {
            "job": job,
            "output": output,
            "columns": [
                {"name": field.name, "type": field.dataType.simpleString()}
                for field in schema.fields
            ],
        }
        for (job, output), schema in found.outputs.items()
    ]


def _parsed(file: Path, text: str) -> "Dag":
    from trace_etl.dag.parsing import parse_dag
    from trace_etl.model.errors import Invalid

    try:
        return parse_dag(text)
    except Invalid as error:
        fail([f"{file}:{fault}" for fault in error.faults])


def _judged(
    file: Path,
    text: str,
    dag: "Dag",
    published: Mapping[str, list[dict[str, str]]],
    only: Collection[str] | None,
) -> "Analysis":
    """Ends the program when one of the jobs in question is wrong."""
    found = _analysed(dag, published, only)
    names = [job.name for job in dag.jobs]
    blamed = [one for one in found.complaints if only is None or names[one.job] in only]
    if blamed:
        fail([f"{file}:{_fault(text, dag, one)}" for one in blamed])
    return found


def _fault(text: str, dag: "Dag", complaint: "JobProblem") -> "Fault":
    """The complaint at its place inside the SQL, or else at the job's."""
    from trace_etl.dag.positions import inside, locate

    has_sql = "sql" in dag.jobs[complaint.job].config
    path = ("jobs", complaint.job, *(("config", "sql") if has_sql else ("operator",)))
    fault = locate(text).fault(path, complaint.message)
    if complaint.line is None or complaint.column is None:
        return fault
    place = inside(text, path, complaint.line, complaint.column)
    return replace(fault, line=place[0], column=place[1]) if place else fault


def _analysed(
    dag: "Dag", published: Mapping[str, list[dict[str, str]]], only: Collection[str] | None
) -> "Analysis":
    try:
        from trace_etl.spark.analysis import analyse_dag, struct_of_columns
        from trace_etl.spark.errors import SparkNotStarted
        from trace_etl.spark.session.warm_session import WarmSession
        from trace_etl.spark.settings import SparkSettings
    except ModuleNotFoundError as missing:
        fail([_NO_SPARK.format(missing=(missing.name or "pyspark").partition(".")[0])])

    with tempfile.TemporaryDirectory(prefix="trace-check-") as scratch:
        place = Path(scratch)
        warm = WarmSession(SparkSettings(place, place, master="local[1]", is_brief=True))
        try:
            with warm.lease(warm.get(), []) as spark:
                known = {name: struct_of_columns(shape) for name, shape in published.items()}
                return analyse_dag(spark, dag, known, only)
        except SparkNotStarted as error:
            fail([f"{error}; deploy without the check by --no-check"])
        finally:
            warm.close()


def _published(client: Client, names: Collection[str]) -> dict[str, list[dict[str, str]]]:
    """The columns of datasets from elsewhere, as far as they are known."""
    told = {name: client.get(f"/v1/datasets/{name}")["columns"] for name in sorted(names)}
    return {name: shape for name, shape in told.items() if shape}


def read(file: Path) -> str:
    """The text of a DAG file. Ends the program when there is none."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        fail([f"{file}: {error.strerror}"])
    except UnicodeDecodeError as error:
        fail([f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}"])


def _print(found: "Analysis", *, as_json: bool) -> None:
    outputs = {
        f"{job}.{name}": {field.name: field.dataType.simpleString() for field in schema.fields}
        for (job, name), schema in found.outputs.items()
    }
    if as_json:
        print_json({"outputs": outputs, "unknown": found.unknown})
        return
    rows = [(name, column, kind) for name, all_ in outputs.items() for column, kind in all_.items()]
    print_rows(("output", "column", "type"), rows)
    for name in found.unknown:
        typer.echo(f"{name}: {_UNKNOWN}")
