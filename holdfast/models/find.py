"""Which model is there when none was configured (E6). Owns: the usual names in the environment, the usual local ports
and their order. Refuses to know: the process environment (it comes in as a value) and what the model is for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.models.openai import OpenAIModel, Upstream

PUBLIC_URL = "https://api.openai.com/v1"
"""Where a key without a base URL belongs."""
PUBLIC_NAME = "gpt-5-mini"
"""The model asked for there unless OPENAI_MODEL says otherwise; its list begins with anything."""
KNOCK_S = 0.3
"""Seconds for a local port to open, and again for it to list its models."""
LIST_S = 2.0
"""Seconds for a base URL from the environment to list its models."""


class Local(Struct, frozen=True):
    """A model server that people run on their own machine."""

    label: str
    port: int


LOCALS = (Local("Ollama", 11434), Local("LM Studio", 1234), Local("llama.cpp", 8080), Local("vLLM", 8000))
"""In the order in which they are preferred."""


async def find_model(env: Mapping[str, str], locals_: Sequence[Local] = LOCALS) -> Upstream | None:
    """The upstream that the environment names, else the first local one that lists a model, else none.

    An upstream that was named is never passed over for being down: its failures will say so."""
    url, key, name = (env.get(key, "").strip() for key in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"))
    if url and url.rstrip("/") != PUBLIC_URL:
        return Upstream(url, name or await _first_name(url, key, LIST_S) or PUBLIC_NAME, key)
    if url or key:
        return Upstream(PUBLIC_URL, name or PUBLIC_NAME, key)
    async with asyncio.TaskGroup() as group:
        knocks = [group.create_task(_open(local.port)) for local in locals_]
    there = [local for local, knock in zip(locals_, knocks, strict=True) if knock.result()]
    urls = [f"http://127.0.0.1:{local.port}/v1" for local in there]
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(_first_name(url, "", KNOCK_S)) for url in urls]
    found = [Upstream(url, look.result()) for url, look in zip(urls, looks, strict=True) if look.result()]
    return found[0] if found else None


async def _open(port: int) -> bool:
    """True when somebody listens."""
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _first_name(url: str, key: str, within_s: float) -> str:
    """The first model listed that can chat; LM Studio and Ollama list embedding models too."""
    model = OpenAIModel(Upstream(url, "", key))
    try:
        names = await model.names(within_s)
    finally:
        await model.close()
    return next((name for name in names if "embed" not in name.lower()), "")
