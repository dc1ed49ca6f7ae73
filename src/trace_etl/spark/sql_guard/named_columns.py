"""Find the columns that a SELECT names, from its text alone.

Spark Connect does not show optimised plans, and an optimised plan does not always tell which columns of an
input are used. A column that a SELECT cannot use without its name is not used if no name in the text is its
name.
"""

from collections.abc import Iterator

from trace_etl.spark.sql_guard.plan_tree import PlanNode

# Plans that pass on all columns of what they read: by other names, by position or without names.
_UNNAMED = frozenset(
    {"UnresolvedStar", "UnresolvedStarExceptOrReplace", "UnresolvedStarWithColumns"}
    | {"UnresolvedRegex", "NaturalJoin"}
)
_CHOOSING = frozenset({"Project", "Aggregate"})
# Plans that use columns only by name. All columns pass through them.
_PASSING = frozenset(
    {"Distinct", "Filter", "Generate", "GlobalLimit", "Join", "LateralJoin", "LocalLimit"}
    | {"LocalRelation", "Offset", "OneRowRelation", "Repartition", "RepartitionByExpression"}
    | {"Sample", "Sort", "SubqueryAlias", "Union", "UnresolvedHaving", "UnresolvedHint"}
    | {"UnresolvedInlineTable", "ResolvedInlineTable", "UnresolvedWith", "WithWindowDefinition"}
)


def find_named_columns(tree: PlanNode) -> frozenset[str] | None:
    """Return every name in a parsed SELECT, in lower case; None if it may use columns without naming them.

    A plan of any other class than the ones listed here may do that.
    """
    names: set[str] = set()
    for node, passes_all in _walk(tree):
        if node.name in _UNNAMED or (node.name == "UnresolvedRelation" and passes_all):
            return None
        if node.kind == "P" and node.name not in _PASSING | _CHOOSING | {"UnresolvedRelation"}:
            return None
        names |= {text.lower() for text in node.texts()}
    return frozenset(names)


def _walk(tree: PlanNode) -> Iterator[tuple[PlanNode, bool]]:
    """Yield every node, and whether all columns of a relation at that node would be part of a result.

    They would be unless the plan around them chooses columns. A plan in an expression is a new one.
    """
    waiting = [(tree, True)]
    while waiting:
        node, passes_all = waiting.pop()
        yield node, passes_all
        if node.kind == "E":
            passes_all = True
        elif node.name in _CHOOSING:
            passes_all = False
        elif node.name == "UnresolvedWith":
            passes_all = True  # a CTE is a plan of its own; the query chooses its own columns
        waiting.extend((part, passes_all) for part in node.nodes())
