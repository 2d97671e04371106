"""Input items. Owns: the forms of a Responses input (text, easy messages, items that the server itself sent before) and
how they become chat messages. Both forms of a call's output are read, because Open WebUI sends text back. Unknown types
of items are ignored, because new clients send new ones. Refuses to know: the rest of the request."""

from __future__ import annotations

from ninelives.core.errors import ClientError
from ninelives.core.spec import Message
from ninelives.dialects.responses.refs import Item

_ROLES = ("user", "assistant", "system", "developer")
_CALL_FIELDS = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
    "mcp_call": ("id", "name", "arguments"),
}


def input_items(given: str | list[Item], max_parts: int) -> list[Item]:
    """The input as items, checked."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not given:
        raise ClientError("invalid_value", "input must not be empty.", param="input")
    parts = 0
    for n, item in enumerate(given):
        kind = item.get("type") or "message"
        if not isinstance(kind, str):
            raise ClientError("invalid_value", f"input[{n}].type must be a string.", param="input")
        if kind == "message":
            _check_message(item, n)
        elif kind in _CALL_FIELDS:
            _check_call(kind, item, n)
        content = item.get("content")
        parts += len(content) if isinstance(content, list) else 1
    if parts > max_parts:
        message = f"There are {parts} content parts; the limit is {max_parts}."
        raise ClientError("too_many_parts", message, param="input")
    return given


def _check_message(item: Item, n: int) -> None:
    if item.get("role") not in _ROLES:
        raise ClientError("invalid_value", f"input[{n}].role must be one of {', '.join(_ROLES)}.", param="input")
    content = item.get("content")
    good = isinstance(content, str) or (
        isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("type"), str) for p in content)
    )
    if not good:
        raise ClientError("invalid_value", f"input[{n}].content must be text or parts with a type.", param="input")
    for part in content if isinstance(content, list) else ():
        if part["type"] in ("input_image", "image_url") and not isinstance(_image(part).get("url"), str):
            message = f"input[{n}] has an image without image_url: send a URL or a data URL, file ids are not known."
            raise ClientError("invalid_value", message, param="input")


def _check_call(kind: str, item: Item, n: int) -> None:
    for name in _CALL_FIELDS[kind]:
        if not isinstance(item.get(name), str) or (name == "call_id" and not item[name]):
            raise ClientError("invalid_value", f"input[{n}].{name} must be a string.", param="input")
    if kind == "function_call_output" and not isinstance(item.get("output"), str | list):
        raise ClientError("invalid_value", f"input[{n}].output must be text or parts.", param="input")


def messages_of(items: list[Item]) -> list[Message]:
    """Items as chat messages. A message of the assistant and the calls after it become one message."""
    messages: list[Message] = []
    for item in items:
        match item.get("type") or "message":
            case "message":
                messages.append({"role": _role(item["role"]), "content": _content(item["content"])})
            case "function_call":
                _add_call(messages, item, str(item["call_id"]))
            case "function_call_output":
                messages.append(_result(str(item["call_id"]), item["output"]))
            case "mcp_call":
                name = str(item["id"])
                _add_call(messages, item, name)
                messages.append(_result(name, item.get("output")))
    return messages


def _add_call(messages: list[Message], item: Item, call_id: str) -> None:
    function = {"name": item["name"], "arguments": item["arguments"] or "{}"}
    call = {"id": call_id, "type": "function", "function": function}
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        calls = last.setdefault("tool_calls", [])
        if isinstance(calls, list):
            calls.append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _role(given: object) -> object:
    """`developer` as `system`: not every upstream knows the newer name."""
    return "system" if given == "developer" else given


def _result(call_id: str, output: object) -> Message:
    if isinstance(output, list):
        texts = [part.get("text") for part in output if isinstance(part, dict)]
        output = "\n".join(text for text in texts if isinstance(text, str))
    return {"role": "tool", "tool_call_id": call_id, "content": output if isinstance(output, str) else ""}


def _content(content: object) -> object:
    """Parts in the form of Chat Completions; all text: a plain string."""
    if not isinstance(content, list):
        return content
    parts = [part for given in content if (part := _part(given)) is not None]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return parts


def _image(part: dict[str, object]) -> dict[str, object]:
    """The image of a part. Parts in the form of Chat Completions, which front ends of the Runs API send, have an object
    with the URL in it."""
    found = part.get("image_url")
    return found if isinstance(found, dict) and part["type"] == "image_url" else {"url": found}


def _part(given: dict[str, object]) -> dict[str, object] | None:
    match given.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": str(given.get("text") or "")}
        case "refusal":
            return {"type": "text", "text": str(given.get("refusal") or "")}
        case "input_image":
            image = {"url": given.get("image_url"), "detail": given.get("detail") or "auto"}
            return {"type": "image_url", "image_url": image}
        case "image_url":
            return {"type": "image_url", "image_url": _image(given)}
        case "input_file":
            return {"type": "file", "file": {k: v for k, v in given.items() if k != "type"}}
        case _:
            return None
