"""Errors of request bodies name the field and what it must be, in the words of Trace."""

from typing import Any

import pytest
from pydantic import ValidationError

from trace_etl.api.body import Request
from trace_etl.api.task.lifecycle import Heartbeat
from trace_etl.api.user.data.query import QueryRequest
from trace_etl.http.problems import from_validation


@pytest.mark.parametrize(
    ("model", "field", "value", "message"),
    [
        (QueryRequest, "params", 5, "must be a list of values, or an object"),
        (QueryRequest, "params", [1, [2]], "the value of $2 must be null, true, false"),
        (QueryRequest, "params", {"a": {}}, "the value of $a must be null, true, false"),
        (QueryRequest, "params", {"a b": 1}, "'a b' is not a parameter name"),
        (QueryRequest, "params", [2**64], "the value of $1 has more than 64 bits"),
        (QueryRequest, "params", [1] * 1001, "has 1001 values; the maximum is 1000"),
        (QueryRequest, "format", "xml", "must be 'json', 'arrow', 'parquet', 'csv' or 'columns'"),
        (QueryRequest, "limit", "many", "must be an integer"),
        (QueryRequest, "sql", "", "must have at least 1 character"),
        (Heartbeat, "task_id", "x", "must be a UUID, such as"),
        (Heartbeat, "lease_token", 5, "must be a UUID, as text"),
    ],
)
def test_a_fault_names_its_field_and_what_it_must_be(
    model: type[Request], field: str, value: Any, message: str
) -> None:
    usual = {
        QueryRequest: {"sql": "SELECT 1"},
        Heartbeat: {
            "task_id": "123e4567-e89b-12d3-a456-426614174000",
            "attempt": 1,
            "lease_token": "123e4567-e89b-12d3-a456-426614174000",
        },
    }[model]
    model.model_validate(usual)
    with pytest.raises(ValidationError) as refused:
        model.model_validate({**usual, field: value})
    (fault,) = from_validation(refused.value.errors()).faults
    assert fault.field == field
    assert fault.message.startswith(message)
