"""Conditions of a put: create only (`If-None-Match: *`), or replace one known object (`If-Match`)."""

import re
from dataclasses import dataclass

from trace_etl.model.errors import Fault, Invalid

_ETAG = re.compile(rb'"([\x21\x23-\x7e]+)"')


@dataclass(frozen=True)
class PutCondition:
    """What must hold when the object gets its key. By default, nothing."""

    must_be_new: bool = False
    must_exist: bool = False
    etag: str | None = None
    """The ETag that the existing object must have."""

    def allows(self, existing_etag: str | None) -> bool:
        """Return whether an object may be written. None: there is no object yet."""
        if existing_etag is None:
            return not self.must_exist
        return not self.must_be_new and self.etag in (None, existing_etag)


def parse_condition(headers: dict[bytes, bytes]) -> PutCondition:
    """Return the condition of a put. Raises Invalid for one that is not supported."""
    none_match, match = headers.get(b"if-none-match"), headers.get(b"if-match")
    if none_match is not None and match is not None:
        raise Invalid([Fault("If-Match", "cannot be combined with If-None-Match; send one")])
    if none_match not in (None, b"*"):
        raise Invalid([Fault("If-None-Match", "must be `*`: create the object, never replace one")])
    for name in (b"if-modified-since", b"if-unmodified-since"):
        if name in headers:
            fault = Fault(name.decode(), "is not supported for PUT; use If-Match with an ETag")
            raise Invalid([fault])
    if match is None:
        return PutCondition(must_be_new=none_match is not None)
    if match == b"*":
        return PutCondition(must_exist=True)
    tag = _ETAG.fullmatch(match)
    if tag is None:
        problem = 'must be `*` or one strong ETag in double quotes, such as "1a-2b-3c"'
        raise Invalid([Fault("If-Match", problem)])
    return PutCondition(must_exist=True, etag=tag[1].decode())
