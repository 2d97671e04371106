"""ninelives service. Owns: the systemd unit of a server on this machine, and its installation. The unit is shown before
anything is written. Refuses to know: how a server starts. For several replicas see deploy/ninelives.service."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from ninelives.app.settings import Settings
from ninelives.cli.shared import HelpfulGroup, config_option, settings_from

NAME = "ninelives.service"
USER_FOLDER, SYSTEM_FOLDER = Path("~/.config/systemd/user"), Path("/etc/systemd/system")
STOP_SLACK_S = 10.0
"""A stop ends within limits.drain_s and five seconds."""
UNIT = """\
# Written by `ninelives service install`. Change it with: systemctl {scope}edit ninelives
[Unit]
Description=Ninelives agent server
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=always
RestartSec=1
# SIGTERM parks runs at a safe point. Tools are children and end with their runs.
KillMode=mixed
TimeoutStopSec={stop_s:g}
LimitNOFILE=65536
OOMPolicy=continue
# Each tool call gets a cgroup of its own, with its own bound of memory.
Delegate=memory pids
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy={target}
"""


@click.group(cls=HelpfulGroup)
def service() -> None:
    """Run the server as a service of systemd."""


@service.command("install")
@click.option("--system", is_flag=True, help="A service of the machine, run as root (default: of this user).")
@click.option("--dry-run", is_flag=True, help="Print the unit and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@config_option
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def install(system: bool, dry_run: bool, yes: bool, config: str | None, flags: tuple[str, ...]) -> None:
    """Print the systemd unit of this server, then install and start it.

    FLAGS are those of `ninelives serve`: ninelives service install -- --port 9000. The unit has no secret: give keys in
    the configuration file, or with `systemctl edit`."""
    settings = settings_from(config).settings
    given = ["--config", str(Path(config).absolute())] if config else []
    unit, folder = unit_text(settings, [*given, *flags], system=system), SYSTEM_FOLDER if system else USER_FOLDER
    click.echo(unit)
    file = folder.expanduser() / NAME
    if dry_run:
        click.echo(f"Nothing was changed. The file would be {file}.", err=True)
        return
    if not yes:
        click.confirm(f"Write this to {file} and start it?", abort=True, err=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(unit)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}. Try --system as root.") from error
    click.echo(f"Written: {file}")
    _start([] if system else ["--user"])


def unit_text(settings: Settings, flags: list[str], *, system: bool) -> str:
    """The unit of a server with these settings."""
    program = shlex.join([str(Path(sys.executable).absolute()), "-m", "ninelives", "serve", *flags])
    return UNIT.format(
        scope="" if system else "--user ",
        command=program.replace("%", "%%"),
        stop_s=settings.limits.stop_s + STOP_SLACK_S,
        target="multi-user.target" if system else "default.target",
    )


def _start(scope: list[str]) -> None:
    steps = [["systemctl", *scope, "daemon-reload"], ["systemctl", *scope, "enable", "--now", NAME]]
    for step in steps:
        done = subprocess.run(step, check=False).returncode if shutil.which("systemctl") else 1
        if done:
            rest = "\n".join(f"  {shlex.join(each)}" for each in steps)
            raise click.ClickException(f"The unit is written, but systemd did not start it. Do it yourself:\n{rest}")
    follow = " ".join(["systemctl", *scope, "status ninelives"])
    linger = "" if not scope else " It ends with your last login, unless: loginctl enable-linger"
    click.echo(f"The server runs: {follow}.{linger}")
