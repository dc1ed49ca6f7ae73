"""Bodies of `POST /v1/task/credentials` and of object listings."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trace_etl.api.body import Fenced, Reply

OBJECTS_PATH = "/v1/task/objects/"
LEASE_HEADER = "X-Trace-Lease-Token"
Prefix = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class CredentialsRequest(Fenced):
    """Ask for credentials of the attempt's prefixes, or of some of those it may read."""

    read_prefixes: Annotated[list[Prefix], Field(max_length=1000)] | None = None
    """Only these prefixes, each inside a granted one. Default: all that the token grants."""
    generations: bool = False
    """For workers only, which also send their token: credentials for an operator of the platform. It may
    read the whole generations of its inputs, and what it has written. They do not end with the lease."""
    can_list: bool = False
    """Whether objects under the prefixes must be listed. The names of a partition's files are also in
    its `_SUCCESS`."""


class S3Credentials(Reply):
    """Temporary credentials of a session that may use the prefixes and nothing else."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    region: str | None = None
    endpoint_url: str | None = None


class Credentials(Reply):
    """How this attempt reads and writes objects, until `expires_at`."""

    kind: Literal["objects", "s3"]
    """`objects`: send requests to `objects_path` of the same address. `s3`: use `s3` with any S3 client."""
    expires_at: datetime
    """The end of the lease or of the token, whichever is earlier. Ask again after a heartbeat."""
    read_prefixes: list[str]
    write_prefixes: list[str]
    scratch_prefix: str
    export_prefix: str
    objects_path: str | None = None
    """Add bucket and key. Requests carry the capability token and `X-Trace-Lease-Token`."""
    s3: S3Credentials | None = None


class ListedObject(Reply):
    url: str
    size: int
    modified_at: datetime


class ObjectList(Reply):
    """Objects under a prefix, ordered by URL."""

    items: list[ListedObject]
    next: str | None
    """Pass it as `after` for the next page; null on the last page."""
