"""What story tests say of /v1/chat/completions again and again. Owns: asking, and the laws that every stream keeps."""

from __future__ import annotations

from typing import Any

from tests.story.server import Client, Frame, Json

PATH = "/v1/chat/completions"
PROGRESS = "hermes.tool.progress"


def ask(text: str, **fields: Any) -> Json:
    """A request with one user message."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def create(client: Client, text: str, headers: dict[str, str] | None = None, **fields: Any) -> Json:
    """A completion that is not streamed."""
    answer = client.post(PATH, ask(text, **fields), headers)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def text_of(completion: Json) -> str:
    return str(completion["choices"][0]["message"]["content"])


def chunks(frames: list[Frame]) -> list[Json]:
    """The frames without a name."""
    return [frame.data for frame in frames if not frame.name]


def told(frames: list[Frame]) -> str:
    """All text of a stream."""
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(frames) if chunk.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def check_whole(frames: list[Frame], *, finish: str = "stop", usage: bool = False) -> str:
    """The laws of a whole stream (B2): the role first, one finish, usage only where asked for. The id."""
    plain = chunks(frames)
    assert len({chunk["id"] for chunk in plain}) == 1
    assert {chunk["object"] for chunk in plain} == {"chat.completion.chunk"}
    if usage:
        last = plain.pop()
        assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in plain)
    else:
        assert not any("usage" in chunk for chunk in plain)
    choices = [chunk["choices"][0] for chunk in plain]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [finish]
    assert choices[-1]["delta"] == {}
    assert all(set(c["delta"]) <= {"content", "reasoning_content"} for c in choices[1:])
    return str(plain[0]["id"])
