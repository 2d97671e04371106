"""A steerable fake upstream: a plain asyncio HTTP/1.1 server that speaks chat completions. Owns: the directives, the
record of what it was asked, and the count of open sockets. Refuses to know: Ninelives.

What it answers is chosen by directives in the text of the LAST user message and by the number of assistant messages
since then (the round): a pure function of the request, but for `times`, which counts. Several keys may stand in one
pair of brackets, several pairs in one text:
  [[tokens=40 pace=0.01]]   the final text is "tok0 tok1 ... tok39 ", one each `pace` seconds (pace: all texts)
  [[text=Hello world]]      the final text (takes all up to the brackets' end)
  [[evenly]]                the pace holds for reasoning and for arguments of calls too
  [[reason=3]]              every message begins with "think0 think1 think2 " as reasoning_content
  [[tools=NAME:{JSON}|NAME:{JSON}]]     one call per message, each after a little text; then the final text
  [[parallel=NAME:{JSON}|NAME:{JSON}]]  all calls in one message; then the final text
  [[pre=20]]                20 tokens before each call instead of the little text
  [[badargs]] [[unknowntool]] [[dupids]]  a round of its own: arguments that are no JSON; a tool that is not there;
                            two calls (those of `parallel`, else two read_file) with one id
  [[big=1000000 messages=20]]  20 messages of that many bytes, with a read_file between each two
  [[refuse]]                the final text comes as a refusal
  [[length=5]] [[cached=7]] finish_reason length after 5 tokens; cached tokens in the usage
  [[json]] [[crlf]] [[noindex]] [[nodone]]  a JSON answer; CRLF; calls without index; no [DONE] after the finish
  [[callgate]]              wait for FakeUpstream.go or POST /_go after the name of each call
  [[cost=0.01]]             what the call costs, in the usage
  [[nousage]]               no usage, whether asked for or not
  [[nostream]] [[nostream=tools]] [[nooptions]]  400 for stream: true; only with tools; for stream_options
Faults, each with `times=N` (only the first N requests with this text), `at=R` (only in round R) and, for those that
count tokens, `gate` (wait for FakeUpstream.go or POST /_go before doing it):
  [[status=500]] [[status=429 retry_after=1]]  and `leak`: the error quotes the credentials it was sent; with
                            `unstreamed`, a refusal to stream comes first
  [[cut=5]] [[hang=3]] [[garbage=2]] [[errorframe=2]]  after so many tokens of text (0: before the first)
  [[noeof]]                 a clean end of the body without finish_reason
  [[html]] [[longline]] [[slowstart=0.5]]  a page; a line of 50 MB; a wait before the answer's first byte
After tool results the final text ends in "done after N results". Default text: "Hello from the fake upstream."
A front end's errand (### Task: and then what the user said, quoted) is answered with CHORE, whatever it quotes.
Other routes: GET /v1/models, GET /_stats, GET /_requests, GET /_now (what is being said), POST /_reset, POST /_go.
As a process: python -m ninelives.testing.fake_upstream --port 0 --log FILE (prints its port)."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from email.utils import formatdate
from typing import Any, TextIO

from ninelives.testing.directives import directives

Json = dict[str, Any]
FAULTS = ("status", "cut", "hang", "garbage", "errorframe", "noeof", "html", "longline", "slowstart")
COUNTED = ("cut", "hang", "garbage", "errorframe", "length")
BATCH_BYTES, BIG_PIECE, LONG_LINE = 16_384, 4096, 50_000_000
GATE_S = 120.0
CHORE = '{"title": "A fake title", "tags": ["fake"], "follow_ups": ["And then?"]}'
WORD = re.compile(r"(?:\A\s*+)?\S+\s*")
PIECE = re.compile(r"(?s).{1,16}")
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def text_of(message: Json) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _words(text: str) -> list[str]:
    return WORD.findall(text)


def _counted(n: int) -> list[str]:
    return [f"tok{place} " for place in range(n)]


def _last_turn(messages: list[Json]) -> tuple[str, list[Json]]:
    """The text of the last user message, and the messages after it."""
    users = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    return (text_of(messages[users[-1]]), messages[users[-1] + 1 :]) if users else ("", messages)


class Script:
    """What one request is to be answered with: a pure function of the request."""

    def __init__(self, request: Json) -> None:
        messages = request.get("messages", [])
        self.asked, after = _last_turn(messages)
        self.round = sum(message.get("role") == "assistant" for message in after)
        self.results = sum(message.get("role") == "tool" for message in after)
        chore = self.asked.lstrip().startswith("### Task:")
        self.groups = [{"text": CHORE}] if chore else directives(self.asked)
        self.keys: Json = {key: value for group in self.groups for key, value in group.items()}
        self.pace = float(self.keys.get("pace", 0))
        self.prompt_tokens = sum(len(text_of(message).split()) for message in messages)
        rounds = list(self._rounds())
        self.calls = rounds[self.round] if self.round < len(rounds) else []
        self.thoughts = [f"think{n} " for n in range(int(self.keys.get("reason", 0)))]
        self.tokens = self._tokens()
        self.finish = "tool_calls" if self.calls else "stop"
        if "length" in self.keys:
            self.tokens, self.calls, self.finish = self.tokens[: int(self.keys["length"])], [], "length"

    def _rounds(self) -> Iterator[list[tuple[str, str]]]:
        reads = [("read_file", '{"path":"a.txt"}'), ("read_file", '{"path":"b.txt"}')]
        if calls := self.keys.get("parallel", reads if "dupids" in self.keys else None):
            yield calls
        yield from ([call] for call in self.keys.get("tools", ()))
        if "badargs" in self.keys:
            yield [("terminal", '{"command": "echo ')]
        if "unknowntool" in self.keys:
            yield [("no_such_tool", "{}")]
        if "big" in self.keys:
            yield from [reads[:1]] * (int(self.keys.get("messages", 1)) - 1)

    def _tokens(self) -> list[str]:
        keys = self.keys
        if "big" in keys:
            return self._big(int(keys["big"]))
        if self.calls:
            names = " and ".join(name for name, _ in self.calls)
            return _counted(int(keys["pre"])) if "pre" in keys else _words(f"Step {self.round}: calling {names}. ")
        done = _words(f"done after {self.results} results") if self.results else []
        if "text" in keys:
            return [*_words(keys["text"] + (" " if done else "")), *done]
        counted = [int(keys[key]) for key in COUNTED if key in keys]
        if "tokens" in keys or counted:
            return [*_counted(int(keys.get("tokens", max(counted, default=0) + 5))), *done]
        return done or _words("Hello from the fake upstream.")

    def _big(self, size: int) -> list[str]:
        return [f"big{self.round}.{n} ".ljust(BIG_PIECE, "x")[: size - n] for n in range(0, size, BIG_PIECE)]

    def chunks(self) -> Iterator[tuple[Json, bool]]:
        """Deltas in order, and whether each is a token of text."""
        yield {"role": "assistant", "content": ""}, False
        for thought in self.thoughts:
            yield {"reasoning_content": thought}, False
        for token in self.tokens:
            yield {"refusal" if "refuse" in self.keys else "content": token}, True
        for index, (name, arguments) in enumerate(self.calls):
            place = {} if "noindex" in self.keys else {"index": index}
            first = {**place, "id": self.call_id(index), "type": "function"}
            yield {"tool_calls": [{**first, "function": {"name": name, "arguments": ""}}]}, False
            for piece in PIECE.findall(arguments):
                yield {"tool_calls": [{**place, "function": {"arguments": piece}}]}, False

    def is_paced(self, token: bool) -> bool:
        return self.pace > 0 and (token or "evenly" in self.keys)

    def call_id(self, index: int) -> str:
        return "call_dup" if "dupids" in self.keys else f"call_{self.round}_{index}"

    def usage(self) -> Json:
        said = len(self.thoughts) + len(self.tokens) + sum(len(call[1].split()) for call in self.calls)
        bill = {"cost": float(self.keys["cost"])} if "cost" in self.keys else {}
        return bill | {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": said,
            "total_tokens": self.prompt_tokens + said,
            "prompt_tokens_details": {"cached_tokens": int(self.keys.get("cached", 0))},
            "completion_tokens_details": {"reasoning_tokens": len(self.thoughts)},
        }

    def body(self, model: str) -> Json:
        """The whole answer, not streamed."""
        text, thought = "".join(self.tokens) or None, "".join(self.thoughts) or None
        message: Json = {"role": "assistant", "content": text, "reasoning_content": thought}
        if "refuse" in self.keys:
            message |= {"content": None, "refusal": text}
        if self.calls:
            calls = [{"type": "function", "function": {"name": name, "arguments": text}} for name, text in self.calls]
            message["tool_calls"] = [{"id": self.call_id(n), **call} for n, call in enumerate(calls)]
        choices = [{"index": 0, "message": message, "finish_reason": self.finish}]
        usage = {} if "nousage" in self.keys else {"usage": self.usage()}
        kind = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 0, "model": model}
        return {**kind, "choices": choices, **usage}


def _refusal(script: Script, request: Json) -> str:
    """Why this upstream does not answer in the way it was asked to; empty where it does."""
    if not request.get("stream"):
        return ""
    if "nooptions" in script.keys and "stream_options" in request:
        return "Unrecognized request argument supplied: stream_options"
    if script.keys.get("nostream") == "tools":
        return "This model doesn't support tool use in streaming mode." if request.get("tools") else ""
    return "Unsupported value: 'stream' does not support true." if "nostream" in script.keys else ""


class FakeUpstream:
    """`async with FakeUpstream() as up:` serves at up.url; `log` gets a line of JSON per request."""

    def __init__(self, port: int = 0, log: TextIO | None = None, host: str = "127.0.0.1") -> None:
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0  # sockets on which a completion was asked for and which are not closed
        self.closed_early = 0
        self.now: dict[int, Json] = {}
        self.models = ["fake-model"]
        self.go = asyncio.Event()
        self.host, self.port = host, port
        self._log, self._times = log, Counter[str]()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeUpstream:
        self._server = await asyncio.start_server(self._connected, self.host, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{self.host}:{self.port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        socket = Socket(self, reader, writer)
        try:
            await socket.serve()
        except asyncio.CancelledError:
            return  # this server is closing; asyncio.start_server would log it
        finally:
            self._tasks.discard(task)
            self.open -= socket.counted
            writer.close()

    def record(self, request: Json, headers: dict[str, str]) -> None:
        self.requests.append(request)
        self.headers.append(headers)
        if self._log is not None:
            self._log.write(json.dumps(request) + "\n")
            self._log.flush()

    def faults(self, script: Script) -> Json:
        """The faults that strike this request, with the options of their brackets."""
        struck: Json = {}
        for number, group in enumerate(script.groups):
            kinds = [key for key in FAULTS if key in group]
            if not kinds or int(group.get("at", script.round)) != script.round:
                continue
            mark = f"{number} {script.asked}"
            self._times[mark] += 1
            if self._times[mark] <= int(group.get("times", 1 << 30)):
                struck.update({kind: group for kind in kinds})
        return struck

    def other(self, route: str) -> Json | list[Json] | None:
        """Answers to all but completions."""
        if route == "POST /_reset":
            for record in (self.requests, self.headers, self._times, self.go):
                record.clear()
            self.closed_early = 0
        elif route == "POST /_go":
            self.go.set()
        answers: dict[str, Json | list[Json]] = {
            "GET /v1/models": {"object": "list", "data": [{"id": name} for name in self.models]},
            "GET /_stats": {"requests": len(self.requests), "open": self.open, "closed_early": self.closed_early},
            "GET /_requests": self.requests,
            "GET /_now": list(self.now.values()),
            "POST /_reset": {},
            "POST /_go": {},
        }
        return answers.get(route)


class Socket:
    """One connection and the requests that come over it, one after the other."""

    def __init__(self, up: FakeUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.up, self.reader, self.writer = up, reader, writer
        self.counted = False
        self._batch = bytearray()

    async def serve(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                route = head[0].rpartition(" ")[0]
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await self.reader.readexactly(int(headers.get("content-length", 0)))
                if route != "POST /v1/chat/completions":
                    found = self.up.other(route)
                    self._respond(200 if found is not None else 404, json.dumps(found).encode())
                    continue
                self.up.open += not self.counted
                self.counted = True
                request = json.loads(body)
                self.up.record(request, headers)
                try:
                    await self._complete(request, headers)
                except ConnectionError:
                    self.up.closed_early += 1
                    return
                finally:
                    self.up.now.pop(id(self), None)

    def _respond(self, status: int, body: bytes, kind: str = "application/json", more: str = "") -> None:
        head = f"HTTP/1.1 {status} Fake\r\nContent-Type: {kind}\r\nDate: {formatdate(usegmt=True)}\r\n{more}"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _complete(self, request: Json, headers: dict[str, str]) -> None:
        script = Script(request)
        faults = self.up.faults(script)
        if "slowstart" in faults:
            await self._pause(float(faults["slowstart"]["slowstart"]))
        refusal = _refusal(script, request)
        if "status" in faults and not (refusal and "unstreamed" in faults["status"]):
            group = faults["status"]
            said = f"fake status {group['status']}" + (f" {headers.get('authorization')}" if "leak" in group else "")
            wait = f"Retry-After: {group['retry_after']}\r\n" if "retry_after" in group else ""
            error = {"error": {"message": said, "type": "fake", "code": None}}
            self._respond(int(group["status"]), json.dumps(error).encode(), more=wait)
        elif "html" in faults:
            self._respond(200, b"<!doctype html><html><body>Sign in</body></html>", "text/html")
        elif refusal:
            error = {"error": {"message": refusal, "type": "invalid_request_error", "param": "stream", "code": None}}
            self._respond(400, json.dumps(error).encode())
        elif "json" in script.keys or not request.get("stream"):
            self._respond(200, json.dumps(script.body(str(request.get("model")))).encode())
        else:
            self.writer.write(EVENTS)
            await self._stream(script, faults, (request.get("stream_options") or {}).get("include_usage", False))

    async def _stream(self, script: Script, faults: Json, usage: bool) -> None:
        eol = "\r\n" if "crlf" in script.keys else "\n"
        due = {int(faults[kind][kind]): kind for kind in COUNTED if kind in faults}
        if "longline" in faults:
            await self._long_line()
        told = 0
        for delta, token in script.chunks():
            if token:
                await self._fault(due.pop(told, ""), faults)
                told += 1
            self.up.now[id(self)] = {"asked": script.asked[:80], "says": next(reversed(delta))}
            self._chunk(_frame({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, eol))
            if (paced := script.is_paced(token)) or len(self._batch) > BATCH_BYTES:
                await self._flush()
            if paced:
                await self._pause(script.pace)
            await self._call_gate(script, delta)
        for kind in due.values():
            await self._fault(kind, faults)
        if "noeof" not in faults:
            self._end(script, usage, eol)
        self._batch += b"0\r\n\r\n"
        await self._flush()

    async def _call_gate(self, script: Script, delta: Json) -> None:
        named = any(call["function"].get("name") for call in delta.get("tool_calls", ()))
        if named and "callgate" in script.keys:
            await self._flush()
            async with asyncio.timeout(GATE_S):
                await self.up.go.wait()

    def _end(self, script: Script, usage: bool, eol: str) -> None:
        self._chunk(_frame({"choices": [{"index": 0, "delta": {}, "finish_reason": script.finish}]}, eol))
        if usage and "nousage" not in script.keys:
            self._chunk(_frame({"choices": [], "usage": script.usage()}, eol))
        if "nodone" not in script.keys:
            self._chunk(f"data: [DONE]{eol}{eol}".encode())

    async def _fault(self, kind: str, faults: Json) -> None:
        if not kind:
            return
        await self._flush()
        if "gate" in faults[kind]:
            async with asyncio.timeout(GATE_S):
                await self.up.go.wait()
        if kind == "cut":
            raise asyncio.IncompleteReadError(b"", None)  # ends this socket as if its peer had
        if kind == "hang":
            await self._pause(3600)
        elif kind == "garbage":
            self._chunk(b'data: {"choices": [not json\n\n')
        elif kind == "errorframe":
            error = {"message": "the fake upstream failed", "type": "server_error", "code": 500}
            self._chunk(_frame({"error": error}, "\n"))

    async def _long_line(self) -> None:
        self._chunk(b'data: {"choices":[{"index":0,"delta":{"content":"')
        for _ in range(LONG_LINE // 65_536):
            self._chunk(b"x" * 65_536)
            await self._flush()
        self._chunk(b'"}}]}\n\n')

    def _chunk(self, data: bytes) -> None:
        self._batch += b"%x\r\n%b\r\n" % (len(data), data)

    async def _flush(self) -> None:
        batch, self._batch = self._batch, bytearray()
        self.writer.write(batch)
        await self.writer.drain()
        if self.reader.at_eof():
            raise ConnectionResetError

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the client leaves first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
        if self.reader.at_eof():
            raise ConnectionResetError


def _frame(chunk: Json, eol: str) -> bytes:
    return f"data: {json.dumps({'id': 'chatcmpl-fake', **chunk})}{eol}{eol}".encode()


async def _main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--log", type=argparse.FileType("a"))
    async with FakeUpstream(**vars(options.parse_args())) as up:
        sys.stdout.write(f"{up.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main())
