"""Talking to the stack over HTTPS. Whatever goes wrong becomes lines on stderr and an exit code."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import typer

if TYPE_CHECKING:
    import httpx

    from trace_etl.lite.connection import Connection

EXIT_REFUSED = 1
EXIT_NOT_RUNNING = 3
_PATIENCE = 30.0
_QUERY_PATIENCE = 90.0  # the Query Service gives up first, and says so


class Refused(Exception):
    """The service said no: its problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or f"HTTP {status}"))
        self.status = status
        self.problem = problem


class NotRunning(Exception):
    """Nothing answers where the stack should be."""


@dataclass(frozen=True)
class Client:
    """The API and the Query Service of one stack."""

    http: "httpx.Client"
    api_url: str
    query_url: str

    def get(self, path: str, **params: object) -> dict[str, Any]:
        """GET from the API. Raises Refused or NotRunning."""
        return self._send("GET", self.api_url + path, params=_given(params))

    def get_all(self, path: str, **params: object) -> dict[str, Any]:
        """Every page of a list as one. Raises Refused or NotRunning."""
        items: list[Any] = []
        after: str | None = None
        while True:
            page = self.get(path, **params, limit=1000, after=after)
            items += page["items"]
            after = page["next"]
            if after is None:
                return {**page, "items": items}

    def post(
        self, path: str, body: object = None, *, patience: float = _PATIENCE
    ) -> dict[str, Any]:
        """POST to the API. Raises Refused or NotRunning."""
        return self._send("POST", self.api_url + path, json=body, timeout=patience)

    def query(self, sql: str, limit: int | None = None) -> dict[str, Any]:
        """Ask the Query Service. Raises Refused or NotRunning."""
        body = _given({"sql": sql, "limit": limit})
        return self._send("POST", f"{self.query_url}/v1/query", json=body, timeout=_QUERY_PATIENCE)

    def _send(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        import httpx

        try:
            answer = self.http.request(method, url, **options)
        except httpx.ConnectError as error:
            raise NotRunning(f"nothing answers at {url}: {error}") from error
        except httpx.HTTPError as error:
            raise Refused(0, {"detail": f"{url} did not answer: {error!r}"}) from error
        if answer.is_error:
            raise Refused(answer.status_code, problem_of(answer))
        return cast(dict[str, Any], answer.json())


def connect(home: Path) -> Client:
    """A client of the stack in `home`. Raises NotRunning."""
    from trace_etl.lite.connection import read
    from trace_etl.lite.home import Home

    place = Home(home.expanduser().absolute())
    connection = read(place.connection)
    if connection is None:
        raise NotRunning(f"no stack runs in {place.path}")
    return of_connection(connection)


def of_connection(connection: "Connection") -> Client:
    """A client of a stack whose connection is at hand."""
    import ssl

    import httpx

    token = Path(connection.user_token).read_text().strip()
    http = httpx.Client(
        verify=ssl.create_default_context(cafile=connection.ca),
        headers={"authorization": f"Bearer {token}"},
        timeout=_PATIENCE,
        trust_env=False,  # a proxy in the environment is not for loopback
    )
    return Client(http, connection.api_url, connection.query_url)


@contextmanager
def session(home: Path, *, file: str = "") -> Generator[Client]:
    """A client for one command: refusals end the program with the reason on stderr.

    `file` is what positions in a refusal refer to.
    """
    try:
        client = connect(home)
        with client.http:
            yield client
    except NotRunning as gone:
        fail([f"{gone}; start it with `trace up`"], EXIT_NOT_RUNNING)
    except Refused as refused:
        fail(reasons(refused, file))


def fail(lines: list[str], code: int = EXIT_REFUSED) -> NoReturn:
    """End the program: one `error:` line for each reason."""
    for line in lines:
        typer.secho(f"error: {line}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


def reasons(refused: Refused, file: str = "") -> list[str]:
    """Every fault of a refusal, each with its file, line and column if it has them."""
    faults = cast(list[dict[str, Any]], refused.problem.get("errors") or [])
    return [_fault_line(fault, file) for fault in faults] or [str(refused)]


def _fault_line(fault: Mapping[str, Any], file: str) -> str:
    place = [file] if file else []
    if fault.get("line") is not None:
        place += [str(fault[key]) for key in ("line", "column") if fault.get(key) is not None]
    field = f"{fault['field']}: " if fault.get("field") else ""
    return f"{':'.join(place)}{': ' if place else ''}{field}{fault['message']}"


def problem_of(answer: "httpx.Response") -> Mapping[str, Any]:
    """The problem document of a refusal."""
    try:
        return cast(dict[str, Any], answer.json())
    except json.JSONDecodeError:
        return {"detail": f"HTTP {answer.status_code} from {answer.url}, not from Trace"}


def _given(values: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
