"""The blocks we hold that may still be replaced. Pure: it knows no node and no database."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """One block, by number and hash."""

    number: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.number} (0x{self.hash.hex()})"


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
