"""Run the data checks of a task on the rows that it wrote, or is about to write."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from trace_etl.api.task.checks import MAX_SAMPLE_TEXT, MAX_SAMPLES, CheckResult, TaskCheck
from trace_etl.api.task.payload import Scope, TaskOutput
from trace_etl.spark.checks import rules
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask, CheckFailed
from trace_etl.spark.io.column_names import quote_name
from trace_etl.spark.io.inputs import SMALL_BYTES, read_files
from trace_etl.spark.io.parquet import WrittenFile
from trace_etl.spark.io.scan import Scan
from trace_etl.spark.io.writers import Frame, OutputFile

_MAX_MESSAGE = 1000


@dataclass(frozen=True)
class _Finding:
    """What a check found."""

    passed: bool
    checked_rows: int
    failing_rows: int = 0
    problem: str = ""
    sample: Callable[[], DataFrame] | None = None
    """The failing rows, if rows fail."""


def check_files(
    context: OperatorContext,
    schemas: Mapping[str, Any],
    targets: Mapping[str, OutputFile],
    files: Mapping[str, WrittenFile],
) -> list[CheckResult]:
    """Check the written files, which hold exactly what would be committed. Raises CheckFailed.

    Only the columns that the checks name are read.
    """
    if not context.task.checks:
        return []

    def read(name: str) -> DataFrame:
        key = targets[name].with_suffix("parquet").key
        scan = Scan(context.settings.objects, (key,), schemas[name])
        frame = read_files(context.spark, from_arrow_schema(schemas[name]), scan)
        return frame.coalesce(1) if files[name].bytes <= SMALL_BYTES else frame

    frames = {name: read(name) for name in schemas}
    return _run_checks(context, frames, {name: file.rows for name, file in files.items()})


@contextmanager
def checked_rows(
    context: OperatorContext, result: Frame
) -> Generator[tuple[Frame, list[CheckResult]]]:
    """Check rows for a table before they are written, and keep them to be written. Raises CheckFailed."""
    if not context.task.checks:
        yield result, []
        return
    kept = result.frame.persist()
    try:
        results = _run_checks(context, {result.output: kept}, {})
        yield replace(result, frame=kept), results
    finally:
        kept.unpersist()


def _run_checks(
    context: OperatorContext, frames: Mapping[str, DataFrame], row_counts: Mapping[str, int]
) -> list[CheckResult]:
    task = context.task
    outputs = {output.name: output for output in task.outputs}
    key = (task.scope or Scope()).output_key
    results: list[CheckResult] = []
    blocking: list[str] = []
    for name in dict.fromkeys(check.output for check in task.checks):
        checks = [check for check in task.checks if check.output == name]
        rows = _CheckedOutput(context, outputs[name], frames, row_counts.get(name))
        for check, finding in zip(checks, rows.find(checks), strict=True):
            context.check()
            samples = rows.sample(check, finding)
            message = _describe(check, finding, samples)
            results.append(
                CheckResult(
                    dataset_version=outputs[name].dataset_version,
                    partition_key=key,
                    name=check.name,
                    passed=finding.passed,
                    checked_rows=finding.checked_rows,
                    failing_rows=finding.failing_rows,
                    samples=samples,
                    message=message,
                )
            )
            if check.on_failure == "block" and not finding.passed:
                blocking.append(message)
    if blocking:
        raise CheckFailed.of(f"{'; '.join(blocking)}. Nothing was committed", results)
    return results


def _describe(
    check: TaskCheck, finding: _Finding, samples: Sequence[Mapping[str, str | None]]
) -> str:
    if finding.passed:
        return ""
    keys = "; ".join(", ".join(f"{k}={v}" for k, v in sample.items()) for sample in samples)
    text = f"check {check.name} of {check.output} failed: {finding.problem}"
    return (f"{text}, for example {keys}" if keys else text)[:_MAX_MESSAGE]


@dataclass(frozen=True)
class _CheckedOutput:
    """The rows of one output."""

    context: OperatorContext
    output: TaskOutput
    frames: Mapping[str, DataFrame]
    row_count: int | None
    """The number of rows that the writer counted. None: the checks count them."""

    @property
    def rows(self) -> DataFrame:
        return self.frames[self.output.name]

    def find(self, checks: Sequence[TaskCheck]) -> list[_Finding]:
        """Run the checks of the output. One pass over the rows answers all that need no other rows."""
        spark = self.context.spark
        parser = self.context.open_parser(spark)
        for check in checks:
            referred = self._load_referred(check)
            rules.check_rule(parser, check, self.rows, referred.schema if referred else None)
        measured = {
            f"m{n}": column
            for n, check in enumerate(checks)
            if (column := self._measure(check)) is not None
        }
        values = self._aggregate(measured)
        total = self.row_count if self.row_count is not None else values["rows"]
        return [self._evaluate(check, values.get(f"m{n}"), total) for n, check in enumerate(checks)]

    def _aggregate(self, measured: Mapping[str, Column]) -> dict[str, Any]:
        if not measured and self.row_count is not None:
            return {}
        columns = [column.alias(name) for name, column in measured.items()]
        counted = self.rows.agg(F.count(F.lit(1)).alias("rows"), *columns)
        return cast("list[Any]", counted.collect())[0].asDict()

    def _measure(self, check: TaskCheck) -> Column | None:
        if check.rule.sql is not None:
            return rules.count_if_false(check.rule.sql)
        if check.kind == "not_null":
            return F.count_if(rules.has_null(check.rule.columns))
        if check.rule.column is not None:
            return rules.newest_second(check.rule.column, self.rows.schema)
        return None

    def _evaluate(self, check: TaskCheck, measured: Any, total: int) -> _Finding:
        rule = check.rule
        if check.kind == "rows":
            return _evaluate_bounds(total, rule.min, rule.max)
        if rule.column is not None:
            return _evaluate_age(measured, total, rule.column, rule.within_seconds or 0)
        if rule.sql is not None:
            condition = rules.is_false(rule.sql)
            problem = f"do not meet `{_shorten(rule.sql)}`"
            return _evaluate_rows(measured, total, problem, lambda: self.rows.where(condition))
        columns = ", ".join(rule.columns)
        if check.kind == "not_null":
            missing = rules.has_null(rule.columns)
            problem = f"have no value in {columns}"
            return _evaluate_rows(measured, total, problem, lambda: self.rows.where(missing))
        if check.kind == "unique":
            found = rules.find_duplicates(self.rows, rule.columns)
            failing = _read_first_value(found.agg(F.sum("n"))) or 0
            return _evaluate_rows(failing, total, f"share their {columns}", lambda: found)
        referred = self._load_referred(check)
        assert referred is not None
        missing_rows = rules.find_missing(
            self.rows, rule.columns, referred, rule.to or rule.columns
        )
        failing = _read_first_value(missing_rows.agg(F.count(F.lit(1))))
        problem = f"have {columns} that {rule.input or rule.output} does not have"
        return _evaluate_rows(failing, total, problem, lambda: missing_rows)

    def _load_referred(self, check: TaskCheck) -> DataFrame | None:
        """The rows that a `references` check compares with. Raises BadTask."""
        if check.kind != "references":
            return None
        if check.rule.input is not None:
            return self.context.input(check.rule.input).frame
        other = self.frames.get(check.rule.output or "")
        if other is None:
            raise BadTask(
                f"check {check.name}: the job has no output {check.rule.output}; name one of its outputs"
            )
        return other

    def sample(self, check: TaskCheck, finding: _Finding) -> list[dict[str, str | None]]:
        """The key columns of a few failing rows."""
        if finding.sample is None:
            return []
        frame = finding.sample()
        names = rules.choose_key(check, self.output.unique_key, frame.columns)
        chosen = frame.select(*(F.col(quote_name(name)) for name in names)).limit(MAX_SAMPLES)
        rows = cast("list[Any]", chosen.collect())
        return [
            {name: _render(value) for name, value in zip(names, row, strict=True)} for row in rows
        ]


def _read_first_value(frame: DataFrame) -> Any:
    return cast("list[Any]", frame.collect())[0][0]


def _evaluate_rows(
    failing: int, total: int, problem: str, sample: Callable[[], DataFrame]
) -> _Finding:
    if not failing:
        return _Finding(True, total)
    return _Finding(False, total, failing, f"{failing} of {total} rows {problem}", sample)


def _evaluate_bounds(total: int, least: int | None, most: int | None) -> _Finding:
    if least is not None and total < least:
        return _Finding(False, total, problem=f"{total} rows, but at least {least} are required")
    if most is not None and total > most:
        return _Finding(False, total, problem=f"{total} rows, but at most {most} are allowed")
    return _Finding(True, total)


def _evaluate_age(newest: float | None, total: int, column: str, within: int) -> _Finding:
    if newest is None:
        return _Finding(False, total, problem=f"no row has a value in {column}")
    age = int(time.time() - newest)
    if age <= within:
        return _Finding(True, total)
    at = datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
    problem = f"the newest {column} is {at}, {age} s ago, but at most {within} s are allowed"
    return _Finding(False, total, problem=problem)


def _shorten(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= 200 else text[:197] + "..."


def _render(value: Any) -> str | None:
    if value is None:
        return None
    text = f"0x{bytes(value).hex()}" if isinstance(value, bytes | bytearray) else str(value)
    text = text.replace("\x00", "")
    return text if len(text) <= MAX_SAMPLE_TEXT else text[: MAX_SAMPLE_TEXT - 1] + "…"
