"""anthropic-python against /v1/messages: create, its stream, and the stream helper."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
from line import SCHEMA, WEATHER, Seen, serve

TOOLS = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]


def turns(job: dict[str, Any], seen: Seen, one: Callable[[Any, dict[str, Any]], tuple[list[Any], str | None]]) -> None:
    messages: list[Any] = [{"role": "user", "content": job["prompt"]}]
    more: dict[str, Any] = {"tools": TOOLS} if job["case"] == "own" else {}
    if job["case"] == "reason":
        more = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    retries: dict[str, Any] = {"max_retries": job["retries"]} if "retries" in job else {}
    with anthropic.Anthropic(
        base_url=job["base"], api_key=job["key"], default_headers=job["headers"], **retries
    ) as sdk:
        for _ in range(5):
            seen.text = ""
            given = {"model": job["model"], "max_tokens": 4096, "messages": messages, **more}
            blocks, stop = one(sdk, given)
            calls = [block for block in blocks if block["type"] == "tool_use"]
            if not calls:
                return
            assert stop == "tool_use", stop
            seen.ran += [call["name"] for call in calls]
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": WEATHER} for call in calls]
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]


def told(message: Any, seen: Seen) -> tuple[list[Any], str | None]:
    for block in message.content:
        if block.type == "text":
            seen.text += block.text
        elif block.type == "thinking":
            seen.reasoning += block.thinking
    return [block.model_dump(exclude_none=True) for block in message.content], message.stop_reason


def messages(job: dict[str, Any], seen: Seen) -> None:
    turns(job, seen, lambda sdk, given: told(sdk.messages.create(**given), seen))


def heard(delta: Any, block: dict[str, Any], seen: Seen) -> None:
    if delta.type == "text_delta":
        seen.text += delta.text
        block["text"] += delta.text
    elif delta.type == "thinking_delta":
        seen.reasoning += delta.thinking
    elif delta.type == "input_json_delta":
        block["json"] += delta.partial_json


def streamed(job: dict[str, Any], seen: Seen) -> None:
    def one(sdk: Any, given: dict[str, Any]) -> tuple[list[Any], str | None]:
        blocks: list[Any] = []
        stop = None
        for event in sdk.messages.create(**given, stream=True):
            if event.type == "content_block_start":
                blocks.append({**event.content_block.model_dump(exclude_none=True), "json": ""})
            elif event.type == "message_delta":
                stop = event.delta.stop_reason or stop
            elif event.type == "content_block_delta":
                heard(event.delta, blocks[event.index], seen)
        for block in blocks:
            given_json = block.pop("json")
            if given_json:
                block["input"] = json.loads(given_json)
        return blocks, stop

    turns(job, seen, one)


def helper(job: dict[str, Any], seen: Seen) -> None:
    def one(sdk: Any, given: dict[str, Any]) -> tuple[list[Any], str | None]:
        with sdk.messages.stream(**given) as stream:
            for text in stream.text_stream:
                seen.text += text
            final = stream.get_final_message()
        seen.text = ""
        return told(final, seen)

    turns(job, seen, one)


if __name__ == "__main__":
    serve({"messages": messages, "messages.stream": streamed, "messages.helper": helper})
