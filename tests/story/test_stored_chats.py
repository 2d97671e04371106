"""Stored chat completions through the real openai-python: list with auto-paging, filters, retrieve, update, messages,
delete (B6)."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.story.chat import PATH, ask, check_whole
from tests.story.server import KEY, Client, Server, Upstream

pytestmark = pytest.mark.xdist_group("processes")

MODEL = "hermes-agent"


@pytest.fixture(scope="module")
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as made:
        yield made


@pytest.fixture(scope="module")
def made(sdk: openai.OpenAI) -> list[str]:
    """25 completions, every fifth with another mark."""
    return [
        sdk.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"question {n}"}],
            store=True,
            metadata={"kind": "fifth" if n % 5 == 0 else "other", "n": str(n)},
        ).id
        for n in range(25)
    ]


@pytest.mark.parametrize("limit", [1, 4, 20, 25, 100])
def test_b6_the_sdk_pages_over_all_of_them_in_order(sdk: openai.OpenAI, made: list[str], limit: int) -> None:
    assert [each.id for each in sdk.chat.completions.list(limit=limit, order="asc")] == made
    assert [each.id for each in sdk.chat.completions.list(limit=limit, order="desc")] == made[::-1]


def test_b6_a_page_begins_after_the_one_that_is_named(sdk: openai.OpenAI, made: list[str]) -> None:
    page = sdk.chat.completions.list(limit=3, after=made[4])
    assert [each.id for each in page.data] == made[5:8] and page.has_more
    last = sdk.chat.completions.list(limit=3, after=made[21])
    assert [each.id for each in last.data] == made[22:] and not last.has_more
    assert sdk.chat.completions.list(after=made[-1]).data == []


@pytest.mark.parametrize("limit", [1, 2, 5, 20])
def test_b6_metadata_and_model_filter_over_pages(sdk: openai.OpenAI, made: list[str], limit: int) -> None:
    fifth = sdk.chat.completions.list(limit=limit, metadata={"kind": "fifth"})
    assert [each.id for each in fifth] == made[::5]
    both = sdk.chat.completions.list(limit=limit, metadata={"kind": "fifth", "n": "10"}, model=MODEL)
    assert [each.id for each in both] == [made[10]]
    assert list(sdk.chat.completions.list(limit=limit, model="another")) == []


def test_b6_retrieve_update_and_messages(sdk: openai.OpenAI, made: list[str]) -> None:
    one = sdk.chat.completions.retrieve(made[3])
    assert one.choices[0].message.content and one.choices[0].finish_reason == "stop" and one.usage
    assert one.to_dict()["metadata"] == {"kind": "other", "n": "3"}
    changed = sdk.chat.completions.update(made[3], metadata={"kind": "changed"})
    assert changed.id == made[3]
    assert [each.id for each in sdk.chat.completions.list(metadata={"kind": "changed"})] == [made[3]]
    messages = sdk.chat.completions.messages.list(made[3], limit=1)
    assert [message.content for message in messages] == ["question 3"]


def test_b6_delete(sdk: openai.OpenAI, made: list[str]) -> None:
    extra = sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], store=True).id
    assert sdk.chat.completions.delete(extra).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.retrieve(extra)
    assert caught.value.code == "completion_not_found"
    assert [each.id for each in sdk.chat.completions.list(limit=100)] == made


def test_b1_response_formats_reach_the_upstream(sdk: openai.OpenAI, upstream: Upstream, mark: str) -> None:
    schema = {"name": "answer", "strict": True, "schema": {"type": "object", "properties": {}}}
    for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": schema}):
        text = f"{mark} {form['type']}"
        sdk.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": text}],
            response_format=form,  # type: ignore[arg-type]
            service_tier="flex",
            safety_identifier="who",
            parallel_tool_calls=False,
            max_completion_tokens=77,
        )
        (asked,) = upstream.asked(text)
        assert asked["response_format"] == form and asked["parallel_tool_calls"] is False
        assert (asked["service_tier"], asked["safety_identifier"]) == ("flex", "who")
        assert asked.get("max_tokens") == 77


def test_b2_reasoning_is_in_streams_bodies_and_stored_bodies(client: Client, sdk: openai.OpenAI) -> None:
    text = "hi [[reason=3]]"
    with client.stream(PATH, ask(text, stream=True, store=True)) as stream:
        frames = stream.rest()
    shown = check_whole(frames)
    thoughts = [frame.data["choices"][0]["delta"].get("reasoning_content", "") for frame in frames]
    one = sdk.chat.completions.retrieve(shown).choices[0].message
    again = sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
    for message in (one, again.choices[0].message):
        assert message.model_extra == {"reasoning_content": "".join(thoughts)} and "".join(thoughts)
    sdk.chat.completions.delete(shown)


def test_d2_the_session_is_echoed_on_errors_that_a_run_ended_with(client: Client) -> None:
    headers = {"x-hermes-session-id": "a-session"}
    for body in (ask("[[status=400]]"), ask("[[status=400]]", stream=True), ask("hi", n=2)):
        answer = client.post(PATH, body, headers)
        assert answer.status >= 400 and answer.headers["x-hermes-session-id"] == "a-session"
