"""ninelives restart. Owns: asking the supervisor of a data directory to swap its server, and saying what came of it.
Refuses to know: how a server is swapped."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import click

from ninelives.cli.shared import config_option, settings_from

POLL_S = 0.05
_NONE = "There is none without a supervisor: stop that server and start it again."


@click.command(short_help="Swap a running server for the code and the configuration of now.")
@config_option
@click.option("--data-dir", help="Data directory of the server.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=90.0, show_default=True, help="Seconds to wait.")
def restart(config: str | None, data_dir: str | None, timeout: float) -> None:
    """Swap a running server for the code that is installed now, and for the configuration of now.

    The new server is loaded first. If it cannot be loaded, the old one goes on. New connections wait meanwhile. SIGHUP
    to the supervisor does the same."""
    path = settings_from(config, **{"server.data_dir": data_dir}).settings.server.data_path / "supervisor"
    before = _status(path)
    if before is None or not _ask(before["pid"]):
        raise click.ClickException(f"{path} names no supervisor that runs. {_NONE}")
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        time.sleep(POLL_S)
        after = _status(path)
        if after is None:
            raise click.ClickException("the server stopped meanwhile. Its log says why.")
        if after["failed"] > before["failed"]:
            raise click.ClickException(f"the new server does not start, so the old one goes on: {after['last']}")
        if after["swaps"] > before["swaps"]:
            took = time.monotonic() - began
            return click.echo(f"restarted in {took:.1f} s: pid {before['server']} -> {after['server']}")
    raise click.ClickException(f"no new server after {timeout:g} s. The log of the server says why.")


def _status(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _ask(pid: int) -> bool:
    """Send SIGHUP. False where the pid is another program's by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if b"ninelives.supervisor" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGHUP)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
