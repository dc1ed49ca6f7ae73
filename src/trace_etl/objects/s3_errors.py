"""Explain errors of S3 without quoting them: S3's answers repeat the access key and the signature."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from trace_etl.objects.errors import (
    ObjectExists,
    ObjectMissing,
    StorageError,
    StorageRefused,
    StorageUnwritable,
)

_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_BAD_FILE = re.compile(
    r"(TRACE_S3_CREDENTIALS_FILE: [^\n'\"]*)"
)  # the message of an error of S3Options
_STATUS = re.compile(r"status code: (\d{3})")
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or TRACE_S3_CREDENTIALS_FILE"
_BAD_KEYS = {
    "InvalidAccessKeyId": f"S3 does not know the access key: check {_KEYS}",
    "SignatureDoesNotMatch": f"the secret key does not belong to the access key: check {_KEYS}",
    "InvalidToken": "S3 does not accept the session token: check AWS_SESSION_TOKEN",
    "ExpiredToken": f"the session token has expired: renew {_KEYS}",
    "TokenRefreshRequired": f"the session token has expired: renew {_KEYS}",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: synchronise it",
}
_WRONG_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraint"}
_BAD_ENCRYPTION = ("KMS", "ServerSideEncryption")


@contextmanager
def s3_errors(action: str, url: str, endpoint: str, *, is_write: bool = False) -> Generator[None]:
    """Convert an error of obstore to a StorageError that names the setting to correct.

    `action` and `url` are for the message, for example `read` and `s3://bucket/key`.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except StorageError:
        raise
    except (BaseError, OSError, ValueError) as error:
        problem = f"cannot {action} {url}"
        # Without a cause, so that no log prints the original error.
        raise _translate(error, problem, url, endpoint, is_write=is_write) from None


def _translate(
    error: Exception, problem: str, url: str, endpoint: str, *, is_write: bool
) -> StorageError:
    text = str(error)
    code = _find(_CODE, text)
    bucket = url.removeprefix("s3://").partition("/")[0]
    if code == "NoSuchBucket":
        return StorageRefused(
            f"{problem}: {endpoint} has no bucket {bucket}: create it or correct TRACE_OBJECTS_URL"
        )
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"there is no object {url}")
    if type(error).__name__ == "AlreadyExistsError":
        return ObjectExists(f"{url} exists already")
    refusal = _explain_refusal(text, code, bucket)
    if refusal is not None:
        return StorageRefused(f"{problem}: {refusal}")
    reason = _explain_failure(text, code, endpoint)
    return (StorageUnwritable if is_write else StorageError)(f"{problem}: {reason}")


def _explain_refusal(text: str, code: str, bucket: str) -> str | None:
    """Return the reason of an error that lasts until a person corrects something."""
    if "TRACE_S3_CREDENTIALS_FILE: " in text:
        return _find(_BAD_FILE, text)
    if code in _BAD_KEYS:
        return _BAD_KEYS[code]
    if code in _WRONG_REGION or "incorrectly configured region" in text:
        return f"bucket {bucket} is in another region: set TRACE_S3_REGION"
    if code.startswith(_BAD_ENCRYPTION):
        return f"S3 refused the encryption ({code}): check TRACE_S3_KMS_KEY_ID and its key policy"
    if code in ("AccessDenied", "AllAccessDisabled") or _find(_STATUS, text) in ("401", "403"):
        return (
            "the policy of the credentials does not allow it; docs/how-to/s3.md lists the actions"
        )
    if _lacks_credentials(text):
        return f"no credentials were found: set {_KEYS}"
    return None


def _lacks_credentials(text: str) -> bool:
    return any(part in text for part in ("latest/meta-data", "latest/api/token", "credentials/"))


def _explain_failure(text: str, code: str, endpoint: str) -> str:
    """Return the reason of an error that may pass."""
    status = _find(_STATUS, text)
    if status:
        return f"{endpoint} answered {' '.join(filter(None, (status, code)))}; try again later"
    if "kind: Timeout" in text or "TimedOut" in text:
        return f"{endpoint} did not answer in time; try again later"
    if "kind: Connect" in text or "error sending request" in text:
        return f"{endpoint} cannot be reached: check TRACE_S3_ENDPOINT and the network"
    return f"{endpoint} gave an answer that is not one of S3: check TRACE_S3_ENDPOINT"


def _find(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
