"""A strict reader of event streams. Owns: what may be on the wire. A frame has at most one `event:` line and one
`data:` line of JSON (or [DONE]); comments stand alone; there is nothing else, and no `id:` line (G6). It is stricter
than a browser on purpose: a browser drops what it does not understand, and a dropped frame is a lost event. Refuses to
know: what a frame means."""

from __future__ import annotations

import json
from collections.abc import Iterator

BIG_FRAME = 64 * 1024
"""Only a frame longer than this may be split over two sends (G6)."""


class BadStream(AssertionError):
    """The server may not send these bytes."""


class SseReader:
    """Bytes in, (event, data) out; event is "" where a frame has no name. Comments are kept in `comments`."""

    def __init__(self) -> None:
        self._rest = b""
        self.comments: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """Add bytes from a socket, where a chunk may end anywhere. Yields the frames that are complete now."""
        self._rest += chunk
        *blocks, self._rest = self._rest.split(b"\n\n")
        for block in blocks:
            frame = self._frame(block)
            if frame is not None:
                yield frame

    def feed_send(self, body: bytes) -> Iterator[tuple[str, str]]:
        """Like feed(), for one send of the server, which must end with a whole frame unless that frame is big."""
        begun = len(self._rest)
        joined = self._rest + body
        first_end = joined.find(b"\n\n")
        if begun and 0 <= first_end <= BIG_FRAME:
            raise BadStream(f"a frame of {first_end} bytes was split over two sends")
        yield from self.feed(body)

    def end(self) -> None:
        """The stream is over. Raises where it ends within a frame."""
        if self._rest:
            raise BadStream(f"the stream ends in the middle of a frame: {self._rest[:200]!r}")

    def _frame(self, block: bytes) -> tuple[str, str] | None:
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            raise BadStream(f"not UTF-8: {block[:200]!r}") from error
        if "\r" in text or "\0" in text:
            raise BadStream(f"a control character in a frame: {text[:200]!r}")
        lines = text.split("\n")
        if len(lines) == 1 and text.startswith(":"):
            self.comments.append(text[1:].strip())
            return None
        event = ""
        if len(lines) == 2 and lines[0].startswith("event: "):
            event = lines.pop(0)[len("event: ") :]
            if not event or event != event.strip():
                raise BadStream(f"an event without a proper name: {text[:200]!r}")
        if len(lines) != 1 or not lines[0].startswith("data: "):
            raise BadStream(f"a frame is one event line at most and one data line: {text[:200]!r}")
        data = lines[0][len("data: ") :]
        _check_data(data)
        return event, data


def _check_data(data: str) -> None:
    if data == "[DONE]":
        return
    try:
        json.loads(data)
    except ValueError as error:
        raise BadStream(f"data is not JSON: {data[:200]!r}") from error


def parse_sse(body: bytes) -> list[tuple[str, str]]:
    """All frames of a whole stream. Raises BadStream. Use SseReader where comments matter."""
    reader = SseReader()
    frames = list(reader.feed(body))
    reader.end()
    return frames
