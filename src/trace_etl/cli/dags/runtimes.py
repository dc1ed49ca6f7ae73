"""`trace runtimes`."""

from operator import itemgetter
from typing import Any

from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption


def runtimes(
    home: HomeOption = DEFAULT_HOME, wide: WideOption = False, as_json: JsonOption = False
) -> None:
    """List the runtimes that jobs can use."""
    print_list(home, "/v1/runtimes", _RUNTIMES, as_json=as_json)


def _format_limits(item: dict[str, Any]) -> str:
    limits = [f"{item['memory_mib']} MiB"] if item["trust"] == "untrusted" else []
    limits += [f"timeout {item['max_timeout']} s"] if item["max_timeout"] else []
    return ", ".join(limits)


def _format_idle(item: dict[str, Any]) -> str:
    return "never" if item["idle_timeout"] is None else f"{item['idle_timeout']} s"


_RUNTIMES = ListTable(
    {
        "runtime": itemgetter("name"),
        "launcher": itemgetter("launcher"),
        "trust": itemgetter("trust"),
        "language": itemgetter("language"),
        "slots": itemgetter("slots"),
        "limits": _format_limits,
        "idle timeout": _format_idle,
        "workers": itemgetter("workers"),
    },
    "There is no runtime.",
    right=("slots", "workers"),
)
