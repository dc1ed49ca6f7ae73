"""What a capability token grants, as the Dispatcher and the Query Service read it from the claims."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from trace_etl.model.storage import POSTGRES

ISSUER = "trace"
AUDIENCE = "trace.task"


@dataclass(frozen=True)
class ReadGrant:
    """One input of a task, pinned to a dataset version and to the partitions of its claim."""

    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: dict[str, str]
    """A table of Postgres data, or the generation's prefix, which itself is not granted."""
    input: str
    """The name of the input in its job."""
    name: str | None
    """The published name of the dataset at the claim."""
    where: dict[str, Any] | None
    """The filter of the edge: AND over its columns; a list means IN."""
    prefixes: tuple[str, ...]
    """The pinned partitions, as `s3://bucket/prefix/`. Nothing else of the dataset is granted."""

    @property
    def table(self) -> str | None:
        """The table of Postgres data that holds the rows; None if they are in objects."""
        return self.storage_ref["table"] if self.storage_ref["scheme"] == POSTGRES else None


@dataclass(frozen=True)
class Reads:
    """The inputs that a token grants, or the digest of the recorded document that lists them."""

    datasets: tuple[ReadGrant, ...]
    sha256: str | None = None
    """Set if the inputs are too long for a token. They are then in `read_grants`, by this digest."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(prefix for dataset in self.datasets for prefix in dataset.prefixes)


def parse_reads(claims: dict[str, Any]) -> Reads:
    """Return the inputs that verified claims grant. Raises KeyError, TypeError or ValueError."""
    reference = claims.get("reads")
    if reference is not None:
        return Reads((), str(reference["sha256"]))
    if "scratch_prefix" not in claims["s3"]:
        return Reads(())  # an older release, whose prefixes covered whole generations
    return Reads(parse_read_grants(claims["datasets"], claims["s3"]["read_prefixes"]))


def parse_read_grants(
    datasets: Sequence[dict[str, Any]], prefixes: Sequence[str]
) -> tuple[ReadGrant, ...]:
    """Return the inputs of a list. Each input takes as many of the next prefixes as it has partitions."""
    if not all(type(prefix) is str for prefix in prefixes):
        raise TypeError("read prefixes are strings")
    entries = [entry for entry in datasets if "input" in entry]
    counts = [entry["partitions"] for entry in entries]
    if sum(counts) != len(prefixes) or min(counts, default=0) < 0:
        raise ValueError("the partitions of the inputs do not match the read prefixes")
    rest = iter(prefixes)
    return tuple(_parse_read_grant(entry, rest) for entry in entries)


def _parse_read_grant(entry: dict[str, Any], prefixes: Iterator[str]) -> ReadGrant:
    return ReadGrant(
        dataset_uuid=UUID(entry["dataset_uuid"]),
        dataset_version=UUID(entry["dataset_version"]),
        storage_ref=entry["storage_ref"],
        input=entry["input"],
        name=entry.get("name"),
        where=entry.get("where"),
        prefixes=tuple(islice(prefixes, entry["partitions"])),
    )
