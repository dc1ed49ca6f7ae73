"""Console settings, read from the environment."""

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.http.server.listeners import Tls

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class ConsoleSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    api_url: str
    query_url: str
    tls_ca: Path | None = None
    """Authority of the certificates of both services (PEM). Default: the authorities of the system."""
    console_host: str = "127.0.0.1"
    console_port: int
    console_origins: tuple[str, ...] = Field(
        (),
        description="Addresses that browsers use, such as https://trace.example.com. Requests for other"
        " hosts are refused. Default: the loopback names with the port.",
    )
    console_tls_cert: Path | None = None
    console_tls_key: Path | None = None
    console_session_seconds: float = Field(12 * 3600.0, gt=0)
    console_link_seconds: float = Field(600.0, gt=0)
    log_level: str = "info"
    http_limits: ConnectionLimits = ConnectionLimits()

    @property
    def tls(self) -> Tls | None:
        if self.console_tls_cert is None or self.console_tls_key is None:
            return None
        return Tls(self.console_tls_cert, self.console_tls_key)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of the pages that may use the console."""
        if self.console_origins:
            return tuple(origin.rstrip("/") for origin in self.console_origins)
        scheme = "https" if self.tls else "http"
        return tuple(f"{scheme}://{name}:{self.console_port}" for name in _LOOPBACK_NAMES)

    @model_validator(mode="after")
    def _check_listener(self) -> "ConsoleSettings":
        if not self.tls and not _is_loopback(self.console_host):
            raise ValueError(
                f"console_host: {self.console_host} is not a loopback address, and the console has no"
                " certificate; set TRACE_CONSOLE_TLS_CERT and TRACE_CONSOLE_TLS_KEY"
            )
        for origin in self.console_origins:
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
                raise ValueError(
                    f"console_origins: {origin!r} is not an origin; write https://HOST[:PORT]"
                )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
