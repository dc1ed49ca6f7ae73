"""Objects of an attempt on S3: the broker signs requests with the attempt's own credentials.

The credentials allow the prefixes of the attempt and end with its lease. They stay in this process:
the function sends the same requests as to the Dispatcher's object endpoints.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast
from urllib.parse import unquote

import httpx

from trace_etl.api.task.credentials import OBJECTS_PATH, Credentials, S3Credentials
from trace_etl.sandbox.broker.strict_http import RequestBody, RequestRefused

MintCredentials = Callable[[dict[str, Any]], httpx.Response]
"""Ask the Dispatcher for credentials of the attempt, with these fields."""
_URL_LIFE = timedelta(minutes=5)
_MARGIN = timedelta(seconds=10)  # credentials that end this soon are replaced
_TIMEOUT = httpx.Timeout(30.0, read=330.0)
_NOT_KEPT = httpx.Limits(max_keepalive_connections=0)
_MAX_KEPT = 64
_ROOT = OBJECTS_PATH.rstrip("/") + "/"


@dataclass(frozen=True)
class _Address:
    """An object named by the path of a request."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, target: str) -> "_Address":
        path, _, query = target.partition("?")
        bucket, _, key = unquote(path.removeprefix(_ROOT)).partition("/")
        if query or not key or not path.startswith(_ROOT):
            raise RequestRefused(
                422, "invalid", "objects on S3 can be read and written, not listed"
            )
        return cls(bucket, key)

    @property
    def prefix(self) -> str:
        return f"s3://{self.bucket}/{self.key.rpartition('/')[0]}/"


class TaskObjectStore:
    """Reads and writes objects of one attempt, and keeps its credentials until they end."""

    def __init__(self) -> None:
        self._kept: dict[str, Credentials] = {}

    def has_credentials(self, mint: MintCredentials) -> bool:
        """Return whether the objects are on S3. Raises RequestRefused and httpx.HTTPError."""
        return self._find_credentials(mint, "").s3 is not None

    def request(
        self,
        mint: MintCredentials,
        method: str,
        target: str,
        body: RequestBody | None,
        headers: Mapping[str, str],
    ) -> httpx.Response:
        """Send a request to S3, and return the answer, whose content is not read yet.

        Raises RequestRefused and httpx.HTTPError.
        """
        address = _Address.parse(target)
        s3 = self._find_credentials(mint, "" if method == "PUT" else address.prefix).s3
        assert s3 is not None  # the Dispatcher has no object endpoints
        length = {"Content-Length": str(body.length)} if body else {}
        client = _connect()
        request = client.build_request(
            method,
            _sign(method, address, s3),
            content=body,
            headers={**headers, **length, "Accept-Encoding": "identity"},
        )
        reply = client.send(request, stream=True)
        if reply.is_error:
            reply.close()
            raise _explain(reply.status_code, address)
        return reply

    def _find_credentials(self, mint: MintCredentials, read_prefix: str) -> Credentials:
        """Return credentials for one prefix that is read, or for all that are written."""
        kept = self._kept.get(read_prefix)
        if kept is None or kept.expires_at - datetime.now(UTC) < _MARGIN:
            reply = mint({"read_prefixes": [read_prefix] if read_prefix else []})
            if reply.is_error:
                problem = reply.json()
                raise RequestRefused(reply.status_code, problem["code"], problem["detail"])
            kept = Credentials.model_validate(reply.json())
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[read_prefix] = kept
        return kept


def _connect() -> httpx.Client:
    """Return a client for one request. It keeps no connection, so it need not be closed."""
    return httpx.Client(verify=_make_tls(), timeout=_TIMEOUT, limits=_NOT_KEPT, trust_env=False)


@cache
def _make_tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


def _sign(method: str, address: _Address, s3: S3Credentials) -> str:
    import obstore
    from obstore.store import S3Store

    config = {
        "access_key_id": s3.access_key_id,
        "secret_access_key": s3.secret_access_key,
        "token": s3.session_token,
        "region": s3.region or "us-east-1",
        "virtual_hosted_style_request": s3.endpoint_url is None,
    }
    if s3.endpoint_url is not None:
        config["endpoint"] = s3.endpoint_url
    plain = (s3.endpoint_url or "").startswith("http://")
    store = S3Store(address.bucket, config=cast(Any, config), client_options={"allow_http": plain})
    return str(cast(Any, obstore).sign(store, method, address.key, _URL_LIFE))


def _explain(status: int, address: _Address) -> RequestRefused:
    # The answers of S3 are not passed on: they repeat the access key and the signature.
    shown = f"s3://{address.bucket}/{address.key}"
    reasons = {
        403: ("forbidden", f"the attempt may not use {shown}"),
        404: ("not_found", f"{shown} does not exist"),
        412: ("precondition_failed", f"{shown} exists, or has another ETag"),
        416: ("invalid", f"{shown} has no such range"),
    }
    code, detail = reasons.get(
        status, ("unavailable", f"S3 answered with HTTP {status}; try again")
    )
    return RequestRefused(status if status in reasons else 503, code, detail)
