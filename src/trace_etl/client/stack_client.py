"""HTTPS client of the API and the Query Service of one stack."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from trace_etl.client.result_stream import (
    CannotConnect,
    ConnectionEnded,
    ResultBody,
    ResultConnections,
)

if TYPE_CHECKING:
    from http.client import HTTPResponse

    import httpx

    from trace_etl.lite.connection import StackConnection

_TIMEOUT = 30.0
_QUERY_TIMEOUT = 90.0  # longer than the Query Service's own timeout, so its error is shown
_QUERY_ID = "trace-query-id"
_FIRST_ERROR = 400

Answer = dict[str, Any]


class RequestRejected(Exception):
    """A service answered with an error. Holds its problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or f"HTTP {status}"))
        self.status = status
        self.problem = problem


class NotRunning(Exception):
    """No stack runs in the home directory, or it does not accept connections."""


class ResultIncomplete(Exception):
    """The connection ended in the middle of a result. What was received is not the result."""


@dataclass(frozen=True)
class StackClient:
    """Client of the API and the Query Service of one stack."""

    http: "httpx.Client"
    api_url: str
    query_url: str
    results: ResultConnections

    def close(self) -> None:
        """Close all connections."""
        self.http.close()
        self.results.close()

    def get(self, path: str, **params: object) -> Answer:
        """GET from the API. Raises RequestRejected or NotRunning."""
        return self._send("GET", self.api_url + path, params=_drop_nulls(params))

    def get_all(self, path: str, **params: object) -> Answer:
        """Fetch all pages of a list as one answer. Raises RequestRejected or NotRunning."""
        items: list[Any] = []
        after: str | None = None
        while True:
            page = self.get(path, **params, limit=1000, after=after)
            items += page["items"]
            after = page["next"]
            if after is None:
                return {**page, "items": items}

    def post(self, path: str, body: object = None, *, timeout: float = _TIMEOUT) -> Answer:
        """POST to the API. Raises RequestRejected or NotRunning."""
        return self._send("POST", self.api_url + path, json=body, timeout=timeout)

    def put(self, path: str, content: bytes, *, timeout: float = _TIMEOUT) -> Answer:
        """PUT bytes to the API. Raises RequestRejected or NotRunning."""
        headers = {"content-type": "application/octet-stream"}
        url = self.api_url + path
        return self._send("PUT", url, content=content, headers=headers, timeout=timeout)

    def query(self, sql: str, limit: int | None = None, **fields: object) -> Answer:
        """Run a query in the Query Service. Raises RequestRejected or NotRunning."""
        with self._post_query({"sql": sql, "limit": limit, **fields}) as answer:
            return cast(
                Answer, json.loads(b"".join(ResultBody(answer, self.results.memory).pieces()))
            )

    def get_snapshot(self, name: str) -> Answer:
        """Fetch the files of one snapshot of a dataset. Raises RequestRejected or NotRunning."""
        return self._send("GET", f"{self.query_url}/v1/snapshots/{quote_segment(name)}")

    @contextmanager
    def stream(self, sql: str, **fields: object) -> Generator[ResultBody]:
        """Run a query and read its result while it runs. The query stops at the end of the block.

        Raises RequestRejected, NotRunning, or in the middle of the result ResultIncomplete.
        """
        with self._post_query({"sql": sql, "stream": True, **fields}) as answer:
            yield ResultBody(answer, self.results.memory)

    @contextmanager
    def _post_query(self, fields: Mapping[str, object]) -> "Generator[HTTPResponse]":
        url = f"{self.query_url}/v1/query"
        answer: HTTPResponse | None = None
        try:
            with self.results.post("/v1/query", _drop_nulls(fields), _QUERY_TIMEOUT) as answer:
                if answer.status >= _FIRST_ERROR:
                    raise RequestRejected(answer.status, _parse_problem(answer, url))
                yield answer
        except CannotConnect as error:
            raise NotRunning(f"cannot connect to {url}: {error}") from error
        except ConnectionEnded as error:
            if answer is None or _QUERY_ID not in answer.headers:
                raise RequestRejected(0, {"detail": f"no answer from {url}: {error}"}) from error
            raise self._explain_end(answer, error) from error

    def _explain_end(self, answer: "HTTPResponse", error: Exception) -> Exception:
        """Return why a result ended in the middle, as the Query Service reports it."""
        path = f"/v1/query/{answer.headers[_QUERY_ID]}/failure"
        try:
            problem = self._send("GET", self.query_url + path)
        except (RequestRejected, NotRunning):
            return ResultIncomplete(f"the connection ended in the middle of the result: {error}")
        return RequestRejected(int(problem["status"]), problem)

    def _send(self, method: str, url: str, **options: Any) -> Answer:
        with _translate_errors(url):
            answer = self.http.request(method, url, **options)
        if answer.is_error:
            raise RequestRejected(answer.status_code, read_problem(answer))
        return cast(Answer, answer.json())


class TokenMissing(Exception):
    """The file with the user's token is missing or unreadable."""


@contextmanager
def _translate_errors(url: str) -> Generator[None]:
    import httpx

    try:
        yield
    except httpx.ConnectError as error:
        raise NotRunning(f"cannot connect to {url}: {error}") from error
    except httpx.HTTPError as error:
        raise RequestRejected(0, {"detail": f"no answer from {url}: {error!r}"}) from error


def connect_home(home: Path) -> StackClient:
    """Connect to the stack in `home`. Raises NotRunning."""
    from trace_etl.lite.connection import read
    from trace_etl.lite.home import Home

    stack_home = Home.at(home)
    connection = read(stack_home.connection)
    if connection is None:
        raise NotRunning(f"no stack runs in {stack_home.path}")
    return open_connection(connection)


def open_connection(connection: "StackConnection") -> StackClient:
    """Make a client from the connection file of a stack."""
    try:
        token = Path(connection.user_token).read_text().strip()
    except OSError as error:
        raise TokenMissing(
            f"cannot read the token {connection.user_token}: {error.strerror}"
        ) from error
    return open_client(connection.api_url, connection.query_url, token, connection.ca)


def open_client(api_url: str, query_url: str, token: str, ca: str | None) -> StackClient:
    """Make a client. `ca` is a PEM file; None: the certificates that the system trusts."""
    import ssl

    import httpx

    from trace_etl.http.clients.thread_safe_transport import ThreadSafeTransport

    context = ssl.create_default_context(cafile=ca)
    headers = {"authorization": f"Bearer {token}"}
    http = httpx.Client(
        transport=ThreadSafeTransport(context),
        headers=headers,
        timeout=_TIMEOUT,
        trust_env=False,  # a proxy in the environment must not be used for loopback
    )
    results = ResultConnections(query_url.rstrip("/"), headers, context)
    return StackClient(http, api_url.rstrip("/"), query_url.rstrip("/"), results)


def read_problem(answer: "httpx.Response") -> Mapping[str, Any]:
    """Read the problem document of an error response."""
    return _parse(answer.content, answer.status_code, str(answer.url))


def _parse_problem(answer: "HTTPResponse", url: str) -> Mapping[str, Any]:
    return _parse(answer.read(), answer.status, url)


def _parse(content: bytes, status: int, url: str) -> Mapping[str, Any]:
    try:
        return cast(Answer, json.loads(content))
    except ValueError:
        return {"detail": f"HTTP {status} from {url}, not from Trace"}


def quote_segment(value: str) -> str:
    """Quote a value so that it stays one segment of a URL path."""
    return quote(value, safe="")


def _drop_nulls(values: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
