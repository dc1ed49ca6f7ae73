"""Parse a DAG file: YAML with positions, the schema, and the checks that a schema cannot express."""

from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trace_etl.dag.checks.dag_checker import DagChecker, ParsedSections
from trace_etl.dag.error_messages import describe_error
from trace_etl.dag.operators import NAMEABLE, OPERATORS
from trace_etl.dag.positions import FieldPath, Located, locate
from trace_etl.dag.runtimes import Runtimes, shipped_runtimes
from trace_etl.dag.schema import (
    DagFile,
    Defaults,
    JobSection,
    NotifySection,
    PublishSection,
    Section,
    fields_at,
)
from trace_etl.model.dag import Dag
from trace_etl.model.errors import Fault, Invalid

_S = TypeVar("_S", bound=Section)
_Raw = dict[str, object]
_STAND_INS: _Raw = {"name": "x", "outputs": ["x"]}


def parse_dag(text: str, runtimes: Runtimes | None = None) -> Dag:
    """Parse the text of a DAG file. Raises Invalid with all faults and their positions.

    `runtimes` is the registry of the stack. Default: the shipped runtimes.
    """
    located = locate(text)
    errors = _find_schema_errors(located.data)
    faults = _make_faults(located, errors)
    data: object = located.data
    if not isinstance(data, dict):
        raise Invalid(faults)
    sections = _parse_sections(cast(_Raw, data), errors)
    checker = DagChecker(sections, located, runtimes or shipped_runtimes())
    dag = checker.build_dag()
    unreadable = {fault.field for fault in located.faults}
    faults = [f for f in [*faults, *checker.faults] if f.field not in unreadable] + located.faults
    if faults:
        raise Invalid(sorted(faults, key=lambda f: (f.line or 0, f.column or 0)))
    return dag


def _find_schema_errors(data: object) -> list[ErrorDetails]:
    try:
        DagFile.model_validate(data)
    except ValidationError as error:
        return error.errors()
    return []


def _make_faults(located: Located, errors: list[ErrorDetails]) -> list[Fault]:
    faults: list[Fault] = []
    for error in errors:
        path: FieldPath = error["loc"]
        known = fields_at(path[:-1]) if error["type"] == "extra_forbidden" else []
        faults.append(located.fault(path, describe_error(error, known)))
    return faults


def _parse_sections(data: _Raw, errors: list[ErrorDetails]) -> ParsedSections:
    """Parse every section, without the fields that the schema refuses."""
    invalid: dict[FieldPath, set[str]] = {}
    for error in errors:
        path: FieldPath = error["loc"]
        depth = 2 if path[0] in ("jobs", "publish", "notify") and len(path) > 1 else 1
        field = str(path[depth]) if len(path) > depth else ""
        invalid.setdefault(path[:depth], set()).add(field)

    def parse_all(kind: type[_S], name: str, stand_ins: _Raw | None = None) -> list[_S | None]:
        return [
            _parse_section(kind, value, invalid.get((name, n), set()), stand_ins)
            for n, value in enumerate(_convert_to_list(data.get(name)))
        ]

    jobs = parse_all(JobSection, "jobs")
    publish = parse_all(PublishSection, "publish")
    return ParsedSections(
        name=str(data.get("name")),
        defaults=_parse_section(Defaults, data.get("defaults"), invalid.get(("defaults",), set())),
        jobs=jobs,
        job_names=[_read_name(job) for job in _convert_to_list(data.get("jobs"))],
        publish=publish,
        notify=parse_all(NotifySection, "notify"),
        incomplete_jobs={
            n: job
            for n, job in enumerate(parse_all(JobSection, "jobs", _STAND_INS))
            if job and jobs[n] is None
        },
        incomplete_publish={
            n: entry
            for n, entry in enumerate(parse_all(PublishSection, "publish", {"name": "x"}))
            if entry and publish[n] is None
        },
        invalid={path: fields for path, fields in invalid.items() if len(path) == 2},
    )


def _convert_to_list(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []


def _read_name(job: object) -> str | None:
    name = cast(_Raw, job).get("name") if isinstance(job, dict) else None
    return name if isinstance(name, str) else None


def _parse_section(
    kind: type[_S], value: object, invalid: set[str], stand_ins: _Raw | None = None
) -> _S | None:
    """Parse a section without its invalid fields; None: a required field is missing or invalid.

    `stand_ins` are values for the required fields that are missing or invalid.
    """
    raw = cast(_Raw, value) if isinstance(value, dict) else {}
    valid = {k: v for k, v in raw.items() if k not in invalid}
    try:
        return kind.model_validate({**(stand_ins or {}), **valid})
    except ValidationError:
        return None


def dag_schema(runtimes: Runtimes | None = None) -> dict[str, Any]:
    """Return the JSON Schema of DAG files, which editors use."""
    names_of_runtimes = list((runtimes or shipped_runtimes()).entries)
    schema = DagFile.model_json_schema(by_alias=True)
    job = schema["$defs"]["JobSection"]
    names = NAMEABLE
    job["properties"]["operator"] = {"enum": names, "title": "Operator"}
    for section in (job, schema["$defs"]["Defaults"]):
        section["properties"]["runtime"] = {"enum": names_of_runtimes, "title": "Runtime"}
    job["allOf"] = [_make_config_rule(name, schema["$defs"]) for name in names]
    return schema


def _make_config_rule(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the rule that `config` has the schema of the named operator."""
    config = OPERATORS[name].config.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    definitions.update(config.pop("$defs", {}))
    then: dict[str, Any] = {"properties": {"config": config}}
    if config.get("required"):
        then["required"] = ["config"]
    return {
        "if": {"properties": {"operator": {"const": name}}, "required": ["operator"]},
        "then": then,
    }
