"""`trace check`: check a DAG file with Spark before it is deployed."""

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trace_etl.cli.client import StackClient, fail, quote_segment, session
from trace_etl.cli.options import DEFAULT_HOME, DagFileArgument, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import print_json, print_note, print_rows
from trace_etl.cli.progress import show_counts
from trace_etl.objects.file_store import FileStore

if TYPE_CHECKING:
    from trace_etl.dag.positions import FieldPath
    from trace_etl.model.dag import Dag
    from trace_etl.model.errors import Fault
    from trace_etl.spark.analysis import Analysis, JobProblem

InputColumns = Mapping[str, list[dict[str, str]]]
"""Columns (`name`, `type`) of published datasets, by dataset name."""

_NOT_CHECKED = "not checked: the columns of an input are not known yet"
_NO_SPARK = (
    "{missing} is not installed, so Spark cannot check the SQL: install trace-etl with all its "
    "dependencies (`pip install trace-etl`), or skip the check with --no-check"
)


def check(
    file: DagFileArgument,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check the SQL of a DAG file with Spark.

    Checks SQL, columns and filters, and changes nothing. Starts its own Spark session, which takes
    some seconds. If the DAG reads published datasets, their columns are read from the running stack.
    """
    print_analysis(check_file(file, home), as_json=as_json)


def check_file(file: Path, home: Path) -> "Analysis":
    """Check all jobs of a DAG file. Exits if one of them has an error."""
    text = read_dag_file(file)
    dag = _parse_file(file, text, home)
    names = {item.dataset for job in dag.jobs for item in job.inputs if item.dataset}
    if not names:
        return _analyse_or_fail(file, text, dag, {}, None)
    with session(home) as client:
        published = _fetch_columns(client, names)
    return _analyse_or_fail(file, text, dag, published, None)


def check_changes(
    file: Path, text: str, plan: Mapping[str, Any], client: StackClient, home: Path
) -> "Analysis | None":
    """Check the SQL that a plan adds or changes; None if there is none. Exits on an error."""
    from trace_etl.policy.deploy.sql_checks import add_upstream_jobs, find_changed_sql_jobs

    dag = _parse_file(file, text, home)
    names = find_changed_sql_jobs(dag, plan["jobs"])
    if not names:
        return None
    needed = add_upstream_jobs(dag, names)
    inputs = {i.dataset for job in dag.jobs if job.name in needed for i in job.inputs if i.dataset}
    print_note(
        f"Checking the SQL of {', '.join(names)} with Spark, which takes some seconds to start "
        "(--no-check skips it) …"
    )
    analysis = _analyse_or_fail(file, text, dag, _fetch_columns(client, inputs), names)
    return replace(analysis, unknown=[name for name in analysis.unknown if name in names])


def list_unchecked(analysis: "Analysis") -> list[str]:
    """Describe the jobs that could not be checked."""
    return [f"{name} is {_NOT_CHECKED}" for name in analysis.unknown]


def describe_columns(analysis: "Analysis") -> list[dict[str, Any]]:
    """List the known columns of each output, in the form of a deploy request."""
    return [
        {
            "job": job,
            "output": output,
            "columns": [
                {"name": field.name, "type": field.dataType.simpleString()}
                for field in schema.fields
            ],
        }
        for (job, output), schema in analysis.outputs.items()
    ]


def _parse_file(file: Path, text: str, home: Path) -> "Dag":
    from trace_etl.dag.parsing import parse_dag
    from trace_etl.dag.runtimes import BadRuntimes, load_runtimes
    from trace_etl.lite.home import Home
    from trace_etl.model.errors import Invalid

    runtimes = Home.at(home).runtimes
    try:
        return parse_dag(text, load_runtimes(runtimes if runtimes.exists() else None))
    except BadRuntimes as error:
        fail([str(error)])
    except Invalid as error:
        fail([f"{file}:{fault}" for fault in error.faults])


def _analyse_or_fail(
    file: Path, text: str, dag: "Dag", published: InputColumns, only: Collection[str] | None
) -> "Analysis":
    """Analyse the DAG. Exits if a job in `only` (None: any job) has an error."""
    analysis = _analyse(dag, published, only)
    names = [job.name for job in dag.jobs]
    errors = [
        problem for problem in analysis.problems if only is None or names[problem.job] in only
    ]
    if errors:
        fail([f"{file}:{_locate_problem(text, dag, problem)}" for problem in errors])
    return analysis


def _locate_problem(text: str, dag: "Dag", problem: "JobProblem") -> "Fault":
    """Find the file position of an error: inside the SQL if known, else at the check or the job."""
    from trace_etl.dag.positions import locate, locate_inside

    has_sql = "sql" in dag.jobs[problem.job].config
    path: FieldPath = ("jobs", problem.job, *(("config", "sql") if has_sql else ("operator",)))
    if problem.check is not None:
        path = ("jobs", problem.job, "checks", problem.check)
    fault = locate(text).fault(path, problem.message)
    if problem.line is None or problem.column is None:
        return fault
    position = locate_inside(text, path, problem.line, problem.column)
    return replace(fault, line=position[0], column=position[1]) if position else fault


def _analyse(dag: "Dag", published: InputColumns, only: Collection[str] | None) -> "Analysis":
    try:
        from trace_etl.spark.analysis import analyse_dag, struct_of_columns
        from trace_etl.spark.errors import SparkNotStarted
        from trace_etl.spark.session.warm_session import WarmSession
        from trace_etl.spark.settings import SparkSettings
    except ModuleNotFoundError as missing:
        fail([_NO_SPARK.format(missing=(missing.name or "pyspark").partition(".")[0])])

    with tempfile.TemporaryDirectory(prefix="trace-check-") as scratch:
        directory = Path(scratch)
        settings = SparkSettings(FileStore(directory), directory, master="local[1]", is_brief=True)
        warm = WarmSession(settings)
        try:
            with show_counts() as report:
                report("starting Spark", 0, 0)
                with warm.lease(warm.get(), []) as spark:
                    schemas = {name: struct_of_columns(shape) for name, shape in published.items()}
                    return analyse_dag(
                        spark, dag, schemas, only, lambda done, all_: report("checking", done, all_)
                    )
        except SparkNotStarted as error:
            fail([f"{error}; skip the check with --no-check"])
        finally:
            warm.close()


def _fetch_columns(client: StackClient, names: Collection[str]) -> InputColumns:
    """Fetch the columns of published datasets; leave out those that are not known yet."""
    columns_by_name = {
        name: client.get(f"/v1/datasets/{quote_segment(name)}")["columns"] for name in sorted(names)
    }
    return {name: columns for name, columns in columns_by_name.items() if columns}


def read_dag_file(file: Path) -> str:
    """Read the text of a DAG file. Exits if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        fail([f"{file}: {error.strerror}"])
    except UnicodeDecodeError as error:
        fail([f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8"])


def print_analysis(analysis: "Analysis", *, as_json: bool) -> None:
    """Print the columns of the outputs."""
    outputs = {
        f"{job}.{name}": {field.name: field.dataType.simpleString() for field in schema.fields}
        for (job, name), schema in analysis.outputs.items()
    }
    if as_json:
        print_json({"outputs": outputs, "unknown": analysis.unknown})
        return
    rows = [
        (name, column, type_)
        for name, columns in outputs.items()
        for column, type_ in columns.items()
    ]
    print_rows(("output", "column", "type"), rows)
    for line in list_unchecked(analysis):
        typer.echo(f"{line}.")
