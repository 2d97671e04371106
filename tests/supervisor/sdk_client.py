"""python -m tests.supervisor.sdk_client: OpenAI's and Anthropic's SDK, without retries. Owns: one job per line of JSON
on stdin, each in a thread, and one line of what was seen on stdout. Refuses to know: servers and kills."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import anthropic
import httpx2
import openai

Json = dict[str, Any]
TIMEOUT_S = 120.0
said = threading.Lock()
raw: dict[str, bytearray] = {}
"""The bytes of the answer of each job, as the SDK read them."""


class Tapped(httpx2.SyncByteStream):
    """The body of an answer, with a copy."""

    def __init__(self, stream: Any, copy: bytearray) -> None:
        self._stream, self._copy = stream, copy

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._copy += piece
            yield piece

    def close(self) -> None:
        self._stream.close()


def tap(response: httpx2.Response) -> None:
    response.stream = Tapped(response.stream, raw[response.request.headers["x-job"]])


def http() -> httpx2.Client:
    return httpx2.Client(event_hooks={"response": [tap]}, timeout=TIMEOUT_S, limits=httpx2.Limits(max_connections=200))


@cache
def openai_sdk(base: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, http_client=http())


@cache
def anthropic_sdk(base: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, http_client=http())


def chat(job: Json) -> Iterator[str | None]:
    messages: Any = [{"role": "user", "content": job["asked"]}]
    made = openai_sdk(job["base"], job["key"]).chat.completions.create(
        model="m", messages=messages, stream=True, store=True, extra_headers={"x-job": job["id"]}
    )
    yield ""
    for chunk in made:
        choice = chunk.choices[0] if chunk.choices else None
        yield (choice.delta.content or "") if choice is not None else ""
        if choice is not None and choice.finish_reason == "stop":
            yield None


def responses(job: Json) -> Iterator[str | None]:
    made = openai_sdk(job["base"], job["key"]).responses.create(
        model="m", input=job["asked"], stream=True, extra_headers={"x-job": job["id"]}
    )
    yield ""
    for number, event in enumerate(made):
        assert event.sequence_number == number, f"event {event.sequence_number} in place of {number}"
        yield event.delta if event.type == "response.output_text.delta" else ""
        if event.type == "response.completed":
            yield None


def messages(job: Json) -> Iterator[str | None]:
    asked: Any = [{"role": "user", "content": job["asked"]}]
    made = anthropic_sdk(job["base"], job["key"]).messages.create(
        model="m", max_tokens=4000, messages=asked, stream=True, extra_headers={"x-job": job["id"]}
    )
    yield ""
    for event in made:
        delta = event.delta if event.type == "content_block_delta" else None
        yield delta.text if delta is not None and delta.type == "text_delta" else ""
        if event.type == "message_stop":
            yield None


def wait(job: Json) -> Iterator[str | None]:
    asked: Any = [{"role": "user", "content": job["asked"]}]
    made = openai_sdk(job["base"], job["key"]).chat.completions.create(
        model="m", messages=asked, extra_headers={"x-job": job["id"]}
    )
    yield made.choices[0].message.content or ""
    yield None


WAYS: dict[str, Callable[[Json], Iterator[str | None]]] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "wait": wait,
}


def work(job: Json) -> None:
    """None in the stream of a way says that the answer came to its end."""
    seen: Json = {"id": job["id"], "text": "", "error": "", "begun": False, "whole": False, "pause": 0.0}
    last, copy = 0.0, raw.setdefault(job["id"], bytearray())
    try:
        for piece in WAYS[job["way"]](job):
            now = time.monotonic()
            if seen["begun"]:
                seen["pause"] = max(seen["pause"], now - last)
            seen["begun"], last = True, now
            seen["whole"] = seen["whole"] or piece is None
            seen["text"] += piece or ""
    except Exception as error:
        seen["error"] = repr(error)
    del raw[job["id"]]
    seen["raw"] = copy.decode()
    with said:
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for line in sys.stdin:
        threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()
