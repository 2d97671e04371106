"""ninelives status. Owns: showing the health of a running server. Refuses to know: what health means."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from http.client import HTTPException
from urllib.error import HTTPError

import click
from click.core import ParameterSource

from ninelives.cli.remote import Reconnect, Remote
from ninelives.cli.shared import Answer, echo_text, json_option, print_fields

TIMEOUT_S = 5.0
WATCH_S = 2.0


@click.command()
@click.option(
    "--url",
    envvar="GATEWAY_HEALTH_URL",
    help="URL of the server, also with /v1, /health or /health/detailed (default: the one that the data directory "
    "names). GATEWAY_HEALTH_URL is read too.",
)
@click.option("--key", envvar="API_SERVER_KEY", help="Key (default: the one in the data directory).")
@click.option(
    "--timeout",
    envvar="GATEWAY_HEALTH_TIMEOUT",
    type=click.FloatRange(min=0, max=3600, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds for each request. GATEWAY_HEALTH_TIMEOUT is read too.",
)
@click.option("--watch", "how", flag_value="watch", default="", help="Show it again every two seconds, until Ctrl-C.")
@click.option("--pid", "how", flag_value="pid", help="Print the process id of the server of the data directory.")
@json_option
@click.pass_context
def status(ctx: click.Context, url: str | None, key: str | None, timeout: float, how: str, as_json: bool) -> None:
    """Show the health of a running server and its replicas.

    Exit code: 0 when the server is healthy, 1 otherwise."""
    typed = ctx.get_parameter_source("url") is not ParameterSource.ENVIRONMENT
    if how == "pid":
        click.echo(_pid(url, key, timeout))
        return
    connect = Reconnect(url, key, use_key_file=typed)
    while how == "watch":
        _show_again(lambda: _health(connect(), timeout), as_json=as_json)
    answer = _health(connect(), timeout)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(answer)
    sys.exit(0 if answer.get("status") == "ok" else 1)


def _pid(url: str | None, key: str | None, timeout: float) -> int:
    """The process of the server. Whoever asks wants to send it a signal, so it must be on this machine."""
    if url is not None:
        raise click.UsageError("--pid takes no --url: the server there may run on another machine.")
    pid = _health(Remote(None, key), timeout).get("pid")
    if pid is None:
        raise click.ClickException("The server names its process to admin keys only. Pass one with --key.")
    return int(pid)


def _show_again(look: Callable[[], Answer], *, as_json: bool) -> None:
    """One picture, and the pause after it. A server that is away is part of the picture."""
    try:
        answer = look()
    except click.ClickException as error:
        answer = {"status": "away", "why": error.format_message()}
    if as_json:
        click.echo(json.dumps(answer))
    else:
        click.clear()
        click.echo(time.strftime("%H:%M:%S"))
        _print(answer)
    time.sleep(WATCH_S)


def _print(answer: Answer) -> None:
    """The health in a few lines. Of another kind of server: all that it says. --json has everything."""
    if answer.get("server") != "ninelives" or "store" not in answer:
        print_fields(answer)
        return
    state = click.style(answer["status"], fg="green" if answer["status"] == "ok" else "red", bold=True)
    click.echo(f"ninelives {answer['version']}: {state}")
    for name, (is_good, words) in _parts(answer).items():
        mark = click.style("✓", fg="green") if is_good else click.style("✕", fg="red")
        click.echo(f"  {mark} {name:9} {words}")
    for each in answer.get("admin", {}).get("replicas") or ():
        does = "works" if each["works"] else "answers only"
        seen = f"seen {each['seen_ms'] / 1000:.1f} s ago"
        echo_text(f"      {each['name']:28}  {does:12}  {each['runs']} runs  {seen}")


def _parts(answer: Answer) -> dict[str, tuple[bool, str]]:
    """Whether each part is well, and words about it."""
    store, upstream, runs, mcp = answer["store"], answer["upstream"], answer["runs"], answer["mcp"]
    tools, limits, recovery = answer["tools"], answer["limits"], answer["recovery"]
    writable = store["reachable"] and store["writable"]
    shell = tools["shell"] == "on" and tools["sandbox"] != "off"
    replicas = answer.get("replicas")
    kept = f"{store['kind']}, durability {store['durability']}, {'writable' if writable else 'not writable'}"
    parts = {
        "up": (True, _span(answer["uptime_s"]) + (f", process {answer['pid']}" if "pid" in answer else "")),
        "store": (writable, kept + (f": {store['trouble']}" if store["trouble"] else "")),
        "model": (
            upstream["reachable"] is not False,
            f"{upstream['model']} {'does not answer' if upstream['reachable'] is False else 'answers'}",
        ),
        "runs": (True, f"{runs['active']} active of {limits['concurrent_runs']}, {runs['queued']} in the queue"),
        "recovery": (
            recovery["sealed"] == 0,
            f"{recovery['taken_over']} went on after a crash, {recovery['sealed']} given up",
        ),
        "tools": (shell, f"sandbox {tools['sandbox']}, shell {tools['shell']}"),
        "mcp": (mcp["connected"] == mcp["configured"], f"{mcp['connected']} of {mcp['configured']} connected"),
    }
    if replicas:
        parts["replicas"] = (replicas["working"] > 0, f"{replicas['alive']} processes, {replicas['working']} work")
    return parts


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _health(remote: Remote, timeout: float) -> Answer:
    """The detailed health; the plain one of a server that does not give it."""
    try:
        with remote.send("/health/detailed", timeout=timeout) as response:
            return remote.read(response)
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError) and error.code == 503:
            return remote.read(error)
        if not isinstance(error, HTTPError | TimeoutError):  # after those two, the plain one may still answer
            raise remote.away(error) from error
    return remote.get("/health", timeout=timeout)
