"""An upstream that plays a scene: release notes, with tools. Owns: what the model says in each round. The round is the
number of results since the last message of the user, so a server that was killed hears the same again. Other requests
get an answer in Markdown. Refuses to know: the server."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PACE = float(os.environ.get("SCENE_PACE", "1"))
Json = dict[str, Any]
SCENE: list[tuple[str, list[tuple[str, Json]]]] = [
    (
        "I will look at the changelog and at the open issues first.",
        [("read_changelog", {"version": "2.4"}), ("search_issues", {"words": "release 2.4"})],
    ),
    ("Three features and nine fixes. Before I write, the tests must pass.", [("run_tests", {"suite": "release"})]),
    ("All 412 pass. I publish the draft now.", [("publish_draft", {"title": "Ninelives 2.4"})]),
]
LAST = """## Ninelives 2.4

**Runs that survive anything.** Forty-one commits, nine fixes and three features:

1. *Resume*: an answer goes on after a crash, in the same stream.
2. *Fork*: begin again from any step of a run.
3. *Approvals*: a call waits for you, even through a restart.

The tests pass (`412 passed`). I could not see whether the draft was published, so please look at it before you send it:

```sh
ninelives runs ls
```
"""
PLAIN = "Hello! I am a *scene*, not a model. Ask me to plan the **release notes**, and kill the server while I work."


def rounds(messages: list[Json]) -> int:
    """How many rounds of the scene are over."""
    since = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return sum(message["role"] == "assistant" for message in messages[since + 1 :])


def chunks(messages: list[Json]) -> Iterator[Json]:
    """The pieces of the next message."""
    said = json.dumps([message.get("content") for message in messages if message["role"] == "user"])
    at = rounds(messages)
    text, calls = (LAST, []) if at >= len(SCENE) else SCENE[at]
    if "release notes" not in said:
        text, calls = PLAIN, []
    for n, word in enumerate(text.split(" ")):
        time.sleep((0.9 if n == 0 else 0.05) * PACE)
        yield {"content": word if n == 0 else f" {word}"}
    for n, (name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": json.dumps(arguments).replace("2.4", _version(said))}
        yield {"tool_calls": [{"index": n, "id": f"c{at}{n}", "type": "function", "function": function}]}


def _version(said: str) -> str:
    """The version that the user named last."""
    return (re.findall(r"version (\d\.\d)", said) or ["2.4"])[-1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "scene", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        size, finish = len(json.dumps(asked["messages"])) // 4, "stop"
        try:
            pieces = 0
            for delta in chunks(asked["messages"]):
                pieces += 1
                finish = "tool_calls" if "tool_calls" in delta else finish
                self._say({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            usage = {"prompt_tokens": size, "completion_tokens": pieces, "total_tokens": size + pieces}
            self._say({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.close_connection = True  # the server was killed

    def _say(self, chunk: Json) -> None:
        self.wfile.write(f"data: {json.dumps({'object': 'chat.completion.chunk', **chunk})}\n\n".encode())
        self.wfile.flush()


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
