"""Coming back with the real openai-python: responses.retrieve(id, stream=True, starting_after=n) gives the rest of the
stream for every n, while the run goes on, after its end, and after a kill -9 and a restart (C3, G1, issue line 4)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.story.responses import PATH, finished
from tests.story.server import KEY, Client, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

TOOLS = 'write_file:{"path":"resume.txt","content":"hi"}|read_file:{"path":"resume.txt"}'
STORY = f"[[tools={TOOLS}]] [[reason=2]] [[text=The end of it.]]"
Event = dict[str, Any]


def sdk_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with sdk_of(server) as made:
        yield made


def events_of(stream: Any) -> list[Event]:
    return [event.model_dump(mode="json", exclude_unset=True) for event in stream]


def tail(sdk: openai.OpenAI, shown: str, after: int | None) -> list[Event]:
    """What the SDK gets from there on."""
    if after is None:
        return events_of(sdk.responses.retrieve(shown, stream=True))
    return events_of(sdk.responses.retrieve(shown, stream=True, starting_after=after))


def check_every_tail(sdk: openai.OpenAI, shown: str, whole: list[Event]) -> None:
    numbers = [event["sequence_number"] for event in whole]
    assert numbers == list(range(len(whole)))
    assert tail(sdk, shown, None) == whole
    for n in numbers:
        expected = whole[n + 1 :] or whole[-1:]  # at the end: the terminal event again (G5)
        assert tail(sdk, shown, n) == expected, n
    assert tail(sdk, shown, len(whole) + 5) == whole[-1:]


@pytest.mark.parametrize("style", ["mcp_call", "function_call"])
def test_c3_every_n_after_the_end(sdk: openai.OpenAI, style: str) -> None:
    headers = {"X-Tool-Items": style}
    made = sdk.responses.create(model="hermes-agent", input=STORY, stream=True, extra_headers=headers)
    whole = events_of(made)
    check_every_tail(sdk, whole[0]["response"]["id"], whole)


def test_c3_every_n_while_the_run_goes_on(sdk: openai.OpenAI, client: Client, upstream: Upstream, mark: str) -> None:
    """The upstream stops in the middle until every reader has come: each then gets the rest, live."""
    asked = f"{mark} [[reason=2]] [[tokens=12 errorframe=8 gate]]"
    made = sdk.responses.create(model="hermes-agent", input=asked, stream=True)
    seen: list[Event] = []
    for event in made:
        seen.append(event.model_dump(mode="json", exclude_unset=True))
        if event.type == "response.output_text.delta" and event.delta == "tok7 ":
            break
    shown = seen[0]["response"]["id"]
    numbers = [event["sequence_number"] for event in seen]
    with ThreadPoolExecutor(len(numbers) + 1) as readers:
        live = [readers.submit(tail, sdk, shown, n) for n in (None, *numbers)]
        wait_until(lambda: client.get("/health/detailed").json()["readers"] >= len(live), "all of them read")
        assert not any(reader.done() for reader in live), "the run waits for us"
        upstream.post("/_go")
        told = [reader.result(30) for reader in live]
    whole = told[0]
    assert whole[: len(seen)] == seen and whole[-1]["type"] == "response.failed"
    for n, rest in zip(numbers, told[1:], strict=True):
        assert rest == whole[n + 1 :], n
    check_every_tail(sdk, shown, whole)


def test_c3_every_n_after_kill_9_and_restart(tmp_path: Path, upstream: Upstream, mark: str) -> None:
    """What was told before the kill is the beginning of the replay; the rest comes once, and stays the same over
    another restart."""
    asked = f"{mark} [[tools={TOOLS}]] [[tokens=9 hang=4 at=2 times=1]]"
    first = start_server(tmp_path, upstream.url)
    with sdk_of(first) as sdk:
        seen = []
        for event in sdk.responses.create(model="hermes-agent", input=asked, stream=True):
            seen.append(event.model_dump(mode="json", exclude_unset=True))
            if event.type == "response.output_text.delta" and event.delta == "tok3 ":
                break
        first.process.child.kill()
        first.process.child.wait(10)
    shown = seen[0]["response"]["id"]
    second = start_server(tmp_path, upstream.url)
    with sdk_of(second) as sdk:
        tails = [tail(sdk, shown, event["sequence_number"]) for event in seen[-3:]]
        whole = tail(sdk, shown, None)
        assert whole[: len(seen)] == seen and whole[-1]["type"] == "response.completed"
        assert tails == [whole[event["sequence_number"] + 1 :] for event in seen[-3:]]
        check_every_tail(sdk, shown, whole)
    second.process.child.kill()
    second.process.child.wait(10)
    third = start_server(tmp_path, upstream.url)
    with sdk_of(third) as sdk:
        check_every_tail(sdk, shown, whole)
        assert finished(third.client, shown)["status"] == "completed"
        with third.client.stream(f"{PATH}/{shown}?stream=true") as stream:
            assert [frame.data for frame in stream.rest()] == whole
    assert third.stop() == 0
