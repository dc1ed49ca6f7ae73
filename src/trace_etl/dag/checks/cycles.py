"""Find cycles between jobs, and sort jobs topologically."""

from collections.abc import Mapping, Sequence


def find_cycles(upstream: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return cycles, each in the direction of the data flow.

    The walk is not recursive, because a file may have thousands of jobs in a chain.
    """
    cycles: list[list[str]] = []
    done: set[str] = set()
    for first in upstream:
        trail: dict[str, list[str]] = {first: list(upstream[first])} if first not in done else {}
        while trail:
            name, pending = next(reversed(trail.items()))
            if not pending:
                done.add(name)
                del trail[name]
                continue
            parent = pending.pop()
            if parent in trail:
                path = list(trail)
                cycles.append(path[path.index(parent) :][::-1])
            elif parent in upstream and parent not in done:
                trail[parent] = list(upstream[parent])
    return cycles


def sort_topologically(upstream: Mapping[str, Sequence[str]]) -> list[str]:
    """Return every name after the names upstream of it. The graph must not have a cycle."""
    done: dict[str, None] = {}
    for first in upstream:
        trail = [first]
        while trail:
            pending = [parent for parent in upstream[trail[-1]] if parent not in done]
            if pending:
                trail.append(pending[0])
            else:
                done[trail.pop()] = None
    return list(done)
