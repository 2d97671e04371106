"""The OpenAI Agents SDK, its own loop around one agent, over chat completions and over responses."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from line import WEATHER, Seen, serve
from openai import AsyncOpenAI

set_tracing_disabled(True)


def agent(job: dict[str, Any], seen: Seen, client: AsyncOpenAI) -> Agent[Any]:
    @function_tool
    def get_weather(city: str) -> str:
        """Weather."""
        seen.ran.append("get_weather")
        return WEATHER

    kind = OpenAIChatCompletionsModel if job["way"].startswith("chat") else OpenAIResponsesModel
    return Agent(
        name="asker",
        model=kind(job["model"], client),
        model_settings=ModelSettings(extra_headers=job["headers"]),
        tools=[get_weather] if job["case"] == "own" else [],
    )


def connected(job: dict[str, Any]) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{job['base']}/v1", api_key=job["key"])


def items(result: Any, seen: Seen) -> None:
    """The reasoning that the SDK shows as items of the run."""
    for item in result.new_items:
        if item.type == "reasoning_item":
            seen.reasoning += "".join(part.text for part in item.raw_item.summary)


async def whole(job: dict[str, Any], seen: Seen) -> None:
    async with connected(job) as client:
        result = await Runner.run(agent(job, seen, client), job["prompt"])
        seen.text = result.final_output
        items(result, seen)


async def streamed(job: dict[str, Any], seen: Seen) -> None:
    async with connected(job) as client:
        result = Runner.run_streamed(agent(job, seen, client), job["prompt"])
        async for event in result.stream_events():
            if event.type != "raw_response_event":
                continue
            if event.data.type == "response.created":
                seen.text = ""
            elif event.data.type == "response.output_text.delta":
                seen.text += event.data.delta
        items(result, seen)


def run(way: Any) -> Any:
    return lambda job, seen: asyncio.run(way(job, seen))


if __name__ == "__main__":
    serve(
        {f"{api}{end}": run(way) for api in ("chat", "responses") for end, way in (("", whole), (".stream", streamed))}
    )
