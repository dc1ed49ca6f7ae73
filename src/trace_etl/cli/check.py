"""`trace check`: every SELECT of a DAG file, judged by Spark before anything is deployed."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_etl.cli.client import fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from trace_etl.model.dag import Dag
    from trace_etl.pipeline.analysis import Analysis


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
    """What Spark says about a DAG file. Ends the program when something is wrong with it."""
    from trace_etl.model.errors import Fault, Invalid
    from trace_etl.plan.dagfile import parse_dag
    from trace_etl.plan.positions import locate

    text = read(file)
    try:
        dag = parse_dag(text)
    except Invalid as error:
        fail([f"{file}:{fault}" for fault in error.faults])
    found = _analysed(dag, _published(dag, home))
    located = locate(text)
    faults: list[Fault] = []
    for complaint in found.complaints:
        place = ("config", "sql") if "sql" in dag.jobs[complaint.job].config else ("operator",)
        faults.append(located.fault(("jobs", complaint.job, *place), complaint.message))
    if faults:
        fail([f"{file}:{fault}" for fault in faults])
    return found


def _analysed(dag: "Dag", published: "dict[str, StructType]") -> "Analysis":
    from trace_etl.pipeline.analysis import analyse
    from trace_etl.pipeline.session import WarmSession
    from trace_etl.pipeline.settings import PipelineSettings

    with tempfile.TemporaryDirectory(prefix="trace-check-") as scratch:
        place = Path(scratch)
        warm = WarmSession(PipelineSettings(place, place, master="local[1]"))
        try:
            with warm.lease(warm.get(), []) as spark:
                return analyse(spark, dag, published)
        finally:
            warm.close()


def _published(dag: "Dag", home: Path) -> "dict[str, StructType]":
    """The columns of the datasets that the DAG reads from elsewhere."""
    names = {item.dataset for job in dag.jobs for item in job.inputs if item.dataset}
    if not names:
        return {}
    from pyspark.sql.types import StructType

    found: dict[str, StructType] = {}
    with session(home) as client:
        for name in sorted(names):
            columns: list[dict[str, str]] = client.get(f"/v1/datasets/{name}")["columns"]
            if columns:
                ddl = ", ".join(f"`{one['name']}` {one['type']}" for one in columns)
                found[name] = StructType.fromDDL(ddl)  # pyright: ignore[reportArgumentType]
    return found


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
        typer.echo(f"not checked: {name} (the columns of an input are not known yet)")
