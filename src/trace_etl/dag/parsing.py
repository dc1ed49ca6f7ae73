"""Reading a DAG file: YAML with positions, its schema, and what no schema can say."""

from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trace_etl.dag.checks import RUNTIMES, Checker, Drafts
from trace_etl.dag.complaints import complaint
from trace_etl.dag.operators import NAMEABLE, OPERATORS
from trace_etl.dag.positions import Located, Path, locate
from trace_etl.dag.schema import DagFile, Defaults, JobSection, PublishSection, Section, fields_at
from trace_etl.model.dag import Dag
from trace_etl.model.errors import Fault, Invalid

_S = TypeVar("_S", bound=Section)
_Raw = dict[str, object]


def parse_dag(text: str) -> Dag:
    """The DAG that a file describes. Raises Invalid with every fault, each with its position."""
    located = locate(text)
    errors = _schema_errors(located.data)
    faults = _schema_faults(located, errors)
    data: object = located.data
    if not isinstance(data, dict):
        raise Invalid(faults)
    checker = Checker(_drafts(cast(_Raw, data), errors), located)
    dag = checker.dag()
    told = {fault.field for fault in located.faults}
    faults = [f for f in [*faults, *checker.faults] if f.field not in told] + located.faults
    if faults:
        raise Invalid(sorted(faults, key=lambda f: (f.line or 0, f.column or 0)))
    return dag


def _schema_errors(data: object) -> list[ErrorDetails]:
    try:
        DagFile.model_validate(data)
    except ValidationError as error:
        return error.errors()
    return []


def _schema_faults(located: Located, errors: list[ErrorDetails]) -> list[Fault]:
    found: list[Fault] = []
    for error in errors:
        path: Path = error["loc"]
        known = fields_at(path[:-1]) if error["type"] == "extra_forbidden" else []
        found.append(located.fault(path, complaint(error, known)))
    return found


def _drafts(data: _Raw, errors: list[ErrorDetails]) -> Drafts:
    """Every section as far as it can be read: what its schema refuses is left out."""
    broken: dict[Path, set[str]] = {}
    for error in errors:
        place: Path = error["loc"]
        depth = 2 if place[0] in ("jobs", "publish") and len(place) > 1 else 1
        field = str(place[depth]) if len(place) > depth else ""
        broken.setdefault(place[:depth], set()).add(field)
    jobs, publish = _items(data.get("jobs")), _items(data.get("publish"))
    return Drafts(
        name=str(data.get("name")),
        defaults=_section(Defaults, data.get("defaults"), broken.get(("defaults",), set())),
        jobs=[_section(JobSection, j, broken.get(("jobs", n), set())) for n, j in enumerate(jobs)],
        job_names=[_name(job) for job in jobs],
        publish=[
            _section(PublishSection, p, broken.get(("publish", n), set()))
            for n, p in enumerate(publish)
        ],
        broken={place: fields for place, fields in broken.items() if len(place) == 2},
    )


def _items(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []


def _name(job: object) -> str | None:
    found = cast(_Raw, job).get("name") if isinstance(job, dict) else None
    return found if isinstance(found, str) else None


def _section(kind: type[_S], value: object, broken: set[str]) -> _S | None:
    """A section without its broken fields; None when nothing is left to check."""
    raw = cast(_Raw, value) if isinstance(value, dict) else {}
    try:
        return kind.model_validate({k: v for k, v in raw.items() if k not in broken})
    except ValidationError:
        return None


def dag_schema() -> dict[str, Any]:
    """The JSON Schema of a DAG file, for editors."""
    schema = DagFile.model_json_schema(by_alias=True)
    job = schema["$defs"]["JobSection"]
    names = NAMEABLE
    job["properties"]["operator"] = {"enum": names, "title": "Operator"}
    for section in (job, schema["$defs"]["Defaults"]):
        section["properties"]["runtime"] = {"enum": list(RUNTIMES), "title": "Runtime"}
    job["allOf"] = [_config_rule(name, schema["$defs"]) for name in names]
    return schema


def _config_rule(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """`config` is what the operator declares, once the operator is named."""
    config = OPERATORS[name].config.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    definitions.update(config.pop("$defs", {}))
    then: dict[str, Any] = {"properties": {"config": config}}
    if config.get("required"):
        then["required"] = ["config"]
    return {
        "if": {"properties": {"operator": {"const": name}}, "required": ["operator"]},
        "then": then,
    }
