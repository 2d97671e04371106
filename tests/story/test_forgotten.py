"""Forgotten means gone (B6): a minute after its delivery, the server still running, a run with store: false has left no
word of its input, output, tool arguments and tool output in any file of the data directory, nor in the log.

All cases of a server are told at once, each with words of its own, and then looked for together. The quick server has
shorter pauses (hurried.py); the tests marked `long` tell the same to the server as it is, and give it its minute."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests import pg
from tests.story.chat import ask
from tests.story.server import Client, Json, Server, Upstream, start_server, wait_until
from tests.story.traces import blobs, in_files, in_postgres, in_rows

pytestmark = pytest.mark.xdist_group("processes")

CHAT, RESPONSES, RUNS = "/v1/chat/completions", "/v1/responses", "/v1/runs"
HURRIED, ITSELF = "tests.story.hurried", "ninelives"
SETTINGS = {"NINELIVES_LIMITS_LEAVE_GRACE_S": "0.3"}
ASKS = {**SETTINGS, "NINELIVES_TOOLS_APPROVAL": "on-write"}
WINDOW_S = 4
"""Of those that do not come back. Others have 15 minutes, so that nothing is gone because its window was over."""
MINUTE, LONGEST = 60.0, 90.0
_numbers = count(1)


class Words:
    """The words of one case. None is in anything else that is told."""

    def __init__(self) -> None:
        self.name = f"{next(_numbers)}x{time.monotonic_ns() % 10**9}"
        self.said, self.answer, self.argument = (f"{animal}{self.name}z" for animal in ("Wombat", "Numbat", "Bilby"))
        self.output = f"Quoll{self.name}z"
        """It is printed in two parts: no argument has it."""
        self.blobs: list[bytes] = []
        """Segments of the run as they were on disk."""
        self.files: list[str] = []
        """Files that a tool was asked to write."""

    def all(self) -> list[bytes]:
        packed = [part for blob in self.blobs for part in (blob[:40], blob[-40:])]
        return [word.encode() for word in (self.said, self.answer, self.argument, self.output)] + packed

    def text(self, *calls: str, then: str = "") -> str:
        tools = f"[[tools={'|'.join(calls)}]] " if calls else ""
        return f"{self.said} {tools}{then}[[text={self.answer}]]"

    def shell(self, command: str = "") -> str:
        """A call that is given one word and prints another."""
        said = f"printf 'Quo%s' 'll{self.name}z'; : {self.argument}; {command}"
        return f"terminal:{json.dumps({'command': said})}"


@dataclass
class Home:
    """One server after another on one port and one data directory."""

    where: Path
    upstream: Upstream
    program: str
    settings: dict[str, str]
    server: Server = field(init=False)
    port: int = 0

    def __post_init__(self) -> None:
        self.restart()
        self.port = self.server.port

    @property
    def client(self) -> Client:
        return self.server.client

    @property
    def database(self) -> Path:
        return self.server.data / "ninelives.db"

    def restart(self) -> None:
        self.server = start_server(self.where, self.upstream.url, at=self.port, program=self.program, **self.settings)

    def kill(self) -> None:
        self.server.kill()

    def traces(self, words: Words) -> list[str]:
        """Where words are found now. `where` has the data directory, the log and all that was printed."""
        return in_files(self.where, words.all(), words.files) or in_rows(self.database, words.all()[:4])

    def packed(self, run: str) -> list[bytes]:
        """The segments of a run that was parked."""
        return list(wait_until(lambda: blobs(self.database, run.removeprefix("run_")), "it is packed"))

    def run(self, shown: str) -> Json:
        """A run as its owner sees it."""
        answer = self.client.get(f"{RUNS}/{shown}")
        assert answer.status == 200, answer.body
        return dict(answer.json())

    def asking(self, words: Words) -> list[str]:
        """The runs that ask a person and have these words."""
        waiting = self.client.get(f"{RUNS}?limit=100&status=waiting_for_approval").json()["data"]
        found = [run["run_id"] for run in waiting]
        return [run for run in found if words.argument in self._question(run)]

    def _question(self, run: str) -> str:
        with self.client.stream(f"{RUNS}/{run}/events") as stream:
            told = []
            while not told or told[-1]["event"] not in ("approval.request", "run.completed"):
                told.append(stream.take(1)[0].data)
        return json.dumps(told)


Case = Callable[[Home, Words], None]


def whole(home: Home, path: str, body: Json, headers: dict[str, str] | None = None, *, fails: bool = False) -> str:
    """Ask, streamed or not as the body says, and read everything: the answer as text."""
    if not body.get("stream"):
        made = home.client.post(path, body, headers)
        assert (made.status == 200) is not fails or path == RESPONSES, made.body
        return made.body.decode()
    with home.client.stream(path, body, headers) as stream:
        text = json.dumps([frame.data for frame in stream.rest()])
        assert stream.ended == "whole"
    return text


def says(text: str, path: str, **fields: Any) -> Json:
    """The same request of either API, never stored."""
    return {"store": False, **(ask(text) if path == CHAT else {"input": text}), **fields}


def plain(path: str, *, stream: bool) -> Case:
    def case(home: Home, w: Words) -> None:
        assert w.answer in whole(home, path, says(w.text(), path, stream=stream))

    return case


def with_tools(path: str, *, stream: bool) -> Case:
    def case(home: Home, w: Words) -> None:
        assert w.answer in whole(home, path, says(w.text(w.shell(), w.shell("cd /")), path, stream=stream))
        told = [m for request in home.upstream.asked(w.name) for m in request["messages"] if m["role"] == "tool"]
        assert w.output in json.dumps(told), "the tool ran"

    return case


def long_output(home: Home, w: Words) -> None:
    """Longer than the model is shown: the whole is a file in the workspace while the run lasts."""
    text = w.text(w.shell("seq 20000"), "todo:{}", then="[[slowstart=1 times=1 at=2]] ")
    with home.client.stream(CHAT, says(text, CHAT, stream=True)) as stream:
        wait_until(lambda: [f for f in in_files(home.server.data, w.all()) if "outputs" in f], "it is laid down")
        assert w.answer in json.dumps([frame.data for frame in stream.rest()])


def python(home: Home, w: Words) -> None:
    code = f"print('Quo' + 'll{w.name}z', '{w.argument}'[:0])"
    assert w.answer in whole(home, CHAT, says(w.text(f"execute_code:{json.dumps({'code': code})}"), CHAT))


def background(home: Home, w: Words) -> None:
    command = f"printf 'Quo%s' 'll{w.name}z'; : {w.argument}; sleep 600"
    start = f"process:{json.dumps({'action': 'start', 'command': command})}"
    assert w.answer in whole(home, CHAT, says(w.text(start, 'process:{"action":"list"}'), CHAT))


def shell_state(home: Home, w: Words) -> None:
    """What a shell keeps for its next command is kept as long as the run."""
    session = {"x-hermes-session-id": f"shell-{w.name[:3]}"}
    first, then = w.shell(f"export KEPT={w.argument}; mkdir -p a/b; cd a/b"), w.shell('echo "$KEPT" in "$PWD"')
    assert w.answer in whole(home, CHAT, says(w.text(first, then), CHAT), session)
    told = json.dumps(home.upstream.asked(w.name)[-1]["messages"])
    assert re.search(rf"{w.argument} in \S*/a/b", told), "the second command of the run goes on where the first ended"
    other = Words()
    whole(home, CHAT, ask(other.text(other.shell('echo "kept:$KEPT:" in "$PWD"')), store=True), session)
    told = json.dumps(home.upstream.asked(other.name)[-1]["messages"])
    assert "kept::" in told and "/a/b" not in told, "the session is as it was (D2)"


def written_file(home: Home, w: Words) -> None:
    """A file that a tool was asked to write stays, and nothing else does."""
    name = "asked-for.txt"
    w.files.append(name)
    call = f"write_file:{json.dumps({'path': name, 'content': w.argument})}"
    assert w.answer in whole(home, CHAT, says(w.text(call, w.shell()), CHAT))


def in_session(home: Home, w: Words) -> None:
    """It reads the session, and changes nothing (D2)."""
    session = {"x-hermes-session-id": f"talk-{w.name[:3]}"}
    before = Words()
    whole(home, CHAT, ask(before.text(), store=True), session)
    path = f"/api/sessions/{session['x-hermes-session-id']}/messages"
    shown = home.client.get(path).body
    assert w.answer in whole(home, CHAT, says(w.text(w.shell()), CHAT), session)
    assert before.said in json.dumps(home.upstream.asked(w.name)[0]["messages"]), "the history is there"
    assert home.client.get(path).body == shown


def in_conversation(home: Home, w: Words) -> None:
    name = f"conv-{w.name[:3]}"
    before = Words()
    first = json.loads(whole(home, RESPONSES, {"input": before.text(), "conversation": name}))
    for more in ({"conversation": name}, {"previous_response_id": first["id"]}, {"conversation": f"new-{name}"}):
        assert w.answer in whole(home, RESPONSES, says(w.text(), RESPONSES, **more))


def everywhere(home: Home, w: Words) -> None:
    """In all fields that take a text."""
    more = {"metadata": {"topic": w.said}, "user": w.argument, "instructions": w.output, "safety_identifier": w.said}
    assert w.answer in whole(home, RESPONSES, says(w.text(), RESPONSES, **more))
    fields = {"metadata": {"topic": w.said}, "user": w.argument, "stop": [w.output]}
    assert w.answer in whole(home, CHAT, says(w.text(), CHAT, **fields))


def failed(home: Home, w: Words) -> None:
    """The upstream fails for good, after a tool; and at once, quoting what it was sent."""
    for path in (CHAT, RESPONSES):
        for fault in ("[[status=500 times=99 at=1 leak]] ", "[[cut=3 times=99 at=1]] "):
            whole(home, path, says(w.text(w.shell(), then=fault), path), fails=True)


def odd_calls(home: Home, w: Words) -> None:
    """Calls that are refused: their arguments may not go to the log either."""
    for call in (f'no_such_{w.argument}:{{"a":"{w.said}"}}', f'read_file:{{"path":"{w.argument}"}}', "terminal:{}"):
        assert w.answer in whole(home, CHAT, says(w.text(call), CHAT))
    whole(home, CHAT, says(f"{w.said} [[badargs]]", CHAT))


def stopped(home: Home, w: Words) -> None:
    """Cancelled over /v1/runs while a tool is at work."""
    with home.client.stream(CHAT, says(w.text(w.shell("sleep 600")), CHAT, stream=True)) as stream:
        run = stream.take(1)[0].data["id"]
        wait_until(lambda: "terminal" in home.client.get(f"{RUNS}/{run}/receipt").body.decode(), "the tool is at work")
        assert home.client.post(f"{RUNS}/{run}/stop").status == 200
        stream.rest()


def left(home: Home, w: Words) -> None:
    """By a client whose stop button is to hang up (C4)."""
    body = says(w.text(w.shell("sleep 600")), CHAT, stream=True)
    with home.client.stream(CHAT, body, {"x-on-disconnect": "cancel"}) as stream:
        run = stream.take(1)[0].data["id"]
        wait_until(lambda: "terminal" in home.client.get(f"{RUNS}/{run}/receipt").body.decode(), "the tool is at work")


def hung(home: Home, w: Words, **fields: Any) -> tuple[Json, str]:
    """One tool, then a text that hangs. Its caller leaves: the body and the run."""
    body = says(w.text(w.shell(), then="[[hang=1 times=1 at=1]] "), CHAT, stream=True, **fields)
    with home.client.stream(CHAT, body) as stream:
        run = stream.take(1)[0].data["id"]
        wait_until(lambda: len(home.upstream.asked(w.name)) == 2, "the text is asked for")
    return body, run


def never_asked_again(home: Home, w: Words) -> None:
    """Its caller left and does not come back: forgotten when the window is over."""
    hung(home, w, user="ann")


def asked_again(home: Home, w: Words) -> None:
    """Its caller left and comes back: forgotten when that answer is delivered."""
    body, run = hung(home, w)
    wait_until(lambda: home.run(run)["status"] == "queued", "it is parked")
    assert w.answer in whole(home, CHAT, body)
    assert len([m for m in home.upstream.asked(w.name)[-1]["messages"] if m["role"] == "tool"]) == 1


CASES: dict[str, Case] = {
    **{
        f"{kind} {path} {'streamed' if stream else 'whole'}": make(path, stream=stream)
        for kind, make in (("plain", plain), ("tools", with_tools))
        for path in (CHAT, RESPONSES)
        for stream in (True, False)
    },
    "long output": long_output,
    "python": python,
    "background process": background,
    "shell state": shell_state,
    "written file": written_file,
    "session": in_session,
    "conversation": in_conversation,
    "everywhere": everywhere,
    "failed": failed,
    "odd calls": odd_calls,
    "stopped": stopped,
    "left": left,
    "never asked again": never_asked_again,
    "asked again": asked_again,
}


def question(home: Home, w: Words, **fields: Any) -> tuple[Json, str, str]:
    """Ask for a call that a person must allow: the body, the question and its code. The words are on disk now."""
    body = says(w.text(w.shell()), CHAT, **fields)
    text = whole(home, CHAT, body)
    code = re.search(r"approve ([A-Z0-9]+)", text)
    assert code, text
    (run,) = home.asking(w)
    w.blobs = home.packed(run)
    assert home.traces(w), "it is there until it is answered"
    return body, json.loads(text)["choices"][0]["message"]["content"], code[1]


def approved_in_chat(*, stream: bool) -> Case:
    def case(home: Home, w: Words) -> None:
        body, text, code = question(home, w)
        messages = [*body["messages"], {"role": "assistant", "content": text}]
        reply = {**body, "messages": [*messages, {"role": "user", "content": f"approve {code}"}], "stream": stream}
        assert w.answer in whole(home, CHAT, reply)

    return case


def denied_in_chat(home: Home, w: Words) -> None:
    body, text, code = question(home, w)
    messages = [*body["messages"], {"role": "assistant", "content": text}, {"role": "user", "content": f"deny {code}"}]
    assert w.answer in whole(home, CHAT, {**body, "messages": messages})


def approved_by_route(home: Home, w: Words) -> None:
    """With nobody connected: it goes on, and its answer waits for the window."""
    question(home, w, user="ann")
    (run,) = home.asking(w)
    assert home.client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 200
    wait_until(lambda: home.run(run)["status"] == "completed", "it is carried out")
    chat = run.replace("run_", "chatcmpl-")
    assert w.answer in json.dumps(home.run(run)) and home.client.get(f"{CHAT}/{chat}").status == 404


def approved_for_one_who_waits(home: Home, w: Words) -> None:
    """On Responses the caller waits for the person (G11)."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(whole, home, RESPONSES, says(w.text(w.shell()), RESPONSES))
        (run,) = wait_until(lambda: home.asking(w), "the question")
        assert home.client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 200
        assert w.answer in waiting.result(60)


QUESTIONS: dict[str, Case] = {
    "approved in chat": approved_in_chat(stream=False),
    "approved in chat, streamed": approved_in_chat(stream=True),
    "denied in chat": denied_in_chat,
    "approved over /v1/runs": approved_by_route,
    "approved for one who waits": approved_for_one_who_waits,
}


@dataclass
class Told:
    """A server to which all cases were told."""

    home: Home
    words: dict[str, Words]
    troubles: dict[str, BaseException]
    before: dict[str, bytes]
    within: float
    since: float

    def check(self, case: str) -> None:
        """Its words are gone within the time that there is."""
        if case in self.troubles:
            raise self.troubles[case]
        words, left = self.words[case], self.within - (time.monotonic() - self.since)
        try:
            wait_until(lambda: not self.home.traces(words), f"{case}: gone", max(left, 0.1), every=0.2)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.home.traces(words)}") from None


def tell(home: Home, cases: dict[str, Case], within: float) -> Told:
    """Tell all cases to a server, with stored runs before and during them."""
    stored: dict[str, bytes] = {}

    def keep(name: str) -> None:
        made = home.client.post(RESPONSES, {"input": f"{name} [[tools=todo:{{}}]] [[tokens=200]]"}).json()
        stored[made["id"]] = home.client.get(f"{RESPONSES}/{made['id']}").body

    keep("before")
    words, troubles = {name: Words() for name in cases}, {}

    def do(name: str) -> None:
        try:
            cases[name](home, words[name])
        except BaseException as error:
            troubles[name] = error

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(do, name) for name in cases]
        keep("during")
        for job in jobs:
            job.result()
    return Told(home, words, troubles, stored, within, time.monotonic())


PACES = ["quick", pytest.param("itself", marks=pytest.mark.long)]


def all_told(where: Path, upstream: Upstream, pace: str, settings: dict[str, str], cases: dict[str, Case]) -> Told:
    windows = {"NINELIVES_AGENT_RESEND_ANONYMOUS_S": "900", "NINELIVES_AGENT_RESEND_WINDOW_S": str(WINDOW_S)}
    home = Home(where, upstream, HURRIED if pace == "quick" else ITSELF, {**settings, **windows})
    return tell(home, cases, LONGEST if pace == "quick" else MINUTE)


@pytest.fixture(scope="module", params=PACES)
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[Told]:
    made = all_told(tmp_path_factory.mktemp("told"), upstream, request.param, SETTINGS, CASES)
    yield made
    made.home.kill()


@pytest.fixture(scope="module", params=PACES)
def questions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[Told]:
    made = all_told(tmp_path_factory.mktemp("questions"), upstream, request.param, ASKS, QUESTIONS)
    yield made
    made.home.kill()


@pytest.mark.parametrize("case", CASES)
def test_b6_a_forgotten_run_has_left_no_word(told: Told, case: str) -> None:
    told.check(case)


@pytest.mark.parametrize("case", QUESTIONS)
def test_b6_a_run_that_asked_a_person_is_gone_when_its_end_was_delivered(questions: Told, case: str) -> None:
    questions.check(case)


def test_b6_runs_that_are_stored_stay_byte_for_byte(told: Told) -> None:
    for case in told.words:
        told.check(case)
    client = told.home.client
    after = client.post(RESPONSES, {"input": "after [[tokens=5]]"}).json()["id"]
    for run, shown in told.before.items():
        assert client.get(f"{RESPONSES}/{run}").body == shown
    told.home.kill()
    told.home.restart()
    client = told.home.client
    for run, shown in told.before.items():
        assert client.get(f"{RESPONSES}/{run}").body == shown
        assert client.get(f"{RUNS}/{run}/receipt").status == 200
    assert client.get(f"{RESPONSES}/{after}").status == 200


def test_the_search_of_this_file_finds_what_is_stored(told: Told) -> None:
    words = Words()
    whole(told.home, CHAT, ask(words.text(words.shell("seq 20000")), store=True))
    found = " ".join(told.home.traces(words))
    assert all(word in found for word in (words.said, words.answer, words.argument, words.output)), found
    assert "outputs" in found
    wait_until(lambda: in_rows(told.home.database, words.all()), "rows are searched too")


# Kills


@pytest.fixture(params=PACES)
def mortal(request: pytest.FixtureRequest, tmp_path: Path, upstream: Upstream) -> Iterator[Home]:
    windows = {"NINELIVES_AGENT_RESEND_ANONYMOUS_S": "8", "NINELIVES_AGENT_RESEND_WINDOW_S": "900"}
    home = Home(tmp_path, upstream, HURRIED if request.param == "quick" else ITSELF, {**SETTINGS, **windows})
    yield home
    home.kill()


def gone(home: Home, words: Words) -> None:
    """Its words are gone, a minute from now at the latest."""
    wait_until(lambda: not home.traces(words), "the words are gone", LONGEST, every=0.2)


def killed(home: Home, w: Words, path: str, **fields: Any) -> tuple[Json, str]:
    """A run with one tool, killed while its text hangs, and the next server: the body and the run."""
    body = says(w.text(w.shell("seq 20000"), then="[[hang=1 times=1 at=1]] "), path, stream=True, **fields)
    with home.client.stream(path, body) as stream:
        first = stream.take(1)[0].data
        wait_until(lambda: len(home.upstream.asked(w.name)) == 2, "the text is asked for")
        home.kill()
    assert home.traces(w), "a crash loses nothing"
    home.restart()
    return body, first["id"] if path == CHAT else first["response"]["id"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_b6_killed_in_the_middle_and_asked_for_again_it_is_gone_when_it_is_delivered(mortal: Home, path: str) -> None:
    w = Words()
    body, run = killed(mortal, w, path, user="ann")
    assert mortal.run(run)["status"] == "queued"
    assert w.answer in whole(mortal, path, body)
    assert len([m for m in mortal.upstream.asked(w.name)[-1]["messages"] if m["role"] == "tool"]) == 1
    gone(mortal, w)
    assert mortal.client.get(f"{RUNS}/{run}").status == 404


def test_p4_killed_and_never_asked_for_again_it_waits_calls_nobody_and_is_gone_when_the_window_ends(
    mortal: Home,
) -> None:
    w, other = Words(), Words()
    _, run = killed(mortal, w, CHAT)
    restarted = time.monotonic()
    while time.monotonic() < restarted + 5:  # the window has three seconds more
        shown = mortal.run(run)
        assert (shown["status"], shown["attempt"]) == ("queued", 1), "it waits for its caller"
        time.sleep(0.2)
    assert w.answer not in whole(mortal, CHAT, says(other.text(), CHAT)), "others are answered meanwhile"
    ended = wait_until(
        lambda: (answer := mortal.client.get(f"{RUNS}/{run}")).status == 404 or answer.json()["status"] == "cancelled",
        "it is cancelled",
        LONGEST,
    )
    assert ended
    gone(mortal, w)
    gone(mortal, other)
    assert mortal.client.get(f"{RUNS}/{run}").status == 404
    assert len(mortal.upstream.asked(w.name)) == 2, "no model was called after the death"


def test_b6_killed_after_it_was_delivered_it_is_gone_all_the_same(mortal: Home) -> None:
    w = Words()
    assert w.answer in whole(mortal, CHAT, says(w.text(w.shell("seq 20000")), CHAT))
    mortal.kill()
    mortal.restart()
    gone(mortal, w)


@pytest.mark.parametrize("choice", ["once", pytest.param("deny", marks=pytest.mark.long)])
def test_d4_killed_while_it_asks_a_person_it_is_answered_after_the_restart_and_then_gone(
    tmp_path: Path, upstream: Upstream, choice: str
) -> None:
    windows = {"NINELIVES_AGENT_RESEND_ANONYMOUS_S": "900", "NINELIVES_AGENT_RESEND_WINDOW_S": "4"}
    home, w = Home(tmp_path, upstream, HURRIED, {**ASKS, **windows}), Words()
    try:
        question(home, w, user="ann")
        home.kill()
        home.restart()
        (run,) = home.asking(w)
        assert home.client.post(f"{RUNS}/{run}/approval", {"choice": choice}).status == 200
        wait_until(lambda: home.run(run)["status"] == "completed", "it goes on")
        gone(home, w)
    finally:
        home.kill()


# What is kept otherwise


def test_b6_store_left_out_is_as_store_false_where_nothing_is_kept(tmp_path: Path, upstream: Upstream) -> None:
    settings = {**SETTINGS, "NINELIVES_STORE_UNSTORED_HOURS": "0", "NINELIVES_AGENT_RESEND_ANONYMOUS_S": "900"}
    home, words = Home(tmp_path, upstream, HURRIED, settings), [Words() for _ in range(3)]
    try:
        for w, stream in zip(words, (True, False, False), strict=True):
            text = w.text(w.shell(f"cd /tmp; export KEPT={w.argument}; seq 20000"))
            assert w.answer in whole(home, CHAT, {**ask(text), "stream": stream})
        message = home.client.post("/v1/messages", {**ask(words[2].text()), "max_tokens": 999})
        assert message.status == 200 and words[2].answer in message.body.decode()
        for w in words:
            gone(home, w)
        assert home.client.get(RUNS).json()["data"] == []
    finally:
        home.kill()


def test_b6_store_left_out_is_shown_as_a_run_for_a_day_and_never_as_a_chat(told: Told) -> None:
    w, home = Words(), told.home
    chat = json.loads(whole(home, CHAT, ask(w.text(w.shell()))))["id"]
    time.sleep(2.0)  # several rounds of forgetting
    assert w.answer in json.dumps(home.run(chat)) and home.client.get(f"{CHAT}/{chat}").status == 404
    assert chat not in home.client.get(CHAT).body.decode()


class Watch:
    """Looks into all files again and again, in a thread, for as long as it is open."""

    def __init__(self, home: Home, words: Words) -> None:
        self.rounds, self.found = 0, list[str]()
        self._home, self._words, self._over = home, words, False
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Watch:
        self._looking = self._pool.submit(self._look)
        return self

    def _look(self) -> None:
        while not self._over:
            self.found += in_files(self._home.where, self._words.all())
            self.rounds += 1

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._looking.result(60)
        self._pool.shutdown()


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_b6_in_memory_no_word_is_ever_in_a_file(tmp_path: Path, upstream: Upstream, path: str) -> None:
    home, w = Home(tmp_path, upstream, ITSELF, {**ASKS, "NINELIVES_AGENT_STORE_FALSE": "memory"}), Words()
    kept = Words()
    try:
        with Watch(home, w) as watch:
            text = w.text(w.shell(), f"process:{json.dumps({'action': 'list'})}", then="[[pace=0.05]] ")
            for stream in (True, False):
                answer = whole(home, path, says(f"{text} [[reason=20]]", path, stream=stream))
                assert w.answer in answer
            wait_until(lambda: watch.rounds > 20, "it was looked for", 60)
        told = json.dumps(home.upstream.asked(w.name)[-1]["messages"])
        assert "kept in memory only" in told, "a call that needs a person is refused"
        assert watch.found == [] and home.traces(w) == []
        whole(home, CHAT, ask(kept.text(), store=True))
        assert home.traces(kept) and home.traces(w) == []
        home.kill()
        assert home.traces(w) == []
        home.restart()
    finally:
        home.kill()


def test_b6_in_memory_tools_that_need_nobody_leave_no_word_either(tmp_path: Path, upstream: Upstream) -> None:
    settings = {**SETTINGS, "NINELIVES_AGENT_STORE_FALSE": "memory"}
    home, w = Home(tmp_path, upstream, ITSELF, settings), Words()
    session = {"x-hermes-session-id": "shell"}
    try:
        with Watch(home, w) as watch:
            first = w.shell(f"export KEPT={w.argument}; mkdir -p a; cd a; seq 20000; sleep 0.5")
            then = w.shell('echo "$KEPT" in "$PWD"')
            assert w.answer in whole(home, CHAT, says(w.text(first, then), CHAT, stream=True), session)
            wait_until(lambda: watch.rounds > 20, "it was looked for", 60)
        told = json.dumps(home.upstream.asked(w.name)[-1]["messages"])
        assert re.search(rf"{w.argument} in \S*/a\b", told), "the shell goes on within the run"
        assert watch.found == [] and home.traces(w) == []
    finally:
        home.kill()


# PostgreSQL


class OnPostgres(Home):
    """The same over a database of its own."""

    def __init__(self, where: Path, upstream: Upstream, settings: dict[str, str]) -> None:
        self.url = asyncio.run(pg.server().database())
        shared = {"NINELIVES_STORE_URL": self.url, "NINELIVES_SERVER_REPLICA": "one"}
        super().__init__(where, upstream, HURRIED, {**settings, **shared})

    def traces(self, words: Words) -> list[str]:
        plain = words.all()[:4]
        return in_files(self.where, plain, words.files) or in_postgres(self.url, plain)

    def packed(self, run: str) -> list[bytes]:
        return []


def test_b6_on_postgres_no_row_of_any_table_has_a_word(tmp_path: Path, upstream: Upstream) -> None:
    windows = {"NINELIVES_AGENT_RESEND_ANONYMOUS_S": "900", "NINELIVES_AGENT_RESEND_WINDOW_S": str(WINDOW_S)}
    home = OnPostgres(tmp_path, upstream, {**SETTINGS, **windows})
    names = ("tools /v1/responses streamed", "long output", "shell state", "session", "conversation", "failed", "left")
    cases = {name: CASES[name] for name in (*names, "never asked again", "asked again", "plain /v1/responses whole")}
    try:
        told = tell(home, cases, LONGEST)
        for case in cases:
            told.check(case)
        for run, shown in told.before.items():
            assert home.client.get(f"{RESPONSES}/{run}").body == shown
        kept = Words()
        whole(home, CHAT, ask(kept.text(), store=True))
        assert {"runs", "run_log"} <= {
            found.split(" in ")[1].split(".")[0] for found in in_postgres(home.url, kept.all())
        }
    finally:
        home.kill()


def test_b6_on_postgres_a_run_that_asked_is_gone_when_its_end_was_delivered(tmp_path: Path, upstream: Upstream) -> None:
    home, w = OnPostgres(tmp_path, upstream, ASKS), Words()
    try:
        approved_in_chat(stream=True)(home, w)
        gone(home, w)
    finally:
        home.kill()
