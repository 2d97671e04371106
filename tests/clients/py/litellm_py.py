"""The LiteLLM SDK in front of an OpenAI-compatible server: completion() and responses()."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no list from the network

import litellm
from line import SCHEMA, WEATHER, Seen, serve

CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]


def asked(job: dict[str, Any], **more: Any) -> dict[str, Any]:
    tools = {"tools": CHAT_TOOLS if job["way"].startswith("chat") else TOOLS} if job["case"] == "own" else {}
    place = {"api_base": f"{job['base']}/v1", "api_key": job["key"], "extra_headers": job["headers"]}
    return {"model": f"openai/{job['model']}", **place, **tools, **more}


def chat(job: dict[str, Any], seen: Seen) -> None:
    messages: list[Any] = [{"role": "user", "content": job["prompt"]}]
    for _ in range(5):
        seen.text = ""
        if job["way"] == "chat.stream":
            chunks = []
            for chunk in litellm.completion(**asked(job, messages=messages, stream=True)):
                chunks.append(chunk)
                seen.text += chunk.choices[0].delta.content or ""
                seen.reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
            made = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
        else:
            made = litellm.completion(**asked(job, messages=messages)).choices[0].message
            seen.text = made.content or ""
            seen.reasoning += getattr(made, "reasoning_content", None) or ""
        if not made.tool_calls:
            return
        messages.append(made.model_dump(exclude_none=True))
        for call in made.tool_calls:
            assert json.loads(call.function.arguments) == {"city": "Oslo"}
            seen.ran.append(call.function.name)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER})


def response(made: Any, seen: Seen) -> Any:
    for item in made.output:
        if item.type == "message":
            seen.text += "".join(part.text for part in item.content)
        elif item.type == "reasoning":
            seen.reasoning += "".join(part["text"] if isinstance(part, dict) else part.text for part in item.summary)
    if made.error:
        error = made.error if isinstance(made.error, dict) else made.error.model_dump()
        seen.failed(made.status, error["message"])
    return made


def streamed(job: dict[str, Any], seen: Seen, given: dict[str, Any]) -> Any:
    made = None
    for event in litellm.responses(**asked(job, **given, stream=True)):
        kind = str(getattr(event.type, "value", event.type))
        if kind == "response.output_text.delta":
            seen.text += event.delta
        elif kind == "response.reasoning_summary_text.delta":
            seen.reasoning += event.delta
        elif kind == "response.failed":
            error = event.response.error
            seen.failed(kind, error["message"] if isinstance(error, dict) else error.message)
        made = getattr(event, "response", made)
    return made


def responses(job: dict[str, Any], seen: Seen) -> None:
    given: dict[str, Any] = {"input": job["prompt"]}
    for _ in range(5):
        seen.text = ""
        if job["way"] == "responses.stream":
            made = streamed(job, seen, given)
        else:
            made = response(litellm.responses(**asked(job, **given)), seen)
        calls = [item for item in made.output if item.type == "function_call"]
        if not calls:
            return
        seen.ran += [call.name for call in calls]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": WEATHER} for call in calls]
        given = {"input": results, "previous_response_id": made.id}


if __name__ == "__main__":
    serve({"chat": chat, "chat.stream": chat, "responses": responses, "responses.stream": responses})
