"""Filters on inputs: the map form, the older string form, and the refusal of other forms."""

import pytest

from trace_etl.dag.where import check_where
from trace_etl.model.errors import Invalid


@pytest.mark.parametrize(
    ("given", "map_form"),
    [
        ({"severity": "critical"}, {"severity": "critical"}),
        ({"n": [1, 2]}, {"n": [1, 2]}),
        ("severity = 'critical'", {"severity": "critical"}),
        ("a = 'it''s' AND b IN (1, -2.5, 'x')", {"a": "it's", "b": [1, -2.5, "x"]}),
        ("flag = true and n = 3", {"flag": True, "n": 3}),
    ],
)
def test_both_forms_are_parsed_to_the_map_form(given, map_form):
    assert check_where(given) == map_form


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("severity > 3", 10),
        ("a = 'x' OR b = 'y'", 9),
        ("a = 'x'; DROP TABLE t", 8),
        ("a = (SELECT 1)", 5),
        ("a IN ()", 7),
        ("a = 'unclosed", 5),
        ("", 1),
        ("a = 1 AND a = 2", 11),
    ],
)
def test_other_syntax_is_refused_with_its_position(text, position):
    with pytest.raises(Invalid) as refused:
        check_where(text)
    assert f"at position {position}" in refused.value.detail


@pytest.mark.parametrize("given", [{}, [], 3, {"a b": 1}, {"a": {}}, {"a": []}, {"a": None}])
def test_an_invalid_map_is_refused(given):
    with pytest.raises(Invalid):
        check_where(given)
