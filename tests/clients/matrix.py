"""Which client is asked in which way for what, and what must come of it. Owns: the clients, the cases, what each case
must show, and the limits that are a client's own, each with its reason. Refuses to know: processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

WEATHER = "sunny in Oslo"
THOUGHT = "think0 think1 think2 "
CUT = "The model's stream ended before its answer did"
TYPED = {"city": "Oslo", "warm": True}
PROMPTS = {
    "plain": "[[text=Hello there, friend.]]",
    "tools": '[[tools=write_file:{"path":"matrix.txt","content":"from a client"}|read_file:{"path":"matrix.txt"}]]'
    " [[text=The end.]]",
    "own": '[[tools=get_weather:{"city":"Oslo"}]]',
    "reason": "[[reason=3]] [[text=Thought through.]]",
    "fail": "[[cut=4]]",
    "late": '[[tools=write_file:{"path":"late.txt","content":"once"}|read_file:{"path":"late.txt"}]] [[cut=4 at=2]]',
    "conflict": "[[text=Never said.]]",
    "typed": '[[text={"city":"Oslo","warm":true}]]',
}
ALL = ("plain", "tools", "own", "reason", "fail", "conflict")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@dataclass(frozen=True)
class Expect:
    """What a client's user must see, and what the server must."""

    text: str = ""
    ran: tuple[str, ...] = ()
    reasoning: str = ""
    error: str = ""
    """Part of the message; empty: there is none."""
    status: int | None = None
    posts: int = 1
    rounds: int | None = 1
    """Requests to the model: a client that asks twice, or a tool that runs twice, makes more."""
    more: dict[str, Any] = field(default_factory=dict)


CASES = {
    "plain": Expect("Hello there, friend."),
    "tools": Expect("Step 0: calling write_file. Step 1: calling read_file. The end. done after 2 results", rounds=3),
    "own": Expect("done after 1 results", ran=("get_weather",), posts=2, rounds=2),
    "reason": Expect("Thought through.", reasoning=THOUGHT),
    "fail": Expect("tok0 tok1 tok2 tok3 ", error=CUT),
    "late": Expect(error=CUT, rounds=3),
    "conflict": Expect(error="Idempotency-Key", status=409, rounds=0),
    "typed": Expect('{"city":"Oslo","warm":true}', more={"parsed": TYPED}),
}


@dataclass(frozen=True)
class Client:
    """One client: where it is installed, the script that drives it, and its ways of asking."""

    name: str
    place: str
    package: str
    script: str
    ways: tuple[str, ...]
    cases: tuple[str, ...] = ALL
    argument: str = ""

    def jobs(self) -> list[tuple[str, str]]:
        return [(way, case) for way in self.ways for case in self.cases_of(way)]

    def cases_of(self, way: str) -> tuple[str, ...]:
        if way.endswith(".parse"):
            return ("plain", "tools", "own", "typed")
        if way == "socket":
            return ("plain", "tools", "own", "reason", "fail")
        return (*self.cases, "late") if way in ("chat", "compatible chat", "messages") else self.cases

    def route(self, way: str) -> str:
        if self.script.startswith("anthropic"):
            return MESSAGES
        return CHAT if "chat" in way or "completions" in way else RESPONSES


FOUR = ("chat", "chat.stream", "responses", "responses.stream")
PYTHON = (
    *("chat", "chat.stream", "chat.helper", "chat.parse"),
    *("responses", "responses.stream", "responses.helper", "responses.parse"),
    *("async chat.stream", "async chat.helper"),
    *("async responses", "async responses.stream", "async responses.helper"),
)
NODE = ("chat", "chat.stream", "chat.helper", "responses", "responses.stream", "responses.helper")
CLIENTS = (
    Client("openai-python", "openai", "openai", "openai_py.py", (*PYTHON, "socket")),
    Client("openai-python 2", "openai2", "openai", "openai_py.py", PYTHON),
    Client("openai-node", "node", "openai7", "openai.mjs", NODE, argument="openai7"),
    Client("openai-node 6", "node", "openai6", "openai.mjs", NODE, argument="openai6"),
    Client("openai-node 5", "node", "openai5", "openai.mjs", NODE, argument="openai5"),
    Client("openai-node 4", "node", "openai4", "openai.mjs", NODE, argument="openai4"),
    Client(
        "Vercel AI SDK", "node", "ai7", "ai.mjs", (*FOUR, "compatible chat", "compatible chat.stream"), argument="ai7"
    ),
    Client(
        "Vercel AI SDK 6", "node", "ai6", "ai.mjs", (*FOUR, "compatible chat", "compatible chat.stream"), argument="ai6"
    ),
    Client("LangChain Python", "langchain", "langchain-openai", "langchain_py.py", FOUR),
    Client("LangChain JS", "node", "@langchain/openai", "langchain.mjs", FOUR),
    Client("OpenAI Agents SDK", "agents", "openai-agents", "agents_py.py", FOUR),
    Client("LiteLLM", "litellm", "litellm", "litellm_py.py", FOUR),
    Client("llm", "llm", "llm", "llm_py.py", ("chat", "chat.stream")),
    Client("Codex CLI", "node", "@openai/codex", "codex_py.py", ("responses.stream",)),
    Client(
        "anthropic-python",
        "anthropic",
        "anthropic",
        "anthropic_py.py",
        ("messages", "messages.stream", "messages.helper"),
    ),
    Client(
        "anthropic-node",
        "node",
        "@anthropic-ai/sdk",
        "anthropic.mjs",
        ("messages", "messages.stream", "messages.helper"),
    ),
)


@dataclass(frozen=True)
class Limit:
    """Where a client cannot show what the server says: its own limit, not ours."""

    client: str
    way: str
    case: str
    changes: dict[str, Any]
    why: str


_RETRIES = "a 502 before any tool ran is asked again by the client itself, as its retry policy says"
_NO_ERROR = "get_final_response() of a failed response raises a RuntimeError of its own; the event has our message"
_HELPER = {
    "error": "Didn't receive a `response.completed` event",
    "more": {"told": f"{CUT}. Try again. (upstream_cut)"},
}
_NO_THOUGHT = "the client drops reasoning_content of chat completions"
_NO_PART = "the client gives up the text of an answer that failed"
_LAST = "The end. done after 2 results"
_BOTH = "Step 0: calling get_weather. done after 1 results"
_SHELL = {"ran": ("exec_command",), "text": "Step 0: calling exec_command. done after 1 results"}
_SIX = {"text": "tok0 tok1 tok2 tok3 " * 6, "posts": 6, "rounds": 6}
AGAIN = {"text": "", "posts": 3, "rounds": 3}
LIMITS: tuple[Limit, ...] = (
    *(Limit("*", way, "fail", AGAIN, _RETRIES) for way in ("chat", "compatible chat", "messages")),
    *(
        Limit("openai-python*", way, "fail", _HELPER, _NO_ERROR)
        for way in ("responses.helper", "async responses.helper")
    ),
    *(
        Limit(
            "Vercel AI SDK*", way, "conflict", {"posts": 3}, "the client retries every 409 and ignores x-should-retry"
        )
        for way in ("*chat", "*chat.stream", "responses", "responses.stream")
    ),
    Limit("Vercel AI SDK*", "chat", "reason", {"reasoning": ""}, _NO_THOUGHT),
    Limit("Vercel AI SDK*", "chat.stream", "reason", {"reasoning": ""}, _NO_THOUGHT),
    Limit("Vercel AI SDK*", "responses", "fail", {"text": ""}, _NO_PART),
    *(
        Limit("Vercel AI SDK*", way, "late", {"posts": 3, "rounds": None}, "the client ignores x-should-retry")
        for way in ("chat", "compatible chat")
    ),
    Limit("OpenAI Agents SDK", "responses", "tools", {"text": _LAST}, "final_output is the last message item"),
    Limit("OpenAI Agents SDK", "responses", "fail", {"text": ""}, _NO_PART),
    Limit("LiteLLM", "responses.stream", "fail", {"error": ""}, "the client shows no response.failed event"),
    Limit("Codex CLI", "*", "own", _SHELL, "its own tool is its shell; it prints the text of both turns"),
    Limit("Codex CLI", "*", "fail", _SIX, "response.failed is asked again: stream_max_retries is 5 by default"),
    Limit("Codex CLI", "*", "conflict", {"status": None}, "it sends store=false, so its key is refused with 400, once"),
    Limit("llm", "*", "own", {"text": _BOTH}, "the command prints the text of both turns"),
    Limit("llm", "*", "reason", {"reasoning": ""}, "the command prints no reasoning"),
    Limit("LangChain Python", "chat*", "reason", {"reasoning": ""}, _NO_THOUGHT),
    Limit("LangChain *", "responses", "fail", {"text": ""}, _NO_PART),
    Limit(
        "LangChain JS", "chat", "fail", {"posts": 2, "rounds": 2}, "asked with one retry: its default is six, a minute"
    ),
    Limit("LangChain JS", "chat", "late", {"posts": 2, "rounds": None}, "the client ignores x-should-retry"),
    Limit("LangChain JS", "responses.stream", "fail", {"error": ""}, "the client ignores response.failed"),
)


def expected(client: Client, way: str, case: str) -> tuple[Expect, list[str]]:
    """What must be seen, and why it is less than all where it is."""
    expect, why = CASES[case], []
    if way == "socket":
        expect = replace(expect, posts=0)
    for limit in LIMITS:
        if fnmatchcase(client.name, limit.client) and fnmatchcase(way, limit.way) and limit.case == case:
            expect = replace(expect, **limit.changes)
            why.append(limit.why)
    return expect, why


def complaints(expect: Expect, seen: dict[str, Any], posts: int, rounds: int | None) -> list[str]:
    """What is not as it must be."""
    error = seen["error"] or {}
    wrong = [
        f"{name}: {got!r}, not {wanted!r}"
        for name, got, wanted in (
            ("text", seen["text"], expect.text),
            ("ran", tuple(seen["ran"]), expect.ran),
            ("reasoning", seen["reasoning"], expect.reasoning),
            ("POSTs", posts, expect.posts),
            ("model calls", rounds if expect.rounds is not None else None, expect.rounds),
            *((key, seen["more"].get(key), value) for key, value in expect.more.items()),
        )
        if got != wanted
    ]
    if bool(error) != bool(expect.error) or expect.error not in error.get("message", ""):
        wrong.append(f"error: {error or None}, not {expect.error or None!r}")
    elif expect.status is not None and error.get("status") not in (None, expect.status):
        wrong.append(f"status {error['status']}, not {expect.status}")
    return wrong
