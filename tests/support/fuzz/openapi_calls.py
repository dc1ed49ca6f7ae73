"""Calls generated from an OpenAPI document.

Schemathesis is imported on first use: the import takes seconds, and every test process reads the
test modules.
"""

from collections.abc import Collection
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings

from support.reference import openapi

bounded = settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# Malformed calls are slow to generate, and the random calls send many more.
bounded_malformed = settings(bounded, max_examples=4)


_served: dict[str, dict[str, Any]] = {}


def register(name: str, document: dict[str, Any]) -> None:
    """Use the document that a service serves, for an API without a reference page."""
    _served[name] = document


def _document(name: str) -> dict[str, Any]:
    return _served.get(name) or openapi(name)


def labels(name: str) -> dict[str, dict[str, Any]]:
    """Return the operations in the document of an API by their label, such as `GET /v1/me`."""
    paths = _document(name)["paths"]
    return {f"{m.upper()} {path}": paths[path][m] for path in paths for m in paths[path]}


def positive(name: str, label: str) -> Any:
    """Return a strategy for well-formed calls of an operation."""
    from schemathesis import GenerationMode

    return _operations(name)[label].as_strategy(GenerationMode.POSITIVE)


def negative(name: str, label: str) -> Any:
    """Return a strategy for malformed calls of an operation."""
    from schemathesis import GenerationMode

    return _operations(name)[label].as_strategy(GenerationMode.NEGATIVE)


def _without_long_limits(value: Any) -> Any:
    """Leave out limits that no generated text reaches: together with a pattern, each draw takes seconds."""
    if isinstance(value, dict):
        is_long = isinstance(value.get("maxLength"), int) and value["maxLength"] > 10_000
        return {
            key: _without_long_limits(item)
            for key, item in value.items()
            if not (is_long and key == "maxLength")
        }
    return [_without_long_limits(item) for item in value] if isinstance(value, list) else value


@cache
def _operations(name: str) -> dict[str, Any]:
    import schemathesis

    schema = schemathesis.openapi.from_dict(_without_long_limits(_document(name)))
    schema.config.generation.update(with_security_parameters=False)  # tokens have their own tests
    return {op.ok().label: op.ok() for op in schema.get_all_operations()}


def validate(case: Any, reply: Any, checks: Collection[str]) -> None:
    """Fail if the reply to a call breaks one of these checks of Schemathesis."""
    case.validate_response(reply, excluded_checks=_all_checks_except(frozenset(checks)))


@cache
def _all_checks_except(names: frozenset[str]) -> list[Any]:
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    return [check for check in CHECKS.get_all() if check.__name__ not in names]
