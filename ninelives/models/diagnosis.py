"""Whether a model can be used, and what to do where it cannot. Owns: the question to an upstream at a start, the real
call of `ninelives doctor`, and the remedy for each failure. Refuses to know: who asks."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Struct

from ninelives.core.errors import AgentError
from ninelives.models.base import Ask, Model
from ninelives.models.openai import OpenAIModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ninelives.models.base import Part

CALL_S = 60.0
"""Seconds for the first part of an answer. A large local model is loaded in this time."""
_LOOK = "Look at the log of the model server."
LISTED = 8
"""Models that are named in a remedy."""


class Diagnosis(Struct, frozen=True):
    """Whether a model answers. Where it does not: what happened, and what to do."""

    ok: bool
    detail: str
    remedy: str = ""


async def upstream_state(model: Model) -> str:
    """A phrase that says whether the upstream answers. It asks for the list of models, which costs nothing."""
    if not isinstance(model, OpenAIModel):
        return "model answers" if await model.probe() else "MODEL DOES NOT ANSWER (run `ninelives doctor`)"
    status, names = await model.listing(model.upstream.probe_s)
    if status == 0:
        return "MODEL DOES NOT ANSWER (run `ninelives doctor`)"
    if status in (401, 403):
        return "MODEL REFUSES THE KEY (run `ninelives doctor`)"
    if names and model.name not in names:
        return f"MODEL {model.name} IS NOT LISTED by its upstream (run `ninelives doctor`)"
    return "model answers"


async def diagnose(model: Model) -> Diagnosis:
    """Make one real call and read the first part of the answer."""
    begun = time.monotonic()
    try:
        async with asyncio.timeout(CALL_S):
            await _first_part(model)
    except TimeoutError:
        return Diagnosis(False, f"{model.name} sent nothing within {CALL_S:.0f} s", _LOOK)
    except AgentError as error:
        return await _explained(model, error)
    return Diagnosis(True, f"answered a call after {time.monotonic() - begun:.1f} s")


async def _first_part(model: Model) -> None:
    ask = Ask(({"role": "user", "content": "Answer with the word ok."},))
    stream = cast("AsyncGenerator[Sequence[Part], None]", model.stream(ask))
    async with aclosing(stream):
        await anext(stream)


async def _explained(model: Model, error: AgentError) -> Diagnosis:
    if not isinstance(model, OpenAIModel):
        return Diagnosis(False, str(error), _LOOK)
    if error.code == "upstream_auth":
        remedy = "Set the right key: NINELIVES_MODEL_API_KEY (model.api_key), or OPENAI_API_KEY without model.url."
        return Diagnosis(False, str(error), remedy)
    if error.code == "upstream_unreachable":
        return Diagnosis(False, str(error), "Start the model server, or name another: model.url (--model-url).")
    return await _wrong_place(model) or Diagnosis(False, str(error), "Check model.url and model.name.")


async def _wrong_place(model: OpenAIModel) -> Diagnosis | None:
    """What the lists of models tell: a model that is not there, or a URL without /v1."""
    upstream = model.upstream
    _, names = await model.listing(upstream.probe_s)
    if names and model.name not in names:
        shown = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
        remedy = f"Set model.name (--model) to one that is listed: {shown}"
        return Diagnosis(False, f"{upstream.url} has no model {model.name!r}", remedy)
    longer = f"{upstream.url.rstrip('/')}/v1"
    other = OpenAIModel(msgspec.structs.replace(upstream, url=longer))
    try:
        status, _ = await other.listing(upstream.probe_s)
    finally:
        await other.close()
    if not names and status in (200, 401, 403):
        wrong = f"{upstream.url} is not the base URL of an API"
        return Diagnosis(False, wrong, f"Set model.url (--model-url) to {longer}")
    return None
