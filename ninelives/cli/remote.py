"""The client of commands that talk to a running server over its public HTTP API. Owns: which server and which key are
meant, and the errors for people. Beside shared.py, because `serve` needs none of it and its imports take time. Refuses
to know: any one command."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

import click

from ninelives.app.address import UNIX, local_url, published_address
from ninelives.app.settings import ServerSettings
from ninelives.cli.shared import Answer, settings_from
from ninelives.core.hosts import is_loopback
from ninelives.observe.log import printable


def remote_options(command: Any) -> Any:
    """--url and --key."""
    command = click.option("--key", envvar="API_SERVER_KEY", help="Key (default: the one in the data directory).")(
        command
    )
    return click.option(
        "--url", help="URL of the server, or unix:PATH (default: the one that the data directory names)."
    )(command)


class Remote:
    """A running server, reached over HTTP. The key in the data directory goes only to the server that this directory
    names, or to the one that the user named. `before`: where the directory named this server earlier. While it names
    none, nothing is sent: whoever listens at the default address is another server."""

    def __init__(self, url: str | None, key: str | None, *, use_key_file: bool = True, before: str = "") -> None:
        server = settings_from(None).settings.server
        self.named = url or published_address(server.data_path)
        self.url = base_url(self.named or before or _default_url(server))
        self._gone_from = server.data_path if before and not self.named else None
        self._base = _http_base(self.url)
        given, stored = key or server.key, _key_file(server.data_path / "key")
        self._key = given or (stored if self.named and use_key_file else "")
        self._held_back = str(server.data_path / "key") if stored and not self._key else ""
        self._opener = _opener(self.url)

    def open(self, path: str, method: str = "GET", timeout: float = 30.0, body: Answer | None = None) -> Any:
        """The open response. Raises ClickException with the message of the server, or with why there is none."""
        try:
            return self.send(path, method, timeout, body)
        except HTTPError as error:
            self.fail(error)
        except (OSError, HTTPException) as error:
            raise self.away(error) from error

    def send(
        self,
        path: str,
        method: str = "GET",
        timeout: float = 30.0,
        body: Answer | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The open response. Raises HTTPError, OSError and HTTPException. Redirects are errors: they would carry the
        key to another server."""
        if self._gone_from is not None:
            raise ConnectionRefusedError(f"no server runs on {self._gone_from}")
        request = Request(self._base + path, method=method, headers=dict(headers or {}))
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        return self._opener.open(request, timeout=timeout)

    def away(self, error: OSError | HTTPException) -> click.ClickException:
        """The error for a server that does not answer."""
        if not isinstance(error, OSError):
            return click.ClickException(f"{self.url} is another server: its answer is not HTTP. Check --url.")
        reason = getattr(error, "reason", error)
        start = "Start it with `ninelives serve`, or name another with --url."
        return click.ClickException(f"{self.url} does not answer ({reason}). {start}")

    def get(self, path: str, method: str = "GET", body: Answer | None = None, timeout: float = 30.0) -> Answer:
        """A JSON answer."""
        with self.open(path, method, timeout, body) as response:
            return self.read(response)

    def read(self, response: Any) -> Answer:
        """The JSON in a response."""
        try:
            answer: Answer = json.load(response)
        except ValueError as error:
            raise click.ClickException(f"{self.url} is another server: its answer is not JSON. Check --url.") from error
        return answer

    def fail(self, error: HTTPError) -> NoReturn:
        """Raise ClickException with the message of the server."""
        try:
            message = str(json.loads(error.read())["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = f"HTTP {error.code}"
        if error.code == 401 and self._held_back:
            message += f" {self._held_back} was not sent: no server runs on that directory. Name yours with --url."
        raise click.ClickException(printable(message)) from error


class Reconnect:
    """Connects to one server again and again. A restart may change its address, which the data directory names."""

    def __init__(self, url: str | None, key: str | None, *, use_key_file: bool = True) -> None:
        self._url, self._key, self._use_key_file = url, key, use_key_file
        self._before = ""

    def __call__(self) -> Remote:
        """The server of the moment."""
        remote = Remote(self._url, self._key, use_key_file=self._use_key_file, before=self._before)
        self._before = remote.named or self._before
        return remote


class _NoRedirect(HTTPRedirectHandler):
    """Treats a redirect as an error."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, host: str, *, path: str, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """See HTTPConnection.connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _UnixHandler(HTTPHandler):
    """Opens every URL on one Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: Request) -> Any:
        """See HTTPHandler.http_open."""
        return self.do_open(_UnixConnection, req, path=self._path)  # type: ignore[arg-type]  # it passes the arguments on


def _opener(url: str) -> OpenerDirector:
    """Proxies of the environment are used for other machines only."""
    if url.startswith(UNIX):
        return build_opener(_NoRedirect, ProxyHandler({}), _UnixHandler(url.removeprefix(UNIX)))
    here = is_loopback(urlsplit(url).hostname or "")
    return build_opener(_NoRedirect, *([ProxyHandler({})] if here else []))


def _default_url(server: ServerSettings) -> str:
    return f"{UNIX}{server.uds}" if server.uds else local_url(server.host, server.port)


def base_url(text: str) -> str:
    """The URL of a server, from that or from one of its usual addresses: .../v1, .../health, .../health/detailed."""
    url = text.strip().rstrip("/")
    for tail in ("/detailed", "/health", "/v1"):
        if tail != "/detailed" or url.endswith("/health/detailed"):
            url = url.removesuffix(tail).rstrip("/")
    return url


def _http_base(url: str) -> str:
    """What paths are added to. Raises ClickException."""
    base = "http://localhost" if url.startswith(UNIX) else url
    if not _is_url(base):
        raise click.ClickException(f"--url {url} is not the URL of a server, such as http://127.0.0.1:8642.")
    return base


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _key_file(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
