"""Compaction: a long conversation as a short summary that only this server can read. Owns: the request that asks a
model for the summary, the sealed item that carries it, and how a later input unseals it. Refuses to know: engines and
HTTP.

Theory of operation. A summary becomes context for a model. So only this server may write one, and only its owner may
use it. It is encrypted with a key stream (SHAKE-256 over the owner's key and a nonce of the run) and authenticated
(HMAC-SHA256 over all of it). Both keys derive from the server's secret and the owner. A foreign, forged or damaged item
fails in the same way: 400 `invalid_compaction`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ninelives.core.admission import Asked
from ninelives.core.errors import AgentError, ClientError, NinelivesError
from ninelives.core.events import RunCompleted
from ninelives.core.ids import item_id, wire_id
from ninelives.core.spec import Message, Spec
from ninelives.core.state import RunState
from ninelives.dialects import fields as f
from ninelives.dialects.asking import Context
from ninelives.dialects.responses.body import usage_object
from ninelives.dialects.responses.input import input_items, messages_of
from ninelives.dialects.responses.refs import Item, previous_run, with_references
from ninelives.dialects.responses.shapes import Compaction
from ninelives.dialects.shared import refusal as refusal_of

HEAD = "[Summary of the conversation so far]\n"
PROMPT = (
    "Summarise the conversation so far, so that it can go on from your summary alone. Keep every fact, name, number, "
    "path, decision, open question and promise that may matter later, and the state of any work under way. Leave out "
    "greetings and what was settled and is of no further use. Answer with the summary only."
)
_VERSION = b"\x01"
_NONCE, _MAC = 16, 32


class CompactRequest(Struct):
    """The known fields; others are ignored."""

    model: str | None = None
    input: f.Input | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: f.CacheKey | None = None


class ParsedCompact(Struct, frozen=True):
    """A request that passed all checks that need no store."""

    spec: Spec
    asked: Asked
    messages: tuple[Message, ...]
    """The messages of the request itself."""


def parse(request: CompactRequest, context: Context, max_parts: int, known: Mapping[str, Item]) -> ParsedCompact:
    """The one plain model call that makes the summary."""
    context = context.under(f.required(request.model, "model"))
    if request.previous_response_id is None:
        f.required(request.input, "input")
    items = [] if request.input is None else input_items(with_references(request.input, known), max_parts)
    messages = tuple(messages_of(unseal_items(items, context)))
    spec = Spec(
        dialect="responses",
        model=context.profile.name,
        input=(*messages, {"role": "user", "content": PROMPT}),
        instructions=request.instructions,
        sampling={"prompt_cache_key": request.prompt_cache_key} if request.prompt_cache_key else {},
        chore=True,
        store=False,
        kept="memory",
        echo={"truncation": "auto"},
    )
    asked = Asked(
        owner=context.owner,
        fingerprint="",
        previous=previous_run(request.previous_response_id),
        derived_session=context.derived_session(request.instructions, ""),
        kept="memory",
    )
    return ParsedCompact(spec, asked, messages)


def body(state: RunState, context: Context, earlier: Iterable[Message]) -> Compaction:
    """The answer: the messages of the user, then everything else as one sealed item."""
    facts = state.facts
    kept = [message for message in earlier if message.get("role") == "user" and not _is_summary(message)]
    shown: list[Item] = [_user_item(facts.run, n, message) for n, message in enumerate(kept)]
    sealed = seal(context, facts.run, facts.messages[-1].spoken)
    shown.append({"type": "compaction", "id": item_id("cmp", facts.run, len(kept)), "encrypted_content": sealed})
    return Compaction(
        id=wire_id("responses", facts.run),
        object="response.compaction",
        created_at=facts.created_at // 1000,
        output=shown,
        usage=usage_object(facts.usage),
    )


def failure(state: RunState) -> NinelivesError | None:
    """The error in place of an answer. Half a summary would lose the other half of the conversation."""
    if isinstance(state.facts.end, RunCompleted):
        if any(said.spoken.strip() for said in state.facts.messages):
            return None
        return AgentError("compaction_failed", "The model gave no summary. Try again, or use another model.")
    refused = refusal_of(state)
    return refused or AgentError(
        "compaction_failed", "The model's summary was cut off by a limit. Compact less at once."
    )


def unseal_items(items: Iterable[Item], context: Context) -> list[Item]:
    """The items, with each compaction replaced by a message that holds its summary."""
    return [_unsealed(n, item, context) if item.get("type") == "compaction" else item for n, item in enumerate(items)]


def _unsealed(n: int, item: Item, context: Context) -> Item:
    sealed = item.get("encrypted_content")
    summary = unseal(context, sealed) if isinstance(sealed, str) else None
    if summary is None:
        message = f"input[{n}] is not a compaction that this server made for you. Leave it out, or compact again."
        raise ClientError("invalid_compaction", message, param="input")
    return {"type": "message", "role": "user", "content": HEAD + summary}


def _is_summary(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str) and content.startswith(HEAD)


def _user_item(run: str, n: int, message: Message) -> Item:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    shown = [_input_part(part) for part in parts if isinstance(part, dict)]
    return {
        "type": "message",
        "id": item_id("msg", run, n),
        "status": "completed",
        "role": "user",
        "content": shown,
    }


def _input_part(part: dict[str, object]) -> Item:
    match part:
        case {"type": "image_url", "image_url": dict(image)}:
            return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case _:
            return {"type": "input_text", "text": str(part.get("text") or "")}


# The seal


def _keys(context: Context) -> tuple[bytes, bytes]:
    owner = context.owner.encode("utf-8", "replace")
    made = [hmac.new(context.secret, use + owner, hashlib.sha256).digest() for use in (b"seal\0", b"sign\0")]
    return made[0], made[1]


def _xor(key: bytes, nonce: bytes, data: bytes) -> bytes:
    stream = hashlib.shake_256(key + nonce).digest(len(data))
    return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))


def seal(context: Context, run: str, summary: str) -> str:
    """The summary, encrypted and signed. A run has only one, so its id is the nonce."""
    cover, sign = _keys(context)
    nonce = hashlib.sha256(run.encode()).digest()[:_NONCE]
    sealed = _VERSION + nonce + _xor(cover, nonce, summary.encode("utf-8", "replace"))
    return base64.urlsafe_b64encode(sealed + hmac.new(sign, sealed, hashlib.sha256).digest()).decode()


def unseal(context: Context, sealed: str) -> str | None:
    """The summary; None when this server did not seal it for this owner."""
    try:
        if base64.b64decode(sealed[:4].encode(), b"-_", validate=True)[:1] != _VERSION:
            return None  # another server's: cheap to refuse, however long it is
        raw = base64.b64decode(sealed.encode(), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    content, signature = raw[:-_MAC], raw[-_MAC:]
    cover, sign = _keys(context)
    if not hmac.compare_digest(signature, hmac.new(sign, content, hashlib.sha256).digest()):
        return None
    nonce, data = content[1 : 1 + _NONCE], content[1 + _NONCE :]
    return _xor(cover, nonce, data).decode("utf-8", "replace")
