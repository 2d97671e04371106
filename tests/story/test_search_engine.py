"""web_search on a real server: off by default, on with a search engine, and nobody is asked about that engine (E2)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.story.server import Client, Upstream, start_server


class SearXNG(BaseHTTPRequestHandler):
    """Answers every search with one page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        found = {"title": "Kelp", "url": "https://kelp.example/", "content": "It holds fast."}
        self.wfile.write(json.dumps({"results": [found]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def searxng() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SearXNG) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(30)


def tools(client: Client) -> dict[str, dict[str, object]]:
    return {tool["name"]: tool for tool in client.get("/v1/toolsets").json()["data"][0]["details"]}


def test_e2_without_a_search_engine_there_is_no_web_search(client: Client) -> None:
    assert "web_fetch" in tools(client) and "web_search" not in tools(client)


def test_e2_a_configured_search_engine_is_asked_and_no_person(tmp_path: Path, upstream: Upstream, searxng: str) -> None:
    settings = {"NINELIVES_WEB_SEARXNG_URL": searxng, "NINELIVES_TOOLS_APPROVAL": "on-write"}
    server = start_server(tmp_path, upstream.url, **settings)
    try:
        tool = tools(server.client)["web_search"]
        assert (tool["effect"], tool["approval"]) == ("read", "network")
        body = {"input": '[[tools=web_search:{"query": "kelp"}]]'}
        answer = server.client.post("/v1/responses", body, {"x-tool-items": "function_call"}).json()
        (output,) = [item["output"] for item in answer["output"] if item["type"] == "function_call_output"]
        assert answer["status"] == "completed" and "1. Kelp\n   https://kelp.example/\n   It holds fast." in output
    finally:
        server.stop()
