"""openai-python: every way of asking that its documentation shows, blocking and async."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from line import SCHEMA, WEATHER, Seen, serve
from pydantic import BaseModel

CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": True}}]
TOOLS: Any = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}]
for _schema in (CHAT_TOOLS[0]["function"], TOOLS[0]):
    _schema["parameters"] = {**SCHEMA, "additionalProperties": False}
DONE_IN = 5


class City(BaseModel):
    city: str
    warm: bool


def blocking(job: dict[str, Any]) -> openai.OpenAI:
    return openai.OpenAI(**given(job))


def asynchronous(job: dict[str, Any]) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**given(job))


def given(job: dict[str, Any]) -> dict[str, Any]:
    """What a client is made with: its own number of retries, unless the job names another."""
    retries = {"max_retries": job["retries"]} if "retries" in job else {}
    return {"base_url": f"{job['base']}/v1", "api_key": job["key"], "default_headers": job["headers"], **retries}


def asked(job: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What every call of a job has."""
    tools = {"tools": CHAT_TOOLS if "chat" in job["way"] else TOOLS} if job["case"] == "own" else {}
    return {"model": job["model"], **tools, **more}


def heard(delta: Any, seen: Seen) -> None:
    seen.text += delta.content or ""
    seen.reasoning += getattr(delta, "reasoning_content", None) or ""


def naive(chunk: Any, seen: Seen, calls: list[dict[str, Any]]) -> None:
    """The loop of every tutorial."""
    delta = chunk.choices[0].delta
    heard(delta, seen)
    for call in delta.tool_calls or []:
        if call.id:
            empty = {"name": call.function.name, "arguments": ""}
            calls.append({"id": call.id, "type": "function", "function": empty})
        calls[call.index]["function"]["arguments"] += call.function.arguments or ""


def message(made: Any, seen: Seen) -> list[dict[str, Any]]:
    """A whole message: what it says, and the calls that it asks for."""
    said = made.choices[0].message
    heard(said, seen)
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in said.tool_calls or []
    ]


def chat_turns(job: dict[str, Any], seen: Seen) -> Any:
    """The caller's side of a conversation: gives messages, is sent the calls, ends when there are none."""
    messages: list[Any] = [{"role": "user", "content": job["prompt"]}]
    for _ in range(DONE_IN):
        seen.text = ""
        calls = yield messages
        if not calls:
            return
        messages.append({"role": "assistant", "content": seen.text, "tool_calls": calls})
        for call in calls:
            seen.ran.append(call["function"]["name"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": WEATHER})


def loop(turns: Any, one: Any) -> None:
    """Drive the caller's side with a function that makes one request."""
    try:
        given = next(turns)
        while True:
            given = turns.send(one(given))
    except StopIteration:
        return


async def aloop(turns: Any, one: Any) -> None:
    try:
        given = next(turns)
        while True:
            given = turns.send(await one(given))
    except StopIteration:
        return


def chat(job: dict[str, Any], seen: Seen) -> None:
    with blocking(job) as sdk:
        create = sdk.chat.completions.create
        loop(chat_turns(job, seen), lambda given: message(create(**asked(job, messages=given)), seen))


def chat_stream(job: dict[str, Any], seen: Seen) -> None:
    def one(given: Any) -> Any:
        calls: list[Any] = []
        for chunk in sdk.chat.completions.create(**asked(job, messages=given, stream=True)):
            naive(chunk, seen, calls)
        return calls

    with blocking(job) as sdk:
        loop(chat_turns(job, seen), one)


def chat_helper(job: dict[str, Any], seen: Seen) -> None:
    def one(given: Any) -> Any:
        text = ""
        with sdk.chat.completions.stream(**asked(job, messages=given)) as stream:
            for event in stream:
                if event.type == "content.delta":
                    text += event.delta
                    seen.text = text
            seen.text = ""
            calls = message(stream.get_final_completion(), seen)
            assert seen.text == text, "deltas and the final completion say the same"
            return calls

    with blocking(job) as sdk:
        loop(chat_turns(job, seen), one)


def chat_parse(job: dict[str, Any], seen: Seen) -> None:
    form = {"response_format": City} if job["case"] == "typed" else {}

    def one(given: Any) -> Any:
        made = sdk.chat.completions.parse(**asked(job, messages=given, **form))
        found = made.choices[0].message.parsed
        seen.more["parsed"] = found.model_dump() if found else None
        return message(made, seen)

    with blocking(job) as sdk:
        loop(chat_turns(job, seen), one)


def response_turns(job: dict[str, Any], seen: Seen) -> Any:
    """The caller's side on Responses. Not streamed it chains by id; streamed it sends all items again."""
    given: dict[str, Any] = {"input": job["prompt"]}
    items: list[Any] = [{"role": "user", "content": job["prompt"]}]
    for _ in range(DONE_IN):
        seen.text = ""
        made = yield given
        calls = [item for item in made.output if item.type == "function_call"]
        if not calls:
            return
        seen.ran += [call.name for call in calls]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": WEATHER} for call in calls]
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in made.output]
        items += results
        given = {"input": list(items)}
        if "stream" not in job["way"]:
            given = {"input": results, "previous_response_id": made.id}


def response(made: Any, seen: Seen) -> Any:
    """A whole response."""
    seen.text = made.output_text
    for item in made.output:
        if item.type == "reasoning":
            seen.reasoning += "".join(part.text for part in item.summary)
    if made.error:
        seen.failed(made.status, made.error.message)
    return made


def event(got: Any, seen: Seen) -> Any:
    """One event of a stream; the response where it is the last."""
    if got.type == "response.output_text.delta":
        seen.text += got.delta
    elif got.type == "response.reasoning_summary_text.delta":
        seen.reasoning += got.delta
    elif got.type == "response.failed":
        seen.failed(got.type, got.response.error.message)
    elif got.type == "response.completed":
        seen.more["final"] = got.response.output_text
    return getattr(got, "response", None)


def responses(job: dict[str, Any], seen: Seen) -> None:
    with blocking(job) as sdk:
        create = sdk.responses.create
        loop(response_turns(job, seen), lambda given: response(create(**asked(job, **given)), seen))


def responses_stream(job: dict[str, Any], seen: Seen) -> None:
    def one(given: Any) -> Any:
        last = None
        for got in sdk.responses.create(**asked(job, **given, stream=True)):
            last = event(got, seen) or last
        return last

    with blocking(job) as sdk:
        loop(response_turns(job, seen), one)


def responses_helper(job: dict[str, Any], seen: Seen) -> None:
    def one(given: Any) -> Any:
        with sdk.responses.stream(**asked(job, **given)) as stream:
            for got in stream:
                event(got, seen)
            seen.more["told"] = seen.error and seen.error["message"]
            final = stream.get_final_response()
        assert final.output_text == seen.text, "deltas and the final response say the same"
        return final

    with blocking(job) as sdk:
        loop(response_turns(job, seen), one)


def responses_parse(job: dict[str, Any], seen: Seen) -> None:
    form = {"text_format": City} if job["case"] == "typed" else {}

    def one(given: Any) -> Any:
        made = sdk.responses.parse(**asked(job, **given, **form))
        seen.more["parsed"] = made.output_parsed.model_dump() if made.output_parsed else None
        return response(made, seen)

    with blocking(job) as sdk:
        loop(response_turns(job, seen), one)


async def achat_stream(job: dict[str, Any], seen: Seen) -> None:
    async def one(given: Any) -> Any:
        calls: list[Any] = []
        async for chunk in await sdk.chat.completions.create(**asked(job, messages=given, stream=True)):
            naive(chunk, seen, calls)
        return calls

    async with asynchronous(job) as sdk:
        await aloop(chat_turns(job, seen), one)


async def achat_helper(job: dict[str, Any], seen: Seen) -> None:
    async def one(given: Any) -> Any:
        async with sdk.chat.completions.stream(**asked(job, messages=given)) as stream:
            async for got in stream:
                if got.type == "content.delta":
                    seen.text += got.delta
            seen.text = ""
            return message(await stream.get_final_completion(), seen)

    async with asynchronous(job) as sdk:
        await aloop(chat_turns(job, seen), one)


async def aresponses(job: dict[str, Any], seen: Seen) -> None:
    async def one(given: Any) -> Any:
        return response(await sdk.responses.create(**asked(job, **given)), seen)

    async with asynchronous(job) as sdk:
        await aloop(response_turns(job, seen), one)


async def aresponses_stream(job: dict[str, Any], seen: Seen) -> None:
    async def one(given: Any) -> Any:
        last = None
        async for got in await sdk.responses.create(**asked(job, **given, stream=True)):
            last = event(got, seen) or last
        return last

    async with asynchronous(job) as sdk:
        await aloop(response_turns(job, seen), one)


async def aresponses_helper(job: dict[str, Any], seen: Seen) -> None:
    async def one(given: Any) -> Any:
        async with sdk.responses.stream(**asked(job, **given)) as stream:
            async for got in stream:
                event(got, seen)
            seen.more["told"] = seen.error and seen.error["message"]
            return await stream.get_final_response()

    async with asynchronous(job) as sdk:
        await aloop(response_turns(job, seen), one)


def socket(job: dict[str, Any], seen: Seen) -> None:
    """responses.connect(): both turns over one WebSocket."""

    def one(given: Any) -> Any:
        connection.response.create(**asked(job, **given))
        for got in connection:
            if got.type == "error":
                return seen.failed("error", got.error.message, getattr(got, "status", None))
            last = event(got, seen)
            if got.type in ("response.completed", "response.failed", "response.incomplete"):
                return last
        return None

    with blocking(job) as sdk, sdk.responses.connect() as connection:
        loop(response_turns(job, seen), one)


def run(way: Any) -> Any:
    return lambda job, seen: asyncio.run(way(job, seen))


if __name__ == "__main__":
    serve(
        {
            "chat": chat,
            "chat.stream": chat_stream,
            "chat.helper": chat_helper,
            "chat.parse": chat_parse,
            "responses": responses,
            "responses.stream": responses_stream,
            "responses.helper": responses_helper,
            "responses.parse": responses_parse,
            "async chat.stream": run(achat_stream),
            "async chat.helper": run(achat_helper),
            "async responses": run(aresponses),
            "async responses.stream": run(aresponses_stream),
            "async responses.helper": run(aresponses_helper),
            "socket": socket,
        }
    )
