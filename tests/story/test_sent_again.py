"""The same request once more, after its connection was lost: it goes on with the run of the first (B8, G13). A test
with a `house` has a server of its own, which may die; those with a `home` share one, which does not."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import openai
import pytest

from ninelives.dialects.messages.input import RESUME
from tests.story.chat import PATH, ask, check_whole, create, text_of, told
from tests.story.responses import SLOW, counted
from tests.story.server import KEY, Client, Json, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

RESPONSES, RUNS, MESSAGES = "/v1/responses", "/v1/runs", "/v1/messages"
DURABLE = {"NINELIVES_LIMITS_LEAVE_GRACE_S": "0.3"}
RETRY = {"x-stainless-retry-count": "1", "x-stainless-lang": "python"}
WEBUI = {"x-openwebui-chat-id": "chat-1"}
CLAUDE = {"user-agent": "claude-cli/2.1.326 (external, sdk-cli)"}
ONCE = '[[tools=terminal:{"command":"echo x >> once.txt"}]] [[hang=3 times=1 at=1]] [[tokens=20]]'
"""One tool, then a text that hangs after three tokens the first time."""
DONE = f"Step 0: calling terminal. {counted(20)}done after 1 results"


class House:
    """One server after another on one port and one data directory."""

    def __init__(self, where: Path, upstream: Upstream) -> None:
        self._where, self._upstream, self._settings = where, upstream, DURABLE
        self.server = start_server(where, upstream.url, **DURABLE)

    @property
    def client(self) -> Client:
        return self.server.client

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server = start_server(self._where, self._upstream.url, at=self.server.port, **self._settings)

    def runs(self) -> list[Json]:
        return list(self.client.get(f"{RUNS}?limit=100").json()["data"])

    def _count(self, what: str) -> int:
        """What the store says of those who wait."""
        with closing(sqlite3.connect(f"file:{self.server.data / 'ninelives.db'}?mode=ro", uri=True)) as db:
            return int(db.execute(f"SELECT COUNT(*) FROM runs WHERE {what}").fetchone()[0])

    def has_lost(self, chat: str) -> bool:
        """Is the connection of this chat noted as lost?"""
        return bool(self._count(f"lost_at > 0 AND id = '{chat.removeprefix('chatcmpl-')}'"))

    def lost(self, chat: str) -> None:
        """Wait until the server has seen that the connection of this chat is gone."""
        wait_until(lambda: self.has_lost(chat), "the loss is noted")

    def answered(self) -> None:
        """Wait until everything that was sent is noted as delivered."""
        wait_until(lambda: not self._count("waits = 1"), "the delivery is noted")

    def deeds(self) -> int:
        """How often the tool of ONCE ran."""
        return sum(len(path.read_text().split()) for path in self.server.data.rglob("once.txt"))


@pytest.fixture
def house(tmp_path: Path, upstream: Upstream) -> Iterator[House]:
    made = House(tmp_path, upstream)
    yield made
    made.kill()  # a run may hang: a stop would wait for it


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("home"), upstream)
    yield made
    made.kill()


def hanging(house: House, upstream: Upstream, mark: str, path: str, body: Json) -> None:
    """Send a request, wait until its text hangs, and kill the server."""
    with house.client.left_waiting(path, body):
        wait_until(lambda: len(upstream.asked(mark)) == 2, "the text is asked for")
        (run,) = house.runs()
        wait_until(lambda: "tok2" in _events(house.client, run["run_id"]), "the text hangs")
        house.kill()
    house.restart()


def _events(client: Client, run: str) -> str:
    with client.stream(f"{RUNS}/{run}/events") as stream:
        text = ""
        while "tok2" not in text:
            frame = stream.next()
            if frame is None:
                break
            text += frame.data.get("delta") or ""
    return text


# Durable chat for stock front ends (B8)


@pytest.mark.parametrize("streamed", [True, False])
def test_b8_after_a_kill_the_same_messages_get_the_whole_answer_of_the_same_run(
    house: House, upstream: Upstream, mark: str, streamed: bool
) -> None:
    body = ask(f"{mark} {ONCE}", stream=streamed)
    hanging(house, upstream, mark, PATH, body)
    if streamed:
        with house.client.stream(PATH, body) as stream:
            frames = stream.rest()
            assert stream.done, "it ends as if nothing had happened"
        shown, text = check_whole(frames), told(frames)
        assert [f.data["status"] for f in frames if f.name] == ["running", "completed"]
    else:
        made = create(house.client, f"{mark} {ONCE}", stream=False)
        shown, text = made["id"], text_of(made)
    (run,) = house.runs()
    assert (shown.removeprefix("chatcmpl-"), text) == (run["run_id"].removeprefix("run_"), DONE)
    assert house.deeds() == 1, "a finished tool does not run again"


def test_b8_when_the_network_was_lost_the_same_messages_go_on_live(home: House, upstream: Upstream, mark: str) -> None:
    body = ask(f"{mark} {SLOW}", stream=True)
    with home.client.stream(PATH, body) as stream:
        first = stream.take(6)[0].data["id"]
    home.lost(first)
    with home.client.stream(PATH, body) as stream:
        frames = stream.rest()
    assert check_whole(frames) == first and told(frames) == counted(40)
    assert len(upstream.asked(mark)) == 1, "who comes back within the grace interrupts nothing"


def test_b6_a_run_whose_caller_left_is_parked_and_goes_on_when_it_is_asked_for_again(
    home: House, upstream: Upstream, mark: str
) -> None:
    early, body = upstream.stats()["closed_early"], ask(f"{mark} {ONCE}", stream=True)
    with home.client.stream(PATH, body) as stream:
        first = stream.take(1)[0].data["id"]
        wait_until(lambda: "tok2" in _events(home.client, first), "the text hangs")
    wait_until(lambda: upstream.stats()["closed_early"] > early, "its model call is cut")
    run = f"{RUNS}/{first}"
    wait_until(lambda: home.client.get(run).json()["status"] == "queued", "it is parked")
    assert home.client.get(f"{PATH}/{first}").status == 404, "a chat that is not stored is shown as a run only"
    with home.client.stream(PATH, body) as stream:
        frames = stream.rest()
    assert check_whole(frames) == first and told(frames) == DONE
    assert len(upstream.asked(mark)) == 3, "one tool, one text that was cut, one that was not"


@pytest.mark.parametrize("streamed", [True, False])
def test_b8_regenerate_after_a_whole_answer_is_a_new_run(house: House, mark: str, streamed: bool) -> None:
    ids = set()
    for _ in range(3):
        if streamed:
            with house.client.stream(PATH, ask(mark, stream=True)) as stream:
                ids.add(check_whole(stream.rest()))
        else:
            ids.add(create(house.client, mark)["id"])
        house.answered()
    assert len(ids) == 3
    house.kill()
    house.restart()
    assert create(house.client, mark)["id"] not in ids, "nor does a restart bring an old answer back"


def test_b8_a_client_that_leaves_at_the_end_mark_had_the_whole_answer(home: House, mark: str) -> None:
    ids = set()
    for _ in range(20):
        with home.client.stream(PATH, ask(mark, stream=True)) as stream:
            frames = stream.until("[DONE]")
        ids.add(frames[0].data["id"])
        home.answered()
    assert len(ids) == 20 and not any(map(home.has_lost, ids))


def test_b8_an_answer_that_ended_in_the_meantime_is_given_at_once_and_only_once(home: House, mark: str) -> None:
    body, headers = ask(f"{mark} [[tokens=40 pace=0.05]]", stream=True), {"x-on-disconnect": "detach"}
    with home.client.stream(PATH, body, headers) as stream:
        first = stream.take(6)[0].data["id"]
    home.lost(first)
    wait_until(lambda: home.client.get(f"{RUNS}/{first}").json()["status"] == "completed", "it ends without a reader")
    with home.client.stream(PATH, body) as stream:
        frames = stream.rest()
    assert check_whole(frames) == first and told(frames) == counted(40)
    home.answered()
    with home.client.stream(PATH, body) as stream:
        assert check_whole(stream.rest()) != first


def test_b6_a_detached_run_goes_on_beyond_the_next_beat_of_the_lease(home: House, mark: str) -> None:
    body, headers = ask(f"{mark} [[tokens=60 pace=0.1]]", stream=True), {"x-on-disconnect": "detach"}
    with home.client.stream(PATH, body, headers) as stream:
        first = stream.take(6)[0].data["id"]
    home.lost(first)
    wait_until(lambda: home.client.get(f"{RUNS}/{first}").json()["status"] == "completed", "it ends without a reader")


def test_b6_a_death_of_the_server_is_no_leave(house: House, mark: str) -> None:
    """A beat of the lease comes every 5 seconds. A run that lost its server goes on beyond it."""
    with house.client.stream(PATH, ask(f"{mark} [[tokens=60 pace=0.1]]", stream=True)) as stream:
        first = stream.take(6)[0].data["id"]
        house.kill()
    house.restart()
    wait_until(lambda: house.client.get(f"{RUNS}/{first}").json()["status"] == "completed", "it goes on by itself")


def test_b8_a_run_that_its_stop_button_cancelled_is_not_gone_on_with(
    home: House, upstream: Upstream, mark: str
) -> None:
    body = ask(f"{mark} [[hang=3 times=1]] [[tokens=5]]", stream=True)
    with home.client.stream(PATH, body, WEBUI) as stream:
        first = stream.take(3)[0].data["id"]
    wait_until(lambda: home.client.get(f"{RUNS}/{first}").json()["status"] == "cancelled", "stop means stop (C4)")
    with home.client.stream(PATH, body, WEBUI) as stream:
        frames = stream.rest()
    assert check_whole(frames) != first and told(frames) == counted(5)


def test_b8_another_chat_with_the_same_words_is_another_run(home: House, mark: str) -> None:
    body = ask(f"{mark} {SLOW}", stream=True)
    with home.client.stream(PATH, body, {**WEBUI, "x-on-disconnect": "detach"}) as stream:
        first = stream.take(6)[0].data["id"]
    home.lost(first)
    with home.client.stream(PATH, body, {"x-openwebui-chat-id": "chat-2"}) as stream:
        assert check_whole(stream.rest()) != first


@pytest.mark.parametrize("fields", [{"store": True}, {"store": False}, {"temperature": 0.5}])
def test_b8_only_the_same_request_that_leaves_store_to_the_server_is_gone_on_with(
    home: House, mark: str, fields: Json
) -> None:
    body = ask(f"{mark} {SLOW}", stream=True)
    with home.client.stream(PATH, body) as stream:
        first = stream.take(6)[0].data["id"]
    home.lost(first)
    with home.client.stream(PATH, {**body, **fields}) as stream:
        assert check_whole(stream.rest()) != first


def test_b8_a_failed_run_is_not_gone_on_with(home: House, mark: str) -> None:
    body, headers = ask(f"{mark} [[cut=3 times=9]]", stream=True), {"x-on-disconnect": "detach"}
    with home.client.stream(PATH, body, headers) as stream:
        first = stream.take(2)[0].data["id"]
    wait_until(lambda: home.client.get(f"{RUNS}/{first}").json()["status"] == "failed", "it fails without a reader")
    with home.client.stream(PATH, body) as stream:
        assert stream.rest()[0].data["id"] != first


def test_b8_messages_that_broke_off_go_on_when_they_are_sent_again(house: House, upstream: Upstream, mark: str) -> None:
    body = {**ask(f"{mark} {ONCE}"), "max_tokens": 2000, "stream": True}
    hanging(house, upstream, mark, MESSAGES, body)
    with house.client.stream(MESSAGES, body) as stream:
        frames = stream.rest()
    assert frames[0].name == "message_start" and frames[-1].name == "message_stop"
    (run,) = house.runs()
    assert _id_of(frames[0].data["message"]) == _id_of(run) and house.deeds() == 1
    house.answered()
    again = house.client.post(MESSAGES, {**body, "stream": False}).json()
    assert _id_of(again) != _id_of(run), "an answer that was delivered is not given twice"


@pytest.mark.parametrize("stream", [True, False])
def test_b8_who_sends_the_beginning_back_and_asks_to_resume_gets_the_rest_of_the_same_run(
    house: House, upstream: Upstream, mark: str, stream: bool
) -> None:
    """Claude Code does so after a broken answer. It also moves its marks for caching, and turns blocks into text."""
    first, second = (f'terminal:{{"command":"echo {word} >> once.txt"}}' for word in ("one", "two"))
    text = f"{mark} [[tools={first}|{second}]] [[hang=2 times=1 at=1]]"
    cached = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    body = {**ask([cached]), "max_tokens": 2000, "stream": True}
    got: list[Json] = []
    with house.client.stream(MESSAGES, body, CLAUDE) as broken:
        while not got or got[-1]["type"] != "mcp_tool_result":
            frame = broken.next()
            assert frame is not None
            if frame.name == "content_block_start":
                got.append(frame.data["content_block"])
            elif frame.name == "content_block_delta" and "text" in frame.data["delta"]:
                got[-1]["text"] += frame.data["delta"]["text"]
        wait_until(lambda: len(upstream.asked(mark)) == 2, "the second call is asked for")
        house.kill()
    house.restart()
    resume = {"role": "user", "content": f"{RESUME} — no apology, no recap."}
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": got}, resume]
    again = {**body, "messages": messages, "stream": stream}
    if stream:
        with house.client.stream(MESSAGES, again, CLAUDE) as rest:
            blocks = [frame.data["content_block"] for frame in rest.rest() if frame.name == "content_block_start"]
        assert {block.get("id") or block.get("tool_use_id") for block in blocks}.isdisjoint(
            {block["id"] for block in got if "id" in block}
        ), "what the caller has is not shown again"
        assert [block["type"] for block in blocks] == ["text", "mcp_tool_use", "mcp_tool_result", "text"]
    else:
        assert house.client.post(MESSAGES, again, CLAUDE).json()["content"][-1]["text"].endswith("done after 2 results")
    (run,) = house.runs()
    assert run["status"] == "completed" and house.deeds() == 2, "one run, each tool once"


def test_b8_a_new_question_after_a_broken_answer_is_a_new_run(house: House, upstream: Upstream, mark: str) -> None:
    body = {**ask(f"{mark} {ONCE}"), "max_tokens": 2000, "stream": True}
    hanging(house, upstream, mark, MESSAGES, body)
    words = [*body["messages"], {"role": "assistant", "content": "Step 0"}, {"role": "user", "content": "never mind"}]
    assert house.client.post(MESSAGES, {**body, "messages": words, "stream": False}).status == 200
    assert len(house.runs()) == 2


def test_b6_a_reader_of_the_runs_api_who_leaves_is_not_the_caller(
    tmp_path: Path, upstream: Upstream, mark: str
) -> None:
    """The caller got the question and is gone; whoever watches the run after that may come and go."""
    hasty = {"NINELIVES_LIMITS_LEAVE_GRACE_S": "0", "NINELIVES_TOOLS_APPROVAL": "always"}
    server = start_server(tmp_path, upstream.url, **hasty)
    try:
        client = server.client
        assert client.post(PATH, ask(f"{mark} [[tools=todo:{{}}]] [[tokens=40 pace=0.05]]")).status == 200
        (run,) = (row["run_id"] for row in client.get(RUNS).json()["data"])
        assert client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 200
        with client.stream(f"{RUNS}/{run}/events") as stream:
            while "tok1" not in (stream.take(1)[0].data.get("delta") or ""):
                pass
        wait_until(lambda: client.get(f"{RUNS}/{run}").json()["status"] == "completed", "it goes on", 60)
    finally:
        assert server.stop() == 0


# Retries of SDKs (G13)


def _id_of(answer: Json) -> str:
    return re.sub(r"^(run_|resp_|chatcmpl-|msg_)", "", answer.get("run_id") or answer["id"])


CREATES: list[tuple[str, Callable[[str], Json]]] = [
    (RESPONSES, lambda text: {"input": text}),
    (RESPONSES, lambda text: {"input": text, "conversation": "talk"}),
    (PATH, lambda text: ask(text, store=True)),
    (MESSAGES, lambda text: {**ask(text), "max_tokens": 2000}),
    (RUNS, lambda text: {"input": text}),
]
NAMES = ["responses", "conversation", "chat", "messages", "runs"]


@pytest.mark.parametrize(("path", "make"), CREATES[:4], ids=NAMES[:4])
def test_g13_a_retry_after_a_kill_attaches_to_the_run_of_the_first_try(
    house: House, upstream: Upstream, mark: str, path: str, make: Callable[[str], Json]
) -> None:
    body = make(f"{mark} {ONCE}")
    hanging(house, upstream, mark, path, body)
    made = house.client.post(path, body, RETRY)
    assert made.status == 200, made.body
    (run,) = house.runs()
    assert _id_of(made.json()) == _id_of(run)
    assert house.client.get(f"{RUNS}/{run['run_id']}").json()["status"] == "completed" and house.deeds() == 1


def test_g13_a_streamed_retry_begins_at_the_first_event(house: House, upstream: Upstream, mark: str) -> None:
    body = {"input": f"{mark} {ONCE}", "stream": True}
    hanging(house, upstream, mark, RESPONSES, body)
    with house.client.stream(RESPONSES, body, RETRY) as stream:
        frames = stream.rest()
    assert frames[0].name == "response.created" and frames[-1].name == "response.completed"
    assert [frame.number for frame in frames] == list(range(len(frames))), "no snapshot: an SDK reads this"
    assert len(house.runs()) == 1


@pytest.mark.parametrize("store", [None, True, False])
@pytest.mark.parametrize("path", [RESPONSES, PATH])
def test_b8_after_a_kill_the_same_request_joins_whatever_store_says(
    house: House, upstream: Upstream, mark: str, path: str, store: bool | None
) -> None:
    """Codex and pi send store: false and no count; their tools must not run twice."""
    text = f"{mark} {ONCE}"
    body = {**({"input": text} if path == RESPONSES else ask(text)), **({} if store is None else {"store": store})}
    hanging(house, upstream, mark, path, body)
    if store is False:
        assert house.runs()[0]["status"] in ("running", "queued") and len(upstream.asked(mark)) == 2
    made = house.client.post(path, body)
    assert made.status == 200, made.body
    (run,) = house.runs()
    assert _id_of(made.json()) == _id_of(run) and house.deeds() == 1


def test_b8_after_a_kill_the_same_request_joins_with_what_its_caller_got_whole(
    house: House, upstream: Upstream, mark: str
) -> None:
    """Codex sends the items of the broken answer along."""
    asked = [{"role": "user", "content": f"{mark} {ONCE}"}]
    body = {"input": asked, "store": False, "stream": True}
    with house.client.stream(RESPONSES, body) as stream:
        got = stream.until("response.output_item.done")[-1].data["item"]
        wait_until(lambda: len(upstream.asked(mark)) == 2, "the text is asked for")
        house.kill()
    house.restart()
    with house.client.stream(RESPONSES, {**body, "input": [*asked, got]}) as stream:
        frames = stream.rest()
    assert frames[-1].name == "response.completed" and house.deeds() == 1
    assert frames[-1].data["response"]["output"][0]["id"] == got["id"], "the same run"
    assert len(upstream.asked(mark)) == 3, "one tool, one text that was cut, one that was not"


@pytest.mark.parametrize("header", ["x-openwebui-user-id", "x-openwebui-chat-id", "x-end-user-id", "x-hermes-user-id"])
def test_b8_somebody_else_behind_the_same_key_never_gets_the_run(
    house: House, upstream: Upstream, mark: str, header: str
) -> None:
    body = ask(f"{mark} {ONCE}")
    with house.client.left_waiting(PATH, body, {header: "ann"}):
        wait_until(lambda: len(upstream.asked(mark)) == 2, "the text is asked for")
        house.kill()
    house.restart()
    (first,) = house.runs()
    for headers in ({header: "bob"}, {}):
        made = house.client.post(PATH, body, headers)
        assert made.status == 200 and _id_of(made.json()) != _id_of(first)


@pytest.mark.parametrize(("path", "make"), CREATES, ids=NAMES)
def test_g13_a_retry_of_an_answered_request_is_a_new_run(
    home: House, mark: str, path: str, make: Callable[[str], Json]
) -> None:
    first = home.client.post(path, make(mark)).json()
    home.answered()
    wait_until(lambda: home.server.health()["runs"]["active"] == 0, "it ends")
    second = home.client.post(path, make(mark), RETRY).json()
    assert _id_of(first) != _id_of(second)


def test_g13_a_retry_while_the_first_connection_is_there_is_a_new_run(
    house: House, upstream: Upstream, mark: str
) -> None:
    body = {"input": f"{mark} [[hang=3 times=1]] [[tokens=5]]"}
    with house.client.left_waiting(RESPONSES, body):
        wait_until(lambda: upstream.asked(mark), "the first is at work")
        assert house.client.post(RESPONSES, body, RETRY).status == 200
        assert len(house.runs()) == 2


def test_g13_the_openai_sdk_gets_over_a_kill_by_itself(house: House, upstream: Upstream, mark: str) -> None:
    with (
        openai.OpenAI(base_url=f"{house.server.url}/v1", api_key=KEY, max_retries=20) as sdk,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(lambda: sdk.responses.create(model="hermes-agent", input=f"{mark} {ONCE}"))
        wait_until(lambda: len(upstream.asked(mark)) == 2, "the text is asked for")
        house.kill()
        house.restart()
        made = waiting.result(60)
    (run,) = house.runs()
    assert made.status == "completed" and made.output_text.endswith("done after 1 results")
    assert _id_of(run) == made.id.removeprefix("resp_") and house.deeds() == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_g13_the_openai_sdk_gets_over_a_restart_by_itself(
    house: House, upstream: Upstream, mark: str, streamed: bool
) -> None:
    text = f"{mark} [[slowstart=30 times=1]] [[tokens=5]]"
    asked = {"model": "hermes-agent", "messages": [{"role": "user", "content": text}], "store": True}

    def call(sdk: openai.OpenAI) -> str:
        if not streamed:
            return sdk.chat.completions.create(**asked).choices[0].message.content or ""
        chunks = list(sdk.chat.completions.create(**asked, stream=True))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with (
        openai.OpenAI(base_url=f"{house.server.url}/v1", api_key=KEY, max_retries=20) as sdk,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(call, sdk)
        wait_until(lambda: upstream.asked(mark), "the upstream is asked")
        house.server.process.child.terminate()
        assert house.server.process.child.wait(30) == 0
        house.restart()
        assert waiting.result(60) == counted(5)
    assert len(house.runs()) == 1


def test_the_deed_counter_of_this_file_would_see_a_tool_that_ran_twice(house: House, mark: str) -> None:
    for _ in range(2):
        create(house.client, f"{mark} {ONCE.split(' [[hang')[0]}", store=True)
    assert house.deeds() == 2
