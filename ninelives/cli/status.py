"""ninelives status. Owns: showing the health of a running server. Refuses to know: what health means."""

from __future__ import annotations

import json
import sys
from http.client import HTTPException
from urllib.error import HTTPError

import click

from ninelives.cli.shared import Remote, json_option, print_fields, remote_options


@click.command()
@remote_options
@json_option
def status(url: str | None, key: str | None, as_json: bool) -> None:
    """Show the health of a running server and its replicas.

    Exit code: 0 when the server is healthy, 1 otherwise."""
    remote = Remote(url, key)
    try:
        with remote.send("/health/detailed", timeout=5) as response:
            answer = remote.read(response)
    except HTTPError as error:
        answer = remote.read(error) if error.code == 503 else remote.get("/health")
    except (OSError, HTTPException) as error:
        raise remote.away(error) from error
    if as_json:
        click.echo(json.dumps(answer))
    else:
        print_fields(answer)
    sys.exit(0 if answer.get("status") == "ok" else 1)
