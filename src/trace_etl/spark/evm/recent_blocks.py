"""The blocks we hold that may still be replaced. Pure: it knows no node and no database."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise


@dataclass(frozen=True)
class Mark:
    """One block, by number and hash."""

    number: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.number} (0x{self.hash.hex()})"


@dataclass(frozen=True)
class Link:
    """One block, and the hash of the block that it says it follows."""

    mark: Mark
    parent: bytes

    @property
    def below(self) -> Mark:
        return Mark(self.mark.number - 1, self.parent)


class Trail:
    """Consecutive marks, oldest first."""

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self._marks = list(marks)

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[Mark]:
        return iter(self._marks)

    @property
    def last(self) -> Mark | None:
        return self._marks[-1] if self._marks else None

    @property
    def first(self) -> int:
        """The lowest number held. Only of a trail that is not empty."""
        return self._marks[0].number

    def at(self, number: int) -> Mark | None:
        """What we hold at that number."""
        index = number - self.first if self._marks else -1
        return self._marks[index] if 0 <= index < len(self._marks) else None

    def replaced(self, marks: Sequence[Mark], *, keep_from: int) -> "Trail":
        """These marks in place of all from the first of them on; older than `keep_from` go."""
        kept = [mark for mark in self._marks if keep_from <= mark.number < marks[0].number]
        fresh = [mark for mark in marks if mark.number >= keep_from]
        return Trail([*kept, *fresh] or marks[-1:])

    def fresh(self, links: Sequence[Link], *, start: int) -> Sequence[Link] | None:
        """Of blocks in order: those not held. A trail of nothing takes them from `start` on.

        None if they are no chain, or do not go on top of a block that is held.
        """
        if any(after.below != before.mark for before, after in pairwise(links)):
            return None
        unknown = list(dropwhile(lambda link: self.at(link.mark.number) == link.mark, links))
        if not unknown:
            return unknown
        below = unknown[0].below
        fits = below.number == start - 1 if not self._marks else self.at(below.number) == below
        return unknown if fits else None
