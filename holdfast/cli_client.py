"""Commands that talk to a running server. Owns: status and runs ls | show | tail | cancel | pin | receipt. They
use the public HTTP API and nothing else, so they work against a server elsewhere too. Refuses to know: the store."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import click

from holdfast.config import load
from holdfast.config_keys import ConfigError

Answer = dict[str, Any]


class Remote:
    """A server, by URL and key."""

    def __init__(self, url: str | None, key: str | None) -> None:
        try:
            settings = load(None, os.environ, {}).settings
        except ConfigError as error:
            raise click.ClickException(str(error)) from error
        self.url = (url or f"http://{settings.server.host}:{settings.server.port}").rstrip("/")
        if not _is_url(self.url):
            raise click.ClickException(f"--url {self.url} is not the URL of a server, such as http://127.0.0.1:8642.")
        self._key = key or settings.server.key or _key_file(settings.server.data_path / "key")

    def open(self, path: str, method: str = "GET", timeout: float = 30.0) -> Any:
        """The open response; a failure ends the program with the server's own words."""
        try:
            return urlopen(self.request(path, method), timeout=timeout)
        except HTTPError as error:
            _fail(error)
        except (OSError, HTTPException) as error:
            raise self.away(error) from error

    def away(self, error: OSError | HTTPException) -> click.ClickException:
        """What to say where there is no answer."""
        if not isinstance(error, OSError):
            return click.ClickException(f"{self.url} is another server: its answer is not HTTP.")
        reason = getattr(error, "reason", error)
        return click.ClickException(f"{self.url} does not answer ({reason}). Is the server running?")

    def request(self, path: str, method: str = "GET") -> Request:
        """A request with the key, where there is one."""
        request = Request(self.url + path, method=method)
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        return request

    def get(self, path: str, method: str = "GET") -> Answer:
        """A JSON answer."""
        with self.open(path, method) as response:
            return self.read(response)

    def read(self, response: Any) -> Answer:
        """The JSON in a response."""
        try:
            answer: Answer = json.load(response)
        except ValueError as error:
            raise click.ClickException(f"{self.url} is another server: its answer is not JSON.") from error
        return answer


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


def _fail(error: HTTPError) -> NoReturn:
    try:
        message = json.loads(error.read())["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {error.code}"
    raise click.ClickException(message) from error


def _remote_options(command: Any) -> Any:
    command = click.option("--key", envvar="API_SERVER_KEY", help="Key (default: the data directory's own).")(command)
    return click.option("--url", help="Server (default: the configured one).")(command)


def _json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="For programs.")(command)


@click.command()
@_remote_options
@_json_option
def status(url: str | None, key: str | None, as_json: bool) -> None:
    """How a server is: /health/detailed, else /health."""
    remote = Remote(url, key)
    try:
        with urlopen(remote.request("/health/detailed"), timeout=5) as response:
            answer, code = remote.read(response), response.status
    except HTTPError as error:
        if error.code != 503:
            answer, code = remote.get("/health"), 200
        else:
            answer, code = remote.read(error), 503
    except (OSError, HTTPException) as error:
        raise remote.away(error) from error
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print_flat(answer)
    sys.exit(0 if code == 200 else 1)


def _print_flat(answer: Answer, indent: str = "") -> None:
    for name, value in answer.items():
        if isinstance(value, dict):
            click.echo(f"{indent}{name}:")
            _print_flat(value, indent + "  ")
        elif name == "replicas" and isinstance(value, list):
            click.echo(f"{indent}replicas:")
            for each in value:
                does = "works" if each["works"] else "answers only"
                heard = f"heard of {each['seen_ms'] / 1000:.1f} s ago"
                click.echo(f"{indent}  {each['name']:28}  {does:12}  {each['runs']} runs  {heard}")
        else:
            click.echo(f"{indent}{name}: {value}")


@click.group()
def runs() -> None:
    """Look at runs and stop them."""


@runs.command("ls")
@click.option("--status", "wanted", help="Only runs of this status.")
@click.option("--limit", default=20, show_default=True, help="How many, newest first.")
@_remote_options
@_json_option
def ls(url: str | None, key: str | None, as_json: bool, wanted: str | None, limit: int) -> None:
    """List runs."""
    query = urlencode({"limit": limit} | ({"status": wanted} if wanted else {}))
    answer = Remote(url, key).get(f"/v1/runs?{query}")
    if as_json:
        click.echo(json.dumps(answer))
        return
    for run in answer["data"]:
        first = (run["output"] or run["error"] or "").replace("\n", " ")[:60]
        click.echo(f"{run['run_id']}  {run['status']:11}  {run['model']:14}  {first}")
    if not answer["data"]:
        click.echo("no runs")


@runs.command("show")
@click.argument("run")
@_remote_options
@_json_option
def show(run: str, url: str | None, key: str | None, as_json: bool) -> None:
    """One run."""
    answer = Remote(url, key).get(f"/v1/runs/{run}")
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print_flat(answer)


@runs.command("tail")
@click.argument("run")
@click.option("--after", type=int, help="Begin after this event.")
@_remote_options
@_json_option
def tail(run: str, after: int | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Follow the events of a run to its end."""
    query = f"?after={after}" if after is not None else ""
    for event in _events(Remote(url, key), f"/v1/runs/{run}/events{query}"):
        if as_json:
            click.echo(json.dumps(event))
        else:
            _print_event(event)


def _events(remote: Remote, path: str) -> Iterator[Answer]:
    with remote.open(path, timeout=3600) as response:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def _print_event(event: Answer) -> None:
    match event.get("event"):
        case "message.delta":
            click.echo(event["delta"], nl=False)
        case "tool.started":
            click.echo(f"\n[{event['tool']}] {event['preview']}")
        case "tool.completed":
            click.echo(f"[{event['tool']}] {'failed' if event['error'] else 'done'} in {event['duration']:.2f} s")
        case name:
            click.echo(f"\n{name} {event.get('error') or event.get('reason') or ''}".rstrip())


@runs.command("cancel")
@click.argument("run")
@_remote_options
@_json_option
def cancel(run: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Stop a run."""
    answer = Remote(url, key).get(f"/v1/runs/{run}/stop", "POST")
    click.echo(json.dumps(answer) if as_json else f"{answer['run_id']}: {answer['status']}")


@runs.command("pin")
@click.argument("run")
@click.option("--off", is_flag=True, help="Let retention have it again.")
@_remote_options
@_json_option
def pin(run: str, off: bool, url: str | None, key: str | None, as_json: bool) -> None:
    """Keep a run, whatever retention says."""
    answer = Remote(url, key).get(f"/v1/runs/{run}/pin", "DELETE" if off else "POST")
    click.echo(
        json.dumps(answer) if as_json else f"{answer['run_id']}: {'pinned' if answer['pinned'] else 'not pinned'}"
    )


@runs.command("receipt", short_help="What happened to a run.")
@click.argument("run")
@_remote_options
@_json_option
def receipt(run: str, url: str | None, key: str | None, as_json: bool) -> None:
    """What happened to a run: attempts, steps, what was repeated and what is unknown."""
    answer = Remote(url, key).get(f"/v1/runs/{run}/receipt")
    if as_json:
        click.echo(json.dumps(answer))
        return
    click.echo(f"{answer['run_id']}  {answer['status']}  {answer['recoveries']} recoveries")
    for step in answer["steps"]:
        repeated = f", started {step['starts']} times" if step["starts"] > 1 else ""
        click.echo(f"  {step['tool']:14} {step['effect']:10} {step['outcome']:8} {step['label']}{repeated}")
    for approval in answer["approvals"]:
        click.echo(f"  approval of {approval['tool']}: {approval.get('choice', 'open')} {approval.get('by', '')}")
    spent, saved = answer["usage"]["total_tokens"], answer["usage_saved_by_recovery"]["total_tokens"]
    more = " (a call was cut: more may have been spent)" if answer["usage_incomplete"] else ""
    click.echo(f"  tokens: {spent} spent{more}, {saved} not spent again thanks to the journal")
    if answer["error"]:
        click.echo(f"  error: {answer['error']['message']} ({answer['error']['reason']})")
