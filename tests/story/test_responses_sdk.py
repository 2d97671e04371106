"""The rest of openai-python's responses resource against the real server: counting, compacting, parsing, refusals,
listing, cancelling, deleting (C8)."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel

from tests.story.responses import HANGS
from tests.story.server import KEY, Server, Upstream

pytestmark = pytest.mark.xdist_group("processes")
MODEL = "hermes-agent"


class City(BaseModel):
    """What a structured answer looks like."""

    name: str
    rainy: bool


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_input_tokens_count(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model=MODEL, input="one")
    alone = sdk.responses.input_tokens.count(model=MODEL, input="two")
    follows = sdk.responses.input_tokens.count(model=MODEL, input="two", previous_response_id=first.id)
    assert alone.object == "response.input_tokens" and 0 < alone.input_tokens < follows.input_tokens


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the SDK's type has no messages of the user's here
def test_compact_and_its_output_as_the_next_input(sdk: openai.OpenAI, upstream: Upstream, mark: str) -> None:
    first = sdk.responses.create(model=MODEL, input=f"one {mark}")
    compacted = sdk.responses.compact(model=MODEL, previous_response_id=first.id)
    assert compacted.object == "response.compaction" and compacted.usage.output_tokens > 0
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    made = sdk.responses.create(
        model=MODEL,
        input=[*compacted.output, {"role": "user", "content": f"two {mark}"}],  # type: ignore[list-item]
    )
    assert made.status == "completed"
    said = [message["content"] for message in upstream.asked(f"two {mark}")[-1]["messages"][1:]]
    assert said[0] == f"one {mark}" and said[1].startswith("[Summary of") and said[2] == f"two {mark}"


def test_parse_gives_the_model_of_a_json_schema(sdk: openai.OpenAI, upstream: Upstream, mark: str) -> None:
    asked = f'{mark} [[text={{"name":"Rome","rainy":false}}]]'
    made = sdk.responses.parse(model=MODEL, input=asked, text_format=City)
    assert made.output_parsed == City(name="Rome", rainy=False)
    sent = upstream.asked(mark)[-1]["response_format"]
    assert sent["type"] == "json_schema" and sent["json_schema"]["name"] == "City" and sent["json_schema"]["strict"]


def test_a_refusal_is_no_text_and_nothing_parsed(sdk: openai.OpenAI) -> None:
    asked = "[[refuse]] [[text=I will not.]]"
    made = sdk.responses.parse(model=MODEL, input=asked, text_format=City)
    assert made.output_parsed is None and made.output_text == ""
    assert made.output[0].content[0].refusal == "I will not."  # type: ignore[union-attr]
    with sdk.responses.stream(model=MODEL, input=asked) as stream:
        told = "".join(event.delta for event in stream if event.type == "response.refusal.delta")
        assert told == stream.get_final_response().output[0].content[0].refusal  # type: ignore[union-attr]


def test_a_turn_by_hand_with_the_output_of_the_one_before(sdk: openai.OpenAI, upstream: Upstream, mark: str) -> None:
    """The SDK's own way without a chain: the output items go back as they came."""
    asked = {"role": "user", "content": f'one {mark} [[tools=read_file:{{"path":"no.txt"}}]] [[text=Nothing.]]'}
    first = sdk.responses.create(model=MODEL, input=[asked], store=False)  # type: ignore[list-item]
    turn = [asked, *first.output, {"role": "user", "content": f"two {mark}"}]
    assert sdk.responses.create(model=MODEL, input=turn).status == "completed"  # type: ignore[arg-type]
    roles = [message["role"] for message in upstream.asked(f"two {mark}")[-1]["messages"][1:]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_background_cancel_items_and_delete(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(model=MODEL, input=HANGS, background=True, include=["reasoning.encrypted_content"])
    assert made.status in ("queued", "in_progress")
    assert sdk.responses.cancel(made.id).status == "cancelled"
    assert sdk.responses.retrieve(made.id, include=["message.output_text.logprobs"]).status == "cancelled"
    assert [item.type for item in sdk.responses.input_items.list(made.id, limit=1)] == ["message"]
    sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as gone:
        sdk.responses.retrieve(made.id)
    assert gone.value.code == "response_not_found"
