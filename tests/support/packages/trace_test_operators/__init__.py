"""Operators that only tests use, in a package of their own."""

from trace_etl.dag.operator import Operator, OperatorConfig, one_output


class StubbornConfig(OperatorConfig):
    file: str
    obeys: bool = False


class TalkativeConfig(OperatorConfig):
    say: str


class LoudConfig(OperatorConfig):
    say: str
    flood: int = 0


LOUD = Operator("loud", LoudConfig, ("spark",), one_output, module="trace_test_operators.loud")
STUBBORN = Operator(
    "stubborn", StubbornConfig, ("spark",), one_output, module="trace_test_operators.stubborn"
)
TALKATIVE = Operator(
    "talkative", TalkativeConfig, ("spark",), one_output, module="trace_test_operators.talkative"
)
