"""A Completions request as a Spec. Owns: its fields, and that its prompt is the one user message of a chat. Refuses to
know: engines and HTTP."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.core.spec import fingerprint
from ninelives.dialects import fields as f
from ninelives.dialects.asking import Context, sent_fields
from ninelives.dialects.chat import parse as chat
from ninelives.dialects.parsed import ParsedRequest

_DEFAULTS: dict[str, object] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "temperature": 1,
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
}
_CHAT = (
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "stop",
    "user",
)
"""The fields that a chat has too."""


class CompletionRequest(Struct):
    """The known fields; others are ignored."""

    prompt: str | list[object] | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: chat.StreamOptions | None = None
    max_tokens: f.Positive | None = None
    temperature: f.Temperature | None = None
    top_p: f.Share | None = None
    frequency_penalty: f.Penalty | None = None
    presence_penalty: f.Penalty | None = None
    logit_bias: f.LogitBias | None = None
    seed: f.Seed | None = None
    stop: str | f.Stops | None = None
    user: str | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = None


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A request as a Spec. Raises ClientError when the request is not valid. This API has no `store`: a run is kept as
    on chat where that is left out, or with a key (B6). An answer to a question is not recognised here (G11)."""
    request = f.decode(raw, CompletionRequest)
    _check_supported(request)
    given = {name: value for name in _CHAT if (value := getattr(request, name)) is not None}
    body = {**given, "messages": [{"role": "user", "content": _prompt(request)}]}
    parsed = chat.parse(msgspec.json.encode(body), context, max_parts)
    known = context.under(request.model).known_fields(sent_fields(request), _DEFAULTS)
    fields = {**known, "prompt": _prompt(request)}
    return replace(
        parsed,
        spec=replace(parsed.spec, dialect="completions", tool_progress="off"),
        asked=replace(parsed.asked, fingerprint=fingerprint("completions", fields, parsed.asked.session)),
        reply=None,
    )


def _prompt(request: CompletionRequest) -> str:
    match f.required(request.prompt, "prompt"):
        case str(text) | [str(text)] if text:
            return text
        case _:
            message = "prompt must be one text that is not empty: lists of texts and of tokens are not supported."
            raise ClientError("unsupported_value", message, param="prompt")


def _check_supported(request: CompletionRequest) -> None:
    """Refuse options that an agent cannot honour."""
    for name in ("n", "best_of"):
        if getattr(request, name) not in (None, 1):
            raise ClientError("unsupported_value", f"{name} must be 1: an agent gives one answer.", param=name)
    for name, asked in (
        ("echo", bool(request.echo)),
        ("suffix", bool(request.suffix)),
        ("logprobs", request.logprobs is not None),
    ):
        if asked:
            message = f"{name} is not supported: the answer comes from a chat model. Leave it out."
            raise ClientError("unsupported_parameter", message, param=name)
