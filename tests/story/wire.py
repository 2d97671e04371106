"""A raw websocket for the story tests. Owns: sending frames, reading turns and errors, and how a connection ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.canary import key_in
from tests.story.server import KEY, Client, Json, Server

ENDS = ("response.completed", "response.failed", "response.incomplete", "error")
AUTH = {"authorization": f"Bearer {KEY}"}


class Wire:
    """A raw websocket that speaks JSON."""

    def __init__(self, raw: ClientConnection) -> None:
        self.raw = raw

    def send(self, **fields: Any) -> None:
        self.raw.send(json.dumps({"type": "response.create", **fields}))

    def next(self) -> Json:
        text = self.raw.recv(timeout=60)
        assert isinstance(text, str), "frames are texts"
        assert not key_in(text.encode()), "the websocket shows a key"
        return dict(json.loads(text))

    def turn(self) -> list[Json]:
        """Frames up to the end of one response, or its error."""
        frames = [self.next()]
        while frames[-1]["type"] not in ENDS:
            frames.append(self.next())
        return frames

    def ask(self, text: Any, **fields: Any) -> Json:
        """A whole turn; the response in its last frame, after checking the laws of a stream."""
        self.send(input=text, **fields)
        frames = self.turn()
        assert frames[-1]["type"] == "response.completed", frames[-1]
        assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
        assert frames[0]["type"] == "response.created"
        return dict(frames[-1]["response"])

    def error(self) -> Json:
        """The error that comes next."""
        frame = self.next()
        assert frame["type"] == "error", frame
        assert set(frame["error"]) == {"type", "code", "message", "param"}
        return {**frame["error"], "status": frame["status"], "stream_id": frame.get("stream_id")}

    def closed(self) -> int:
        """The code with which the server closes."""
        with pytest.raises(ConnectionClosed) as told:
            while True:
                self.raw.recv(timeout=60)
        return told.value.rcvd.code if told.value.rcvd else 1006


@contextmanager
def wire(server: Server, headers: dict[str, str] | None = None, **options: Any) -> Iterator[Wire]:
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    with connect(url, additional_headers={**AUTH, **(headers or {})}, proxy=None, **options) as raw:
        yield Wire(raw)


def replayed(client: Client, shown: str) -> list[Json]:
    """The events of a stored response, over HTTP."""
    with client.stream(f"/v1/responses/{shown}?stream=true") as stream:
        return [frame.data for frame in stream.rest()]
