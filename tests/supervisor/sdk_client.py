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
import openai

Json = dict[str, Any]
TIMEOUT_S = 120.0
said = threading.Lock()


@cache
def openai_sdk(base: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=TIMEOUT_S)


@cache
def anthropic_sdk(base: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=TIMEOUT_S)


def chat(job: Json) -> Iterator[str | None]:
    messages: Any = [{"role": "user", "content": job["asked"]}]
    made = openai_sdk(job["base"], job["key"]).chat.completions.create(model="m", messages=messages, stream=True)
    yield ""
    for chunk in made:
        choice = chunk.choices[0] if chunk.choices else None
        yield (choice.delta.content or "") if choice is not None else ""
        if choice is not None and choice.finish_reason == "stop":
            yield None


def responses(job: Json) -> Iterator[str | None]:
    made = openai_sdk(job["base"], job["key"]).responses.create(model="m", input=job["asked"], stream=True)
    yield ""
    for number, event in enumerate(made):
        assert event.sequence_number == number, f"event {event.sequence_number} in place of {number}"
        yield event.delta if event.type == "response.output_text.delta" else ""
        if event.type == "response.completed":
            yield None


def messages(job: Json) -> Iterator[str | None]:
    asked: Any = [{"role": "user", "content": job["asked"]}]
    made = anthropic_sdk(job["base"], job["key"]).messages.create(
        model="m", max_tokens=4000, messages=asked, stream=True
    )
    yield ""
    for event in made:
        delta = event.delta if event.type == "content_block_delta" else None
        yield delta.text if delta is not None and delta.type == "text_delta" else ""
        if event.type == "message_stop":
            yield None


def wait(job: Json) -> Iterator[str | None]:
    asked: Any = [{"role": "user", "content": job["asked"]}]
    made = openai_sdk(job["base"], job["key"]).chat.completions.create(model="m", messages=asked)
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
    last = 0.0
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
    with said:
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for line in sys.stdin:
        threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()
