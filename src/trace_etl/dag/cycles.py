"""Finding jobs that wait for each other."""

from collections.abc import Mapping, Sequence


def find_cycle(upstream: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The loops met on a walk against the edges, each in the direction of the data.

    Without recursion: a file may hold thousands of jobs in a row.
    """
    loops: list[list[str]] = []
    done: set[str] = set()
    for first in upstream:
        trail: dict[str, list[str]] = {first: list(upstream[first])} if first not in done else {}
        while trail:
            name, left = next(reversed(trail.items()))
            if not left:
                done.add(name)
                del trail[name]
                continue
            parent = left.pop()
            if parent in trail:
                path = list(trail)
                loops.append(path[path.index(parent) :][::-1])
            elif parent in upstream and parent not in done:
                trail[parent] = list(upstream[parent])
    return loops


def in_order(upstream: Mapping[str, Sequence[str]]) -> list[str]:
    """Every name after all that it waits for. There must be no loop."""
    done: dict[str, None] = {}
    for first in upstream:
        trail = [first]
        while trail:
            left = [parent for parent in upstream[trail[-1]] if parent not in done]
            if left:
                trail.append(left[0])
            else:
                done[trail.pop()] = None
    return list(done)
