"""The server of these tests checks keys and policies, so that a refused call means something."""

import httpx
import pytest

from support.services.ministack import AwsError, AwsKey, Ministack


def test_a_user_does_only_what_its_policy_allows(aws: Ministack) -> None:
    bucket = aws.make_bucket()
    aws.call("s3", "put_object", Bucket=bucket, Key="mine/a", Body=b"1")
    aws.call("s3", "put_object", Bucket=bucket, Key="other/a", Body=b"2")
    key = aws.make_user(
        {
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": f"arn:aws:s3:::{bucket}/mine/*",
        }
    )
    got = aws.call("s3", "get_object", key=key, Bucket=bucket, Key="mine/a")
    assert got["Body"] == b"1"
    assert httpx.get(aws.presign("get_object", key=key, Bucket=bucket, Key="mine/a")).text == "1"
    for operation, name in (("get_object", "other/a"), ("put_object", "mine/b")):
        with pytest.raises(AwsError) as refused:
            aws.call("s3", operation, key=key, Bucket=bucket, Key=name)
        assert refused.value.code == "AccessDenied"


def test_a_wrong_secret_is_refused(aws: Ministack) -> None:
    bucket = aws.make_bucket()
    key = aws.make_user({"Effect": "Allow", "Action": "s3:*", "Resource": "*"})
    with pytest.raises(AwsError) as refused:
        wrong = AwsKey(key.access_key, "x" * 40)
        aws.call("s3", "put_object", key=wrong, Bucket=bucket, Key="a", Body=b"")
    assert refused.value.code == "SignatureDoesNotMatch"
