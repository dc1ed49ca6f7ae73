"""HTTPS client of the stack. Errors become lines on stderr and an exit code."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote

import typer

if TYPE_CHECKING:
    import httpx

    from trace_etl.lite.connection import StackConnection

EXIT_REJECTED = 1
EXIT_NOT_RUNNING = 3
_TIMEOUT = 30.0
_QUERY_TIMEOUT = 90.0  # longer than the Query Service's own timeout, so its error is shown

Answer = dict[str, Any]


class RequestRejected(Exception):
    """A service answered with an error. Holds its problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or f"HTTP {status}"))
        self.status = status
        self.problem = problem


class NotRunning(Exception):
    """No stack runs in the home directory, or it does not accept connections."""


@dataclass(frozen=True)
class StackClient:
    """Client of the API and the Query Service of one stack."""

    http: "httpx.Client"
    api_url: str
    query_url: str

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

    def query(self, sql: str, limit: int | None = None) -> Answer:
        """Run a query in the Query Service. Raises RequestRejected or NotRunning."""
        body = _drop_nulls({"sql": sql, "limit": limit})
        return self._send("POST", f"{self.query_url}/v1/query", json=body, timeout=_QUERY_TIMEOUT)

    def _send(self, method: str, url: str, **options: Any) -> Answer:
        import httpx

        try:
            answer = self.http.request(method, url, **options)
        except httpx.ConnectError as error:
            raise NotRunning(f"cannot connect to {url}: {error}") from error
        except httpx.HTTPError as error:
            raise RequestRejected(0, {"detail": f"no answer from {url}: {error!r}"}) from error
        if answer.is_error:
            raise RequestRejected(answer.status_code, read_problem(answer))
        return cast(Answer, answer.json())


def connect(home: Path) -> StackClient:
    """Connect to the stack in `home`. Raises NotRunning."""
    from trace_etl.lite.connection import read
    from trace_etl.lite.home import Home

    stack_home = Home.at(home)
    connection = read(stack_home.connection)
    if connection is None:
        raise NotRunning(f"no stack runs in {stack_home.path}")
    return open_client(connection)


def open_client(connection: "StackConnection") -> StackClient:
    """Make a client from the connection file of a stack."""
    import ssl

    import httpx

    token = Path(connection.user_token).read_text().strip()
    http = httpx.Client(
        verify=ssl.create_default_context(cafile=connection.ca),
        headers={"authorization": f"Bearer {token}"},
        timeout=_TIMEOUT,
        trust_env=False,  # a proxy in the environment must not be used for loopback
    )
    return StackClient(http, connection.api_url, connection.query_url)


@contextmanager
def session(home: Path, *, file: str = "") -> Generator[StackClient]:
    """Open a client for one command. On an error, print it to stderr and exit.

    `file` is the file that error positions refer to.
    """
    try:
        client = connect(home)
        with client.http:
            yield client
    except NotRunning as error:
        fail([f"{error}; start it with `trace up`"], EXIT_NOT_RUNNING)
    except RequestRejected as error:
        fail(list_errors(error, file))


def fail(lines: list[str], code: int = EXIT_REJECTED) -> NoReturn:
    """Print one `error:` line for each message and exit."""
    for line in lines:
        typer.secho(f"error: {line}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


def list_errors(rejected: RequestRejected, file: str = "") -> list[str]:
    """Format every error of the problem document, with file, line and column where known."""
    errors = cast(list[dict[str, Any]], rejected.problem.get("errors") or [])
    return [_format_error(error, file) for error in errors] or [str(rejected)]


def _format_error(error: Mapping[str, Any], file: str) -> str:
    position = [file] if file else []
    if error.get("line") is not None:
        position += [str(error[key]) for key in ("line", "column") if error.get(key) is not None]
    field = f"{error['field']}: " if error.get("field") else ""
    return f"{':'.join(position)}{': ' if position else ''}{field}{error['message']}"


def read_problem(answer: "httpx.Response") -> Mapping[str, Any]:
    """Read the problem document of an error response."""
    try:
        return cast(Answer, answer.json())
    except json.JSONDecodeError:
        return {"detail": f"HTTP {answer.status_code} from {answer.url}, not from Trace"}


def quote_segment(value: str) -> str:
    """Quote a value so that it stays one segment of a URL path."""
    return quote(value, safe="")


def _drop_nulls(values: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
