"""Following a run from a terminal. Owns: the events of a run over lost connections and restarts of its server. A
request is sent again with its idempotency key, and a stream goes on after the last event. Refuses to know: how events
look."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import click

from ninelives.cli.remote import Remote
from ninelives.cli.shared import Answer

ENDS = ("run.completed", "run.failed", "run.cancelled", "run.incomplete")
LOST, BACK = "connection.lost", "connection.back"
"""Events of the follower itself. BACK has `away_s`."""
READ_S = 60.0
"""A server sends a comment every 15 seconds, so a stream that is silent for longer is lost."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0
PATIENCE_S = 600.0
_AWAY = (502, 503, 504)
"""A server that starts or stops, and what a proxy answers for it."""


class ServerAway(click.ClickException):
    """The server stayed away for longer than anybody wants to wait."""


class RunFollower:
    """Starts and follows runs. `connect` gives the server of the moment, which may have another address after a
    restart."""

    def __init__(
        self,
        connect: Callable[[], Remote],
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._patience_s = patience_s
        self._sleep, self._now = sleep, now
        self._why = ""
        """The last failure, for the message that ends all tries."""

    def start(self, body: Answer, idempotency_key: str) -> str:
        """Start a run, or join the one that has this key. Returns its id. Raises ClickException."""
        headers = {"Idempotency-Key": idempotency_key}
        for _ in self._tries("The request was not answered"):
            try:
                with self._connect().send("/v1/runs", "POST", READ_S, body, headers) as response:
                    return str(json.load(response)["run_id"])
            except HTTPError as error:
                self._fail_unless_away(error)
            except (OSError, HTTPException, ValueError) as error:
                self._why = str(error)  # no answer, or half of one: the key makes the next request the same
        raise AssertionError("_tries ends by raising")

    def shown(self, run: str) -> Answer:
        """The run as it is now. A server that is away is waited for. Raises ClickException."""
        for _ in self._tries(f"{run} may go on there"):
            try:
                with self._connect().send(f"/v1/runs/{quote(run, safe='')}", timeout=READ_S) as response:
                    found: Answer = json.load(response)
                    return found
            except HTTPError as error:
                self._fail_unless_away(error)
            except (OSError, HTTPException, ValueError) as error:
                self._why = str(error)
        raise AssertionError("_tries ends by raising")

    def events(self, run: str, after: int | None = None) -> Iterator[Answer]:
        """The events of a run until it ends. LOST and BACK are told where the connection is. Raises ClickException."""
        seen, lost_at = after, 0.0
        while True:
            for response in self._streams(run, seen):
                if lost_at:
                    yield {"event": BACK, "away_s": self._now() - lost_at}
                    lost_at = 0.0
                for event in _read(response):
                    seen = event["seq"]
                    yield event
                    if event["event"] in ENDS:
                        return
            if not lost_at:
                lost_at = self._now()
                yield {"event": LOST}
            self._sleep(FIRST_WAIT_S)  # a server that accepts and cuts must not be asked in a tight loop

    def _streams(self, run: str, seen: int | None) -> Iterator[Any]:
        """One open stream after the last event that was seen."""
        query = f"?after={seen}" if seen is not None else ""
        path = f"/v1/runs/{quote(run, safe='')}/events{query}"
        for _ in self._tries(f"{run} may go on there"):
            try:
                with self._connect().send(path, timeout=READ_S) as response:
                    yield response
                    return
            except HTTPError as error:
                self._fail_unless_away(error)
            except (OSError, HTTPException) as error:
                self._why = str(error)

    def _tries(self, and_so: str) -> Iterator[None]:
        """Try now and then, until it was long enough. Raises ServerAway."""
        begun, wait = self._now(), FIRST_WAIT_S
        while self._now() - begun < self._patience_s:
            yield
            self._sleep(wait)
            wait = min(LONGEST_WAIT_S, wait * 2)
        raise ServerAway(f"{self._connect().url} is away for {self._patience_s:.0f} s ({self._why}). {and_so}.")

    def _fail_unless_away(self, error: HTTPError) -> None:
        if error.code not in _AWAY:
            self._connect().fail(error)


def _read(response: Any) -> Iterator[Answer]:
    """The events of one connection, up to its end or its failure."""
    try:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    except (OSError, HTTPException, ValueError):
        return  # cut: the follower goes on after the last whole event
