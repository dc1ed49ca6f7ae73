"""Check the parsed plan of a SELECT against the lists of what a SELECT may contain."""

from collections.abc import Collection, Iterator

from trace_etl.spark.errors import BadSql
from trace_etl.spark.sql_guard.allowed import CLASSES, FUNCTIONS, UNSAFE_FUNCTIONS
from trace_etl.spark.sql_guard.plan_tree import PlanNode

_BUILTIN = ("", "builtin", "system.builtin")
# Values inside plans and expressions: names, data types, join types, literals.
_VALUES = ("org.apache.spark.sql.", "org.apache.spark.unsafe.types.", "scala.", "java.", "[")
NAMED_PARAMETER = "org.apache.spark.sql.catalyst.analysis.NamedParameter"
_IDENTIFIER = "IDENTIFIER(…) is not allowed in a SELECT; write the name itself"
_POSITIONAL = "a ? is not allowed in a SELECT; write the value itself"
_REASONS = {
    "ScriptTransformation": "not one SELECT: TRANSFORM … USING runs a program; remove it",
    "ExpressionWithUnresolvedIdentifier": _IDENTIFIER,
    "PlanWithUnresolvedIdentifier": _IDENTIFIER,
    "PosParameter": _POSITIONAL,
    "RelationTimeTravel": "AS OF is not allowed in a SELECT: an input has one version; remove it",
    "RelationChanges": "CHANGES is not allowed in a SELECT: an input has one version; remove it",
    "NamedStreamingRelation": "STREAM is not allowed in a SELECT; write the input's name only",
}
_Scoped = tuple[PlanNode, frozenset[str]]


def check_plan(root: PlanNode, inputs: Collection[str], parameters: Collection[str] = ()) -> None:
    """Check every part of a plan. Raises BadSql naming the part that is not allowed.

    `parameters` are the names that a query may use as `:name`; their values are bound later.

    A part of an unknown class is refused, so an upgrade of Spark allows nothing new.
    """
    input_names = frozenset(name.lower() for name in inputs)
    waiting: list[_Scoped] = [(root, input_names)]
    while waiting:
        node, relations = waiting.pop()
        if node.class_name == NAMED_PARAMETER:
            _check_parameter(node.texts()[0], parameters)
            continue
        _check_class(node)
        if node.name == "UnresolvedWith":
            waiting.extend(_open_scope(node, relations))
            continue
        if node.name == "UnresolvedRelation":
            _check_relation(node, relations, inputs)
        elif node.name in ("UnresolvedFunction", "UnresolvedTableValuedFunction"):
            _check_function(next(node.nodes()).texts())
        elif node.name == "UnresolvedGenerator":
            _check_function(_read_identifier(next(node.nodes())))
        # Spark substitutes CTEs everywhere but in maps: there, such a name means a table.
        inside = input_names if node.kind == "{" else relations
        waiting.extend((part, inside) for part in node.nodes())


def list_parameters(root: PlanNode) -> set[str]:
    """Return the names of the parameters in a plan."""
    names: set[str] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.class_name == NAMED_PARAMETER:
            names.add(node.texts()[0])
        waiting.extend(node.nodes())
    return names


def _check_parameter(name: str, parameters: Collection[str]) -> None:
    if name not in parameters:
        known = ", ".join(f":{item}" for item in parameters) or "none"
        raise BadSql(f"there is no parameter :{name}; the parameters are: {known}")


def _check_class(node: PlanNode) -> None:
    if node.kind in "[{" or (node.kind in "PE" and node.class_name in CLASSES):
        return
    is_value = node.kind in "DX" and node.class_name.startswith(_VALUES)
    if is_value and "$Lambda" not in node.class_name:
        return
    raise BadSql(_REASONS.get(node.name) or f"{node.name} is not allowed in a SELECT; remove it")


def _open_scope(node: PlanNode, relations: frozenset[str]) -> Iterator[_Scoped]:
    """Yield the query and the CTEs of a WITH. Each CTE sees those before it, and itself if recursive."""
    query, ctes = node.nodes()
    is_recursive = "=true" in node.parts
    for cte in ctes.nodes():
        name = frozenset([cte.texts()[0].lower()])
        yield cte, relations | name if is_recursive else relations
        relations |= name
    yield query, relations


def _check_relation(node: PlanNode, relations: frozenset[str], inputs: Collection[str]) -> None:
    names, options = node.nodes()
    parts = names.texts()
    if len(parts) != 1 or parts[0].lower() not in relations:
        raise BadSql(
            f"{'.'.join(parts)} is not an input of the job; a SELECT may read only its inputs "
            f"(inputs: {', '.join(inputs) or 'none'})"
        )
    if options.parts:
        raise BadSql(f"{parts[0]}: options of a table are not allowed in a SELECT; remove WITH (…)")
    if "=true" in node.parts:
        raise BadSql(_REASONS["NamedStreamingRelation"])


def _read_identifier(node: PlanNode) -> list[str]:
    """The name in a FunctionIdentifier, whose optional schema and catalog follow the function."""
    optional = [text for part in node.nodes() for text in part.texts()]
    return [*reversed(optional), *node.texts()]


def _check_function(parts: list[str]) -> None:
    *path, name = [part.lower() for part in parts]
    if name in UNSAFE_FUNCTIONS:
        raise BadSql(
            f"{name} is not allowed in a SELECT: it calls Java methods or reads files; remove it"
        )
    if ".".join(path) not in _BUILTIN or name not in FUNCTIONS:
        raise BadSql(
            f"function {'.'.join(parts)} is not allowed in a SELECT; "
            "use one of the listed functions of Spark"
        )
