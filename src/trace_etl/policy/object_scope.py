"""Canonical object prefixes, and the session policy that grants them. Everything else is denied.

A prefix is a directory: `s3://bucket/a/b/` contains `a/b/c`, but not `a/bc`. Names consist of few ASCII
characters, so no wildcard, escape or Unicode look-alike of a dot has to be interpreted.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{0,61}[a-z0-9]")
_NAME = re.compile(r"[A-Za-z0-9_.=@+,~-]+")
_MAX_LENGTH = 1024
MAX_POLICY_CHARACTERS = 2048
"""The limit of STS for an inline session policy."""


class BadAddress(ValueError):
    """The text is not a canonical prefix or object."""


class PolicyTooLong(ValueError):
    """The prefixes do not fit into a session policy."""


class ObjectAddress(NamedTuple):
    """An object, or a prefix if the key ends with a slash."""

    bucket: str
    key: str

    @property
    def url(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.key}"

    def is_under(self, prefix: "ObjectAddress") -> bool:
        """Return whether the address lies inside a prefix, or is that prefix."""
        return self.bucket == prefix.bucket and self.key.startswith(prefix.key)


def parse_prefix(url: str) -> ObjectAddress:
    """Return the canonical form of a prefix, with a slash at its end. Raises BadAddress."""
    address = _parse(url.removesuffix("/"))
    return ObjectAddress(address.bucket, f"{address.key}/")


def parse_object(url: str) -> ObjectAddress:
    """Return the address of an object. Raises BadAddress."""
    return _parse(url)


def _parse(url: str) -> ObjectAddress:
    if len(url) > _MAX_LENGTH:
        raise BadAddress(f"the address is longer than {_MAX_LENGTH} characters")
    if not url.startswith(_SCHEME):
        raise BadAddress(f"{url!r} does not begin with {_SCHEME}")
    bucket, _, key = url[len(_SCHEME) :].partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise BadAddress(f"{url!r} has no valid bucket")
    for name in key.split("/"):
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise BadAddress(
                f"{url!r} has an empty part, `.`, `..` or a character other than A-Z a-z 0-9 _ . = @ + , ~ -"
            )
    return ObjectAddress(bucket, key)


@dataclass(frozen=True)
class ObjectScope:
    """Prefixes that an attempt may read and write. An address outside of them is denied."""

    reads: tuple[ObjectAddress, ...]
    writes: tuple[ObjectAddress, ...]

    @classmethod
    def parse(cls, reads: Sequence[str], writes: Sequence[str]) -> "ObjectScope":
        """Parse the prefixes of a token. Raises BadAddress if one of them is not canonical."""
        return cls(_parse_canonical(reads), _parse_canonical(writes))

    def can_read(self, address: ObjectAddress) -> bool:
        return any(address.is_under(prefix) for prefix in self.reads)

    def can_write(self, address: ObjectAddress) -> bool:
        return any(address.is_under(prefix) for prefix in self.writes)

    def widen(self, parents: Sequence[str]) -> "ObjectScope":
        """Return a wider scope: each prefix is cut after the first of these parents that it contains."""
        reads, writes = (
            tuple(dict.fromkeys(_cut(prefix, parents) for prefix in prefixes))
            for prefixes in (self.reads, self.writes)
        )
        return ObjectScope(reads, writes)

    def narrow(self, reads: Sequence[ObjectAddress]) -> "ObjectScope":
        """Return the same scope with fewer reads. Raises PermissionError if one is not granted."""
        for prefix in reads:
            if not self.can_read(prefix):
                raise PermissionError(f"the token does not grant {prefix.url}")
        return ObjectScope(tuple(reads), self.writes)


def _cut(prefix: ObjectAddress, parents: Sequence[str]) -> ObjectAddress:
    for parent in parents:
        head, found, _ = prefix.key.partition(parent)
        if found:
            return ObjectAddress(prefix.bucket, head + found)
    return prefix


def _parse_canonical(urls: Sequence[str]) -> tuple[ObjectAddress, ...]:
    addresses = tuple(parse_prefix(url) for url in urls)
    for url, address in zip(urls, addresses, strict=True):
        if address.url != url:
            raise BadAddress(f"{url!r} is not canonical; {address.url!r} is")
    return addresses


def session_policy(scope: ObjectScope, *, ends_at: datetime, can_list: bool = False) -> str:
    """Return the policy of a session that may use the scope until a time. Raises PolicyTooLong.

    STS sessions last at least 15 minutes, which is longer than a lease, so each statement has an end.
    """
    end = {"aws:CurrentTime": ends_at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    both = [prefix for prefix in scope.writes if prefix in scope.reads]
    statements = [
        _allow_objects(["s3:GetObject"], [p for p in scope.reads if p not in both], end),
        _allow_objects(["s3:PutObject"], [p for p in scope.writes if p not in both], end),
        _allow_objects(["s3:GetObject", "s3:PutObject"], both, end),
        *(_allow_listing(scope, end) if can_list else ()),
    ]
    document = {"Version": "2012-10-17", "Statement": [s for s in statements if s]}
    text = json.dumps(document, separators=(",", ":"))
    if len(text) > MAX_POLICY_CHARACTERS:
        raise PolicyTooLong(
            f"{len(scope.reads)} prefixes to read and {len(scope.writes)} to write need a session "
            f"policy of {len(text)} characters; STS accepts {MAX_POLICY_CHARACTERS}"
        )
    return text


def _allow_objects(
    actions: list[str], prefixes: Sequence[ObjectAddress], end: dict[str, str]
) -> dict[str, Any] | None:
    if not prefixes:
        return None
    resources = [f"arn:aws:s3:::{p.bucket}/{p.key}*" for p in dict.fromkeys(prefixes)]
    condition = {"DateLessThan": end}
    return {"Effect": "Allow", "Action": actions, "Resource": resources, "Condition": condition}


def _allow_listing(scope: ObjectScope, end: dict[str, str]) -> list[dict[str, Any]]:
    prefixes = dict.fromkeys((*scope.reads, *scope.writes))
    return [
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": f"arn:aws:s3:::{bucket}",
            "Condition": {
                "DateLessThan": end,
                "StringLike": {"s3:prefix": [f"{p.key}*" for p in prefixes if p.bucket == bucket]},
            },
        }
        for bucket in sorted({p.bucket for p in prefixes})
    ]
