"""The real openai-python against the real server, with two tools in between: every way of reading runs to its end
(B4, C9, A7)."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.story.server import KEY, Server, Upstream

pytestmark = pytest.mark.xdist_group("processes")

MODEL = "hermes-agent"
TWO = '[[tools=write_file:{"path":"sdk.txt","content":"from the sdk"}|read_file:{"path":"sdk.txt"}]] [[text=The end.]]'
TEXT = "Step 0: calling write_file. Step 1: calling read_file. The end. done after 2 results"
MESSAGES = [{"role": "user", "content": TWO}]


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as made:
        yield made


def test_a_naive_loop_over_choices_0_runs_to_the_end(sdk: openai.OpenAI) -> None:
    text, finish = "", None
    for chunk in sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
        text += chunk.choices[0].delta.content or ""
        assert not chunk.choices[0].delta.tool_calls
        finish = chunk.choices[0].finish_reason or finish
    assert (text, finish) == (TEXT, "stop")


def test_the_stream_helper_of_chat_runs_to_the_end(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == TEXT and final.choices[0].finish_reason == "stop"
    assert not final.choices[0].message.tool_calls


def test_usage_is_told_at_the_end_where_it_is_asked_for(sdk: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, stream_options=options))
    assert chunks[-1].choices == [] and chunks[-1].usage and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_chat_that_is_not_streamed(sdk: openai.OpenAI) -> None:
    made = sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert made.choices[0].message.content == TEXT and made.usage and made.usage.total_tokens > 0


def test_responses_streamed_by_create(sdk: openai.OpenAI) -> None:
    events = list(sdk.responses.create(model=MODEL, input=TWO, stream=True))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == TEXT


def test_responses_by_the_stream_helper_and_its_final_response(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(model=MODEL, input=TWO) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == TEXT and final.status == "completed"


def test_c9_the_sdk_gets_mcp_call_items_by_itself_and_function_calls_where_it_asks_for_them(
    sdk: openai.OpenAI,
) -> None:
    made = sdk.responses.create(model=MODEL, input=TWO)
    assert [item.type for item in made.output] == ["message", "mcp_call", "message", "mcp_call", "message"]
    call = made.output[3]
    assert (call.name, call.status, call.error) == ("read_file", "completed", None)
    assert isinstance(call.output, str) and "from the sdk" in call.output and call.arguments == '{"path":"sdk.txt"}'
    asked = sdk.responses.create(model=MODEL, input=TWO, extra_headers={"X-Tool-Items": "function_call"})
    pair = ["function_call", "function_call_output"]
    assert [item.type for item in asked.output] == ["message", *pair, "message", *pair, "message"]
    assert asked.output[1].call_id == asked.output[2].call_id and isinstance(asked.output[5].output, str)


@pytest.mark.parametrize("style", ["mcp_call", "function_call"])
def test_c9_both_styles_pass_the_stream_helper(sdk: openai.OpenAI, style: str) -> None:
    with sdk.responses.stream(model=MODEL, input=TWO, extra_headers={"X-Tool-Items": style}) as stream:
        final = stream.get_final_response()
    assert final.output_text == TEXT and sum(item.type == style for item in final.output) == 2


def test_c3_retrieve_streams_from_a_place(sdk: openai.OpenAI) -> None:
    events = list(sdk.responses.create(model=MODEL, input=TWO, stream=True))
    shown = events[0].response.id
    for n in (0, 4, len(events) - 2):
        tail = list(sdk.responses.retrieve(shown, stream=True, starting_after=n))
        assert tail == events[n + 1 :]
    assert list(sdk.responses.retrieve(shown, stream=True)) == events
    with sdk.responses.stream(response_id=shown, starting_after=4) as again:
        assert [event.sequence_number for event in again] == list(range(5, len(events)))


def test_the_rest_of_the_sdks_calls_on_responses(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(model=MODEL, input="hello", background=True)
    assert made.status in ("queued", "in_progress")
    assert sdk.responses.cancel(made.id).status in ("cancelled", "completed")
    items = sdk.responses.input_items.list(made.id).data
    assert items[0].content[0].text == "hello"
    sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.retrieve(made.id)
    assert caught.value.code == "response_not_found" and caught.value.request_id


def test_the_rest_of_the_sdks_calls_on_stored_chats_and_models(sdk: openai.OpenAI) -> None:
    made = [sdk.chat.completions.create(model=MODEL, messages=MESSAGES, store=True).id for _ in range(3)]
    completions = sdk.chat.completions
    assert completions.retrieve(made[0]).id == made[0]
    assert completions.update(made[0], metadata={"a": "b"}).metadata == {"a": "b"}
    assert [c.id for c in completions.list(limit=1, metadata={"a": "b"})] == [made[0]]
    assert [c.id for c in completions.list(limit=2, model=MODEL)] == made
    assert list(completions.list(model="another")) == list(completions.list(metadata={"a": "c"})) == []
    assert [c.id for c in completions.list(limit=2)] == made, "the SDK pages by itself"
    assert [m.content for m in completions.messages.list(made[0])] == [TWO]
    assert completions.delete(made[0]).deleted is True
    assert [model.id for model in sdk.models.list()] == [MODEL] and sdk.models.retrieve(MODEL).id == MODEL


async def test_the_async_client_reads_all_of_it_too(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as sdk:
        text = ""
        async for chunk in await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == TEXT
        async with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
            assert (await stream.get_final_completion()).choices[0].message.content == TEXT
        async with sdk.responses.stream(model=MODEL, input=TWO) as stream:
            final = await stream.get_final_response()
        assert final.output_text == TEXT
        assert (await sdk.responses.create(model=MODEL, input=TWO)).output_text == TEXT
        events = [event async for event in await sdk.responses.create(model=MODEL, input=TWO, stream=True)]
        again = await sdk.responses.retrieve(events[0].response.id, stream=True, starting_after=3)
        assert [event async for event in again] == events[4:]


def test_a7_the_sdk_sends_a_409_once_and_tells_its_code(sdk: openai.OpenAI, server: Server, mark: str) -> None:
    headers = {"Idempotency-Key": mark}
    sdk.responses.create(model=MODEL, input="hello", extra_headers=headers)
    before = server.log().count("idempotency_key_conflict")
    with pytest.raises(openai.ConflictError) as caught:
        sdk.responses.create(model=MODEL, input="other", extra_headers=headers)
    assert caught.value.code == "idempotency_key_conflict"
    assert server.log().count("idempotency_key_conflict") == before + 1, "x-should-retry: false is heeded"


def test_b2_a_failure_in_the_middle_raises_in_the_sdk_and_one_before_has_its_status(
    sdk: openai.OpenAI, upstream: Upstream
) -> None:
    text = ""
    with pytest.raises(openai.APIError) as caught:
        for chunk in sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "[[cut=4]]"}], stream=True
        ):
            text += chunk.choices[0].delta.content or ""
    assert text == "tok0 tok1 tok2 tok3 " and caught.value.code == "upstream_cut"
    once = sdk.with_options(max_retries=0)
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError) as early:
            once.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "[[status=400]]"}], stream=stream
            )
        assert early.value.status_code == 502 and early.value.code == "upstream_rejected"
