"""The table of hostile requests. Owns: what each row sends, and what it saw as the answer. A row ends by itself, and
leaves no connection open. Refuses to know: what is measured beside it."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect as connect_websocket

from tests.hostile.field import Attack, Field, Row
from tests.hostile.wire import JSON, PIECE, WAIT_S, answered, connect, head, many, post, pour, send, tally
from tests.story.server import KEY, wait_until

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
MOST = 9_900_000
"""Bytes: nearly a whole body."""
HOLD_S = 3.0
NULLS = b"\0" * PIECE
PICTURE = "data:image/png;base64," + "A" * 64


# Bodies


def chat(text: str = "hi", **more: object) -> bytes:
    return json.dumps({"model": "hermes-agent", "messages": [{"role": "user", "content": text}], **more}).encode()


def spliced(body: bytes, key: str, value: bytes) -> bytes:
    """A body with one more field, whose value is too big to build as objects."""
    return body[:-1] + b', "%s": %s}' % (key.encode(), value)


def repeated(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


def map_of(count: int, value: bytes = b"1") -> bytes:
    return b"{" + b",".join(b'"%d":%s' % (n, value) for n in range(count)) + b"}"


def list_of(piece: bytes, size: int) -> bytes:
    return b"[" + repeated(piece + b",", size)[:-1] + b"]"


def tool(parameters: bytes) -> bytes:
    return b'{"type":"function","function":{"name":"f","parameters":%s}}' % parameters


PROPERTIES, STRING = b'{"type":"object","properties":%s}', b'{"type":"string"}'


def with_schema(parameters: bytes) -> bytes:
    return spliced(chat(), "tools", b"[%s]" % tool(parameters))


def earlier(count: int) -> bytes:
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"turn {n} " + "word " * 40} for n in range(count - 1)]
    return json.dumps({"model": "hermes-agent", "messages": [*turns, {"role": "user", "content": "hi"}]}).encode()


def pictures(count: int) -> bytes:
    parts = [{"type": "input_image", "image_url": PICTURE + str(n)} for n in range(count)]
    return json.dumps({"model": "hermes-agent", "input": [{"role": "user", "content": parts}]}).encode()


def fenced(text: str) -> bytes:
    return json.dumps({"model": "hermes-agent", "input": [{"type": "compaction", "encrypted_content": text}]}).encode()


def sent(path: str, make: Callable[[], bytes], *, key: bool = True) -> Attack:
    """A row that is one body. The body is made once, before the probes run."""
    kept: list[bytes] = []

    def attack(field: Field) -> str:
        if not kept:
            kept.append(make())
        return post(field, path, kept[0], key=key)

    attack.prepare = lambda: kept or kept.append(make())  # type: ignore[attr-defined]
    return attack


# Heads and connections


def endless_head(size: int, field: Field) -> str:
    with connect(field) as line:
        start = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
        taken = pour(line, [start, *([b"a" * PIECE] * (size // PIECE)), b"\r\n\r\n"])
        return f"{answered(line)}, {taken / 1e6:.1f} MB taken"


def many_headers(count: int, field: Field) -> str:
    lines = "".join(f"X-{n}: {n}\r\n" for n in range(count))
    return send(field, head("GET", "/health", lines + "\r\n", key=False))


def slow_heads(count: int, field: Field) -> str:
    """Heads that come byte by byte."""
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(field)) for _ in range(count)]
        for sign in b"GET /health HTTP/1.1\r\nX-Slow: ":
            for line in lines:
                pour(line, [bytes([sign])])
            time.sleep(HOLD_S / 40)
        return f"a new client: {new_client(field)}"


def idle(count: int, field: Field) -> str:
    with ExitStack() as stack:
        made = 0
        with suppress(OSError):
            for _ in range(count):
                stack.enter_context(connect(field))
                made += 1
        time.sleep(HOLD_S)
        return f"{made} open; a new client: {new_client(field)}"


def new_client(field: Field) -> str:
    """What a decent client gets meanwhile."""
    try:
        return post(field, CHAT, chat())
    except OSError as error:
        return type(error).__name__


def flood(size: int, field: Field, *, key: bool) -> str:
    """A body that nobody wants, as fast as it goes."""
    with connect(field) as line:
        pour(line, [head("POST", CHAT, f"{JSON}Content-Length: {size}\r\n\r\n", key=key)])
        taken = pour(line, (NULLS for _ in range(size // PIECE)))
        return f"{answered(line)}, {taken / 1e6:.1f} MB taken"


def chunked_flood(size: int, field: Field) -> str:
    with connect(field) as line:
        pour(line, [head("POST", CHAT, f"{JSON}Transfer-Encoding: chunked\r\n\r\n")])
        taken = pour(line, (b"%x\r\n%b\r\n" % (PIECE, NULLS) for _ in range(size // PIECE)))
        return f"{answered(line)}, {taken / 1e6:.1f} MB taken"


def slow_bodies(count: int, field: Field) -> str:
    """Bodies that are announced and do not come."""
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(field)) for _ in range(count)]
        for line in lines:
            pour(line, [head("POST", CHAT, f"{JSON}Content-Length: 1000000\r\n\r\n")])
        for _ in range(20):
            for line in lines:
                pour(line, [b" "])
            time.sleep(HOLD_S / 20)
        return f"a new client: {new_client(field)}"


NO_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xab" * 300,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\0" * 1_000_000,
    b"\n" * 1_000_000,
    b"GET " + b"/" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/runs HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 100_000,
)


def no_http(field: Field) -> str:
    told: Counter[str] = Counter()
    for data in NO_HTTP:
        with connect(field) as line:
            pour(line, [data])
            with suppress(OSError):
                line.shutdown(socket.SHUT_WR)
            told[answered(line)] += 1
    return tally(told)


def upgrades(count: int, field: Field) -> str:
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    data = head("GET", RESPONSES, f"{upgrade}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", key=False)
    return many(count, partial(send, field, data))


def strangers(count: int, field: Field) -> str:
    return many(count, partial(post, field, CHAT, chat(), key=False))


def long_query(field: Field) -> str:
    told: Counter[str] = Counter()
    for query in ("&".join(f"a{n}={n}" for n in range(6000)), "%zz" * 20_000, "limit=" + "9" * 60_000):
        told[send(field, head("GET", f"/v1/runs?{query}", "\r\n"))] += 1
    return tally(told)


# Runs, readers, websockets


def silent_readers(count: int, field: Field) -> str:
    """Readers of one run of 4 MB that read nothing."""
    if "big" not in field.notes:
        field.notes["big"] = field.journaled("[[big=3900000 messages=1]]")
        wait_until(lambda: field.status(field.notes["big"]) not in ("queued", "in_progress"), "the big run", 120)
    with ExitStack() as stack:
        for _ in range(count):
            line = stack.enter_context(connect(field, buffer=4096))
            pour(line, [head("GET", f"{RESPONSES}/{field.notes['big']}?stream=true", "\r\n")])
        time.sleep(HOLD_S)
        return f"a new client: {new_client(field)}"


def silent_clients(count: int, field: Field) -> str:
    """Clients that read nothing of an answer of 9.9 MB."""
    if "input" not in field.notes:
        field.notes["input"] = field.journaled("x" * MOST)
        wait_until(lambda: field.status(field.notes["input"]) not in ("queued", "in_progress"), "the run", 120)
    with ExitStack() as stack:
        for _ in range(count):
            line = stack.enter_context(connect(field, buffer=4096))
            pour(line, [head("GET", f"{RESPONSES}/{field.notes['input']}/input_items", "\r\n")])
        time.sleep(HOLD_S)
        return f"a new client: {new_client(field)}"


def page_views(field: Field) -> str:
    """All that the web page shows of a run with 9.9 MB."""
    if "page" not in field.notes:
        field.notes["page"] = field.journaled("x" * MOST).removeprefix("resp_")
        wait_until(lambda: field.status(f"resp_{field.notes['page']}") not in ("queued", "in_progress"), "the run", 120)
    views = ("timeline", "steps/1", "conversation", "entries", "entries/0", "request/2", "as/responses", "as/messages")
    paths = ["/api/runs?q=word", *(f"/api/runs/run_{field.notes['page']}/{view}" for view in views)]
    return tally(Counter(str(field.server.client.get(path).status) for path in paths))


def queued(count: int, field: Field) -> str:
    """Big bodies of stored runs that wait for a slot."""
    body = json.dumps({"model": "hermes-agent", "input": "x" * MOST, "background": True}).encode()
    hanging = [field.journaled("[[hang=0]]") for _ in range(2)]
    told: Counter[str] = Counter()
    ids = [json.loads(answer.body).get("id") for answer in _posts(field, body, count, told)]
    for run in [*hanging, *filter(None, ids)]:
        field.server.client.post(f"{RESPONSES}/{run}/cancel")
    return tally(told)


def _posts(field: Field, body: bytes, count: int, told: Counter[str]) -> list:  # type: ignore[type-arg]
    made = [field.server.client.post(RESPONSES, body) for _ in range(count)]
    for answer in made:
        told[str(answer.status)] += 1
    return [answer for answer in made if answer.status == 200]


def open_sockets(count: int, field: Field) -> str:
    """Websockets of one key, and a frame of garbage over each."""
    told: Counter[str] = Counter()
    with ExitStack() as stack:
        for _ in range(count):
            try:
                made = connect_websocket(
                    f"ws://127.0.0.1:{field.port}{RESPONSES}",
                    additional_headers={"Authorization": f"Bearer {KEY}"},
                    open_timeout=WAIT_S,
                    max_size=None,
                )
            except (WebSocketException, OSError) as error:
                told[f"refused ({getattr(getattr(error, 'response', None), 'status_code', type(error).__name__)})"] += 1
                continue
            stack.callback(made.close)
            with suppress(WebSocketException, OSError):
                made.send('{"type":"response.create","response":' + "[" * 200_000)
                told[json.loads(made.recv(WAIT_S)).get("error", {}).get("code") or "answered"] += 1
        return f"{tally(told)}; a new client: {new_client(field)}"


def big_frames(field: Field) -> str:
    told: Counter[str] = Counter()
    with connect_websocket(
        f"ws://127.0.0.1:{field.port}{RESPONSES}",
        additional_headers={"Authorization": f"Bearer {KEY}"},
        open_timeout=WAIT_S,
        max_size=None,
    ) as made:
        for body in (b"[" * MOST, spliced(chat(), "metadata", map_of(700_000))):
            try:
                made.send(b'{"type":"response.create",' + body[1:], text=True)
                told[json.loads(made.recv(WAIT_S)).get("error", {}).get("code") or "answered"] += 1
            except (WebSocketException, OSError) as error:
                told[type(error).__name__] += 1
    return tally(told)


def crowd(count: int, field: Field) -> str:
    return many(count, partial(post, field, CHAT, chat(stream=True)))


def leavers(count: int, field: Field) -> str:
    """Streams whose callers leave after the first bytes."""

    def leave() -> str:
        body = chat("[[tokens=300 pace=0.01]]", stream=True)
        with connect(field) as line:
            pour(line, [head("POST", CHAT, f"{JSON}Content-Length: {len(body)}\r\n\r\n") + body])
            return line.recv(32)[9:12].decode()

    return many(count, leave)


def upstream_says(text: str) -> Attack:
    return sent(CHAT, lambda: chat(text))


SPACES = "approve ABCD" + " " * 40_000 + "x"
LINES = "approve ABCD" + "\n" * 900_000 + "x"
ROWS: tuple[Row, ...] = (
    Row("a header line of 50 MB", partial(endless_head, 50_000_000), key=False),
    Row("a header line of 1 MB", partial(endless_head, 1_000_000), key=False),
    Row("5,000 headers", partial(many_headers, 5_000), key=False),
    Row("200 heads that come byte by byte", partial(slow_heads, 200), key=False),
    Row("1,300 idle connections at 1,024 files", partial(idle, 1_300), key=False),
    Row(
        "300 MB of body without a key",
        partial(flood, 300_000_000, key=False),
        key=False,
    ),
    Row("bytes that are no HTTP", no_http, key=False),
    Row("200 websocket upgrades without a key", partial(upgrades, 200), key=False),
    Row("1,000 requests without a key", partial(strangers, 1_000), key=False),
    Row("9.9 MB of brackets without a key", sent(CHAT, lambda: b"[" * MOST, key=False), key=False),
    Row("queries of 60 kB", long_query),
    Row("2 GB of body after a 413", partial(flood, 2_000_000_000, key=True)),
    Row("2 GB in chunks", partial(chunked_flood, 2_000_000_000)),
    Row("100 bodies that do not come", partial(slow_bodies, 100)),
    Row("approve ABCD, 40,000 spaces, x", sent(CHAT, lambda: chat(SPACES))),
    Row("approve ABCD, 900,000 newlines, x", sent(CHAT, lambda: chat(LINES))),
    Row("a message of 9.9 MB", sent(CHAT, lambda: chat("x" * MOST))),
    Row("logit_bias with 700,000 keys", sent(CHAT, lambda: spliced(chat(), "logit_bias", map_of(700_000)))),
    Row("metadata with 700,000 keys", sent(RESPONSES, lambda: spliced(chat(), "metadata", map_of(700_000, b'"x"')))),
    Row("9.9 MB of opening brackets", sent(CHAT, lambda: b"[" * MOST)),
    Row("9.9 MB of brackets in a field", sent(CHAT, lambda: spliced(chat(), "user", b"[" * MOST))),
    Row("3.3 million empty arrays in a schema", sent(CHAT, lambda: with_schema(b'{"enum":%s}' % list_of(b"[]", MOST)))),
    Row("a tool with 100,000 properties", sent(CHAT, lambda: with_schema(PROPERTIES % map_of(100_000, STRING)))),
    Row("100,000 tools", sent(CHAT, lambda: spliced(chat(), "tools", list_of(tool(b"{}"), MOST)))),
    Row("an integer of 9.9 million digits", sent(CHAT, lambda: spliced(chat(), "max_tokens", b"9" * MOST))),
    Row("1.6 million stop words", sent(CHAT, lambda: spliced(chat(), "stop", list_of(b'"abc"', MOST)))),
    Row(
        "escapes only: 1.6 million of \\u0000",
        sent(CHAT, lambda: spliced(chat(), "user", b'"%s"' % repeated(b"\\u0000", MOST))),
    ),
    Row("input_tokens with 2,000 pictures", sent(f"{RESPONSES}/input_tokens", lambda: pictures(2_000))),
    Row("a response with 2,000 pictures", sent(RESPONSES, lambda: pictures(2_000))),
    Row("a forged compaction item of 9.9 MB", sent(RESPONSES, lambda: fenced("A" * MOST))),
    Row("2,000 earlier messages", sent(CHAT, lambda: earlier(2_000))),
    Row("2,000 earlier messages for Anthropic", sent(MESSAGES, lambda: spliced(earlier(2_000), "max_tokens", b"9"))),
    Row("60 silent readers of a run of 4 MB", partial(silent_readers, 60)),
    Row("40 silent clients of an answer of 9.9 MB", partial(silent_clients, 40)),
    Row("the page's views of a run of 9.9 MB", page_views),
    Row(
        "30 stored bodies of 9.9 MB in the queue",
        partial(queued, 30),
        settings={"NINELIVES_LIMITS_CONCURRENT_RUNS": "6"},
    ),
    Row("200 websockets of one key", partial(open_sockets, 200)),
    Row("websocket frames of 9.9 MB", big_frames),
    Row("500 streams at once", partial(crowd, 500)),
    Row("300 callers that leave", partial(leavers, 300)),
    Row("an upstream line of 50 MB", upstream_says("[[longline]]")),
    Row("an upstream that fails and quotes the key", upstream_says("[[status=500 leak]]")),
)
