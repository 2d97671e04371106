"""Finding a model when none is configured (E6). Owns: the usual variables of the environment, the usual local ports,
and their order. Refuses to know: the process environment (it is passed in) and what the model is for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ninelives.models.openai import OpenAIModel, Upstream

PUBLIC_URL = "https://api.openai.com/v1"
"""The upstream for a key without a base URL."""
PUBLIC_NAME = "gpt-5-mini"
"""The model there, unless OPENAI_MODEL names one. The first of its list could be any."""
KNOCK_S = 0.3
"""Seconds for a local port to accept, and again to list its models."""
LIST_S = 2.0
"""Seconds for a base URL from the environment to list its models."""


class Local(Struct, frozen=True):
    """A model server that people run on their own machine."""

    label: str
    port: int


LOCALS = (Local("Ollama", 11434), Local("LM Studio", 1234), Local("llama.cpp", 8080), Local("vLLM", 8000))
"""In order of preference."""


class FoundModel(Struct, frozen=True):
    """An upstream that nobody configured. `by` says where it was found."""

    upstream: Upstream
    by: str


async def find_model(env: Mapping[str, str], locals_: Sequence[Local] = LOCALS) -> FoundModel | None:
    """The upstream that the environment names, else the first local one that lists a model, else None.

    An upstream that is named is used even if it is down. Its failures will say so."""
    url, key, name = (env.get(key, "").strip() for key in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"))
    if url and url.rstrip("/") != PUBLIC_URL:
        return FoundModel(Upstream(url, name or await first_name(url, key) or PUBLIC_NAME, key), "OPENAI_BASE_URL")
    if url or key:
        return FoundModel(Upstream(PUBLIC_URL, name or PUBLIC_NAME, key), "OPENAI_API_KEY")
    return await _first_local(locals_)


async def _first_local(locals_: Sequence[Local]) -> FoundModel | None:
    """The first local server, in the given order, that lists a model. All are asked at the same time."""
    asked = await asyncio.gather(*(_local_model(local) for local in locals_))
    return next((found for found in asked if found is not None), None)


async def _local_model(local: Local) -> FoundModel | None:
    url = f"http://127.0.0.1:{local.port}/v1"
    name = await first_name(url, "", KNOCK_S) if await _open(local.port) else ""
    by = f"{local.label} on this machine, found on port {local.port}"
    return FoundModel(Upstream(url, name), by) if name else None


async def _open(port: int) -> bool:
    """True when something listens on the port."""
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def first_name(url: str, key: str, within_s: float = LIST_S) -> str:
    """The first listed model that can chat; empty where none is listed in time. LM Studio and Ollama list embedding
    models too."""
    model = OpenAIModel(Upstream(url, "", key))
    try:
        names = await model.names(within_s)
    finally:
        await model.close()
    return next((name for name in names if "embed" not in name.lower()), "")
