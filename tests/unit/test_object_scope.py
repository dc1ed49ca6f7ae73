"""Prefixes are canonical or refused, and a session policy never grants more than they say."""

import fnmatch
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_etl.policy.object_scope import (
    MAX_POLICY_CHARACTERS,
    BadAddress,
    ObjectAddress,
    ObjectScope,
    PolicyTooLong,
    parse_object,
    parse_prefix,
    session_policy,
)

END = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = [
    "",
    "s3://",
    "s3:///a/",
    "s3://bucket",
    "s3://bucket/",
    "s3://bucket//",
    "s3://bucket/a//b/",
    "s3://bucket/a//",
    "s3://bucket/./a/",
    "s3://bucket/a/./",
    "s3://bucket/../other/",
    "s3://bucket/a/../b/",
    "s3://bucket/a/..",
    "s3://bucket/*",
    "s3://bucket/a*/",
    "s3://bucket/a?/",
    "s3://*/a/",
    "s3://bucket/[ab]/",
    "s3://bucket/${aws:username}/",
    "s3://bucket/%2e%2e/a/",
    "s3://bucket/a%2fb/",
    "s3://bucket/\u2024\u2024/a/",
    "s3://bucket/\uff0e\uff0e/a/",
    "s3://bucket/\u2025/a/",
    "s3://bucket/a\uff0fb/",
    "s3://bucket/a\\..\\b/",
    "s3://bucket/a\x00/",
    "s3://bucket/a\n/",
    "s3://bucket/a\x7f/",
    "s3://bucket/a b/",
    "s3://bucket/" + "a" * 1024 + "/",
    "s3://Bucket/a/",
    "s3://bu..cket/a/",
    "s3://user@bucket/a/",
    "s3://bucket:80/a/",
    "S3://bucket/a/",
    "s3:/bucket/a/",
    "file://bucket/a/",
    "https://bucket/a/",
    "//bucket/a/",
    "/bucket/a/",
    " s3://bucket/a/",
]
names = st.text(st.sampled_from("ab.-_=~"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)
prefixes = st.builds(
    lambda bucket, parts: f"s3://{bucket}/" + "/".join(parts) + "/",
    st.sampled_from(["one", "two"]),
    st.lists(names, min_size=1, max_size=3),
)
near_prefixes = (
    prefixes | st.text(max_size=40) | st.builds(lambda p, s: p + s, prefixes, st.text(max_size=6))
)


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_prefix_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        parse_prefix(url)
    with pytest.raises(BadAddress):
        parse_object(url)
    with pytest.raises(BadAddress):
        ObjectScope.parse([url], [])


def test_a_missing_slash_is_added_and_a_token_must_have_it() -> None:
    assert parse_prefix("s3://bucket/a/b") == ObjectAddress("bucket", "a/b/")
    with pytest.raises(BadAddress, match="not canonical"):
        ObjectScope.parse(["s3://bucket/a/b"], [])


@given(near_prefixes)
def test_canonicalisation_is_idempotent(url: str) -> None:
    try:
        once = parse_prefix(url)
    except BadAddress:
        return
    assert parse_prefix(once.url) == once
    assert once.url in (url, f"{url}/")
    assert once.key.endswith("/") and "//" not in once.key
    assert not {"", ".", ".."} & set(once.key.rstrip("/").split("/"))


def test_a_prefix_contains_only_what_is_below_it() -> None:
    scope = ObjectScope.parse(["s3://bucket/a/b/"], ["s3://bucket/w/"])
    assert scope.can_read(parse_object("s3://bucket/a/b/c"))
    for url in ("s3://bucket/a/bc", "s3://bucket/a/b", "s3://other/a/b/c", "s3://bucket/w/x"):
        assert not scope.can_read(parse_object(url)), url
    assert scope.can_write(parse_object("s3://bucket/w/x"))
    assert not scope.can_write(parse_object("s3://bucket/a/b/c"))
    assert scope.narrow([parse_prefix("s3://bucket/a/b/c/")]).can_write(
        parse_object("s3://bucket/w/x")
    )
    for url in ("s3://bucket/a/", "s3://bucket/a/bc/", "s3://bucket/w/"):
        with pytest.raises(PermissionError):
            scope.narrow([parse_prefix(url)])


def allows(policy: str, action: str, resource: str, listed: str | None = None) -> bool:
    """Evaluate a policy as IAM does: `*` and `?` are wildcards, everything not allowed is denied."""
    for statement in json.loads(policy)["Statement"]:
        assert statement["Effect"] == "Allow" and "NotAction" not in statement
        patterns = statement["Resource"]
        patterns = [patterns] if isinstance(patterns, str) else patterns
        condition: dict[str, Any] = statement["Condition"]
        assert condition["DateLessThan"] == {"aws:CurrentTime": "2026-01-02T03:04:05Z"}
        if action not in [statement["Action"], *statement["Action"]]:
            continue
        if not any(_matches(resource, pattern) for pattern in patterns):
            continue
        wanted = condition.get("StringLike", {}).get("s3:prefix")
        if wanted is None or (listed is not None and any(_matches(listed, w) for w in wanted)):
            return True
    return False


def _matches(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


@given(
    st.lists(near_prefixes, max_size=3), st.lists(near_prefixes, max_size=2), near_prefixes, names
)
def test_the_policy_allows_exactly_the_scope(
    reads: list[str], writes: list[str], url: str, name: str
) -> None:
    try:
        scope = ObjectScope.parse(reads, writes)
        address = parse_object(url.rstrip("/") + "/" + name)
        policy = session_policy(scope, ends_at=END, can_list=True)
    except (BadAddress, PolicyTooLong):
        return
    resource = f"arn:aws:s3:::{address.bucket}/{address.key}"
    assert allows(policy, "s3:GetObject", resource) == scope.can_read(address)
    assert allows(policy, "s3:PutObject", resource) == scope.can_write(address)
    bucket = f"arn:aws:s3:::{address.bucket}"
    listable = scope.can_read(address) or scope.can_write(address)
    assert allows(policy, "s3:ListBucket", bucket, address.key) == listable
    assert not allows(policy, "s3:ListBucket", bucket)
    for action in ("s3:DeleteObject", "s3:PutObjectAcl", "s3:GetObjectVersion", "sts:AssumeRole"):
        assert not allows(policy, action, resource)


def test_listing_is_granted_on_request_only() -> None:
    scope = ObjectScope.parse(["s3://bucket/a/"], [])
    assert "ListBucket" not in session_policy(scope, ends_at=END)
    assert json.loads(session_policy(ObjectScope((), ()), ends_at=END))["Statement"] == []


def test_a_wider_scope_has_fewer_prefixes_and_contains_the_narrow_one() -> None:
    urls = [f"s3://bucket/root/cold/datasets/{n}/v/t/1/" for n in range(40)]
    narrow = ObjectScope.parse(urls, [*urls, "s3://bucket/root/scratch/org/t/1/"])
    with pytest.raises(PolicyTooLong):
        session_policy(narrow, ends_at=END)
    wide = narrow.widen(("cold/datasets/", "buffers/"))
    assert [p.url for p in wide.reads] == ["s3://bucket/root/cold/datasets/"]
    assert [p.url for p in wide.writes] == [
        "s3://bucket/root/cold/datasets/",
        "s3://bucket/root/scratch/org/t/1/",
    ]
    session_policy(wide, ends_at=END)


def test_prefixes_that_do_not_fit_are_refused_and_never_merged() -> None:
    many = [f"s3://bucket/cold/{n:036}/{n:036}/" for n in range(40)]
    with pytest.raises(PolicyTooLong, match="40 prefixes"):
        session_policy(ObjectScope.parse(many, []), ends_at=END)
    few = session_policy(ObjectScope.parse(many[:8], []), ends_at=END)
    assert len(few) <= MAX_POLICY_CHARACTERS
