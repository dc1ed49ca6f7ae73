"""Declares the operator `pseudonyms`. The Dispatcher imports this module, so it imports no Spark."""

from pydantic import Field

from trace_etl.dag.operator import Operator, OperatorConfig, one_input, one_output


class PseudonymsConfig(OperatorConfig):
    columns: list[str] = Field(min_length=1, description="Columns whose values are replaced.")


OPERATOR = Operator(
    "pseudonyms",
    PseudonymsConfig,
    ("spark",),
    one_output,
    one_input,
    takes_secrets=True,
    module="trace_pseudonyms.run",
)
