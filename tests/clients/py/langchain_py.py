"""LangChain in Python: ChatOpenAI over chat completions and over responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from line import WEATHER, Seen, serve


@tool
def get_weather(city: str) -> str:
    """Weather."""
    return WEATHER


def model(job: dict[str, Any]) -> Any:
    made = ChatOpenAI(
        model=job["model"],
        base_url=f"{job['base']}/v1",
        api_key=job["key"],
        default_headers=job["headers"],
        use_responses_api=job["way"].startswith("responses"),
    )
    return made.bind_tools([get_weather]) if job["case"] == "own" else made


def thought(message: BaseMessage) -> str:
    """Reasoning in LangChain's own form, from whichever API."""
    return "".join(str(block["reasoning"]) for block in message.content_blocks if "reasoning" in block)


def turns(job: dict[str, Any], seen: Seen, one: Callable[[list[BaseMessage]], Any]) -> None:
    messages: list[BaseMessage] = [HumanMessage(job["prompt"])]
    for _ in range(5):
        seen.text = ""
        made: AIMessage = one(messages)
        if not made.tool_calls:
            return
        messages.append(made)
        for call in made.tool_calls:
            seen.ran.append(call["name"])
            messages.append(ToolMessage(WEATHER, tool_call_id=call["id"]))


def whole(job: dict[str, Any], seen: Seen) -> None:
    asked = model(job)

    def one(messages: list[BaseMessage]) -> Any:
        made = asked.invoke(messages)
        seen.text, seen.reasoning = str(made.text), seen.reasoning + thought(made)
        return made

    turns(job, seen, one)


def streamed(job: dict[str, Any], seen: Seen) -> None:
    asked = model(job)

    def one(messages: list[BaseMessage]) -> Any:
        made: AIMessageChunk | None = None
        for chunk in asked.stream(messages):
            made = chunk if made is None else made + chunk
            seen.text += str(chunk.text)
            seen.reasoning += thought(chunk)
        return made

    turns(job, seen, one)


if __name__ == "__main__":
    serve({"chat": whole, "chat.stream": streamed, "responses": whole, "responses.stream": streamed})
