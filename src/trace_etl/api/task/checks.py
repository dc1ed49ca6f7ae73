"""Data checks: the rules that a worker runs on its outputs, and their results."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, StringConstraints, field_validator

from trace_etl.api.body import Count, Key, Name, Reply, Request, Text
from trace_etl.model.dag import OnFailure

CheckKind = Literal["condition", "unique", "not_null", "rows", "freshness", "references"]
MAX_SAMPLES = 5
MAX_SAMPLE_TEXT = 100
SampleText = Annotated[str, StringConstraints(max_length=MAX_SAMPLE_TEXT, pattern=r"^[^\x00]*$")]


class CheckRule(Reply):
    """The settings of a check. Each kind has its own; the others are null."""

    sql: str | None = None
    columns: list[str] = []
    min: int | None = None
    max: int | None = None
    column: str | None = None
    within_seconds: int | None = None
    input: str | None = None
    output: str | None = None
    to: list[str] | None = None


class TaskCheck(Reply):
    """A check that the worker runs on an output before it reports the completion."""

    output: str
    name: str
    kind: CheckKind
    rule: CheckRule
    on_failure: OnFailure = "block"
    consumers: list[str] = []
    key: list[str] = []
    """The columns that identify failing rows. Empty: the worker chooses."""


class CheckResult(Request):
    """The result of a check of an output. Kind and consequence come from the job's definition."""

    dataset_version: UUID
    partition_key: Key
    name: Name
    passed: bool
    checked_rows: Count
    failing_rows: Count
    """How many rows fail. 0 for a failed `rows` or `freshness` check, which no single row fails."""
    samples: Annotated[list[dict[Name, SampleText | None]], Field(max_length=MAX_SAMPLES)] = []
    """The key columns of a few failing rows, as texts."""
    message: Annotated[Text, StringConstraints(max_length=1000)] = ""
    """What is wrong; empty if the check passed."""

    @field_validator("samples")
    @classmethod
    def _check_width(cls, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any(len(sample) > 100 for sample in samples):
            raise ValueError("a sample may have at most 100 columns")
        return samples
