"""ninelives serve. Owns: its flags, which `ninelives worker` shares, and its exit code. Refuses to know: how a server
starts (app/serve.py)."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from ninelives.cli.shared import config_option, settings_from
from ninelives.supervisor.supervised import inherited

if TYPE_CHECKING:
    from ninelives.app.settings import LoadedSettings
    from ninelives.supervisor.supervised import Supervised

START_OBJECTS = 200_000
"""A start makes fewer: the garbage collector does not look at them. With Python's default that took a fifth of it."""
_NAMES = {
    "host": "server.host",
    "port": "server.port",
    "uds": "server.uds",
    "allow_remote": "server.allow_remote",
    "tls_cert": "server.tls_cert",
    "tls_key": "server.tls_key",
    "data_dir": "server.data_dir",
    "store": "store.url",
    "wait_store": "store.wait_s",
    "worker": "server.worker",
    "model_url": "model.url",
    "model": "model.name",
    "sandbox": "tools.sandbox",
    "approval": "tools.approval",
    "agent": "agent.object",
    "supervisor": "server.supervisor",
}


def run_options(command: Any) -> Any:
    """The flags of commands that execute runs."""
    options = [
        config_option,
        click.option("--host", help="Address to listen on."),
        click.option("--port", type=int, help="Port to listen on; 0 picks a free port and prints it."),
        click.option("--uds", help="Unix socket to listen on, instead of an address and a port."),
        click.option("--allow-remote", is_flag=True, default=None, help="Allow a --host that other machines reach."),
        click.option("--tls-cert", help="Certificate with its chain, as PEM: serve https."),
        click.option("--tls-key", help="The key of the certificate, as PEM."),
        click.option("--data-dir", help="Directory for workspaces, and for the SQLite store and the key."),
        click.option("--store", help="postgresql://user:password@host/db; empty is SQLite in the data directory."),
        click.option("--wait-store", type=float, help="Seconds to wait for a database that is down at the start (30)."),
        click.option("--model-url", help="Base URL of an OpenAI-compatible upstream, or NAME: of an installed model."),
        click.option("--model", help="Model name at the upstream."),
        click.option(
            "--sandbox",
            type=click.Choice(["auto", "landlock", "docker", "off"]),
            help="Sandbox of shell and file tools.",
        ),
        click.option(
            "--approval", type=click.Choice(["never", "on-write", "always"]), help="When to ask a person before a call."
        ),
    ]
    options.append(click.argument("agent", required=False, metavar="[MODULE:OBJECT]"))
    for option in reversed(options):
        command = option(command)
    return command


def settings_of(config: str | None, given: dict[str, Any], *, quiet: bool = False) -> LoadedSettings:
    """Settings from the flags of `run_options`. Raises ClickException."""
    # Until the event loop handles signals, there is nothing to drain (A9). SystemExit would be lost where Python drops
    # exceptions: in __del__, and in the callback that ends the lock of each import.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if given.get("agent") and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return settings_from(config, quiet, **{_NAMES[name]: value for name, value in given.items()})


def run(
    loaded: LoadedSettings,
    *,
    serves: bool,
    open_page: bool = False,
    reload: bool = False,
    under: Supervised | None = None,
) -> int:
    """Run a server or a worker in the foreground. `under` is the line to the supervisor that started this process.
    Returns the exit code."""
    before = gc.get_threshold()
    gc.set_threshold(START_OBJECTS, *before[1:])  # until the server is ready (app/serve.py, _collect_less)
    from ninelives.app.errors import StartError
    from ninelives.app.serve import Foreground

    on_ready = click.launch if open_page else None
    # Cached bytecode counts as current if size and second agree, so a change right after a start would be missed.
    sys.dont_write_bytecode = reload or sys.dont_write_bytecode
    foreground = Foreground(loaded, click.echo, serves=serves, on_ready=on_ready, reload=reload)
    try:
        if under is not None or (serves and loaded.settings.server.supervisor and sys.platform == "linux"):
            return foreground.run_supervised(under)
        if reload:
            raise StartError("--reload needs the supervisor, which is on Linux, without --no-supervisor.")
        return foreground.run()
    except StartError as error:
        click.echo(f"ninelives: {error}", err=True)
        return 1
    finally:
        gc.set_threshold(*before)


@click.command()
@run_options
@click.option(
    "--no-worker", "worker", flag_value=False, default=None, help="Only answer requests; workers execute stored runs."
)
@click.option(
    "--no-supervisor", "supervisor", flag_value=False, default=None, help="One process: nothing restarts the server."
)
@click.option("--open", "open_page", is_flag=True, help="Open the server's page in a browser.")
@click.option("--reload", is_flag=True, help="Swap the server when the code of your agent changes. Linux only.")
def serve(config: str | None, open_page: bool, reload: bool, **given: Any) -> None:
    """Run the server in the foreground.

    MODULE:OBJECT (or path/file.py:OBJECT) is an agent of your own: an async function or generator, or an agent of a
    framework. Without it the built-in agent answers.

    With --store postgresql://... several servers on any machines act as one. Put a load balancer in front of them and
    give all of them the same key (API_SERVER_KEY)."""
    under = inherited()
    loaded = settings_of(config, given, quiet=under is not None)
    raise SystemExit(run(loaded, serves=True, open_page=open_page, reload=reload, under=under))
