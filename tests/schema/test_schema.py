"""The document is honest (A7): a bounded run of schemathesis, and every success of every route, held against it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ninelives.dialects import DIALECTS
from tests.schema.fuzz import Extent, fuzz
from tests.story.responses import finished, started
from tests.story.server import Client, Server, start_demo, wait_until

Json = dict[str, Any]


def test_schemathesis_finds_no_5xx_and_no_answer_that_the_document_does_not_have(tmp_path: Path) -> None:
    """A few requests of the routes that start runs; `make test-schema` tries all."""
    creating = r"^/v1/(chat/completions|responses|messages|runs)$"
    report = fuzz(tmp_path, Extent("examples,fuzzing", 3, creating))
    made = [int(each) for each in re.findall(r"(\d+) generated", report)]
    assert len(made) == 2 and min(made) >= 10, report[-2000:]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = start_demo(tmp_path_factory.mktemp("schema"))
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def doc(server: Server) -> Json:
    return dict(server.anonymous.get("/openapi.json").json())


OPEN = {"StoredItem", "OpenApi", "SessionMessage"}
"""Objects that have fields of a caller, or of another document, beside the described ones."""


def closed(components: Json) -> Json:
    """The same components, without room for a field that they do not describe."""
    shut = {name: {**schema, "additionalProperties": False} for name, schema in components["schemas"].items()}
    return {"schemas": {name: components["schemas"][name] if name in OPEN else shut[name] for name in shut}}


class Sayer:
    """Calls a route and holds what comes back against the document."""

    def __init__(self, client: Client, doc: Json) -> None:
        self._client = client
        self._doc = doc
        self.called: set[tuple[str, str]] = set()

    def __call__(self, method: str, route: str, body: Any = None, headers: Json | None = None, **ids: str) -> Any:
        path, _, query = route.partition("?")
        answer = self._client.call(method, path.format(**ids) + ("?" + query if query else ""), body, headers)
        told = self._doc["paths"][path][method.lower()]["responses"]
        assert str(answer.status) in told and answer.status < 300, (route, answer.status, answer.body)
        media = answer.headers["content-type"].split(";")[0]
        schema = told[str(answer.status)]["content"][media]["schema"]
        if media == "application/json":
            self.check(schema, answer.json())
        self.called.add((method, path))
        return answer.json() if media == "application/json" else answer.body

    def check(self, schema: Json, value: Any) -> None:
        """Valid, or an assertion."""
        whole = {**schema, "components": closed(self._doc["components"])}
        problems = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(whole).iter_errors(value)]
        assert not problems, problems


def test_every_success_of_every_route_is_as_the_document_says(server: Server, doc: Json) -> None:
    client = server.client
    say = Sayer(client, doc)
    session = {"x-hermes-session-id": "schema-session"}
    response = say("POST", "/v1/responses", {"input": "search for notes", "metadata": {"a": "b"}}, session)
    say("POST", "/v1/responses", {"input": "hi", "store": False, "reasoning": {"effort": "low"}, "tools": []})
    queued = say("POST", "/v1/responses", {"input": "hi", "background": True, "conversation": "talk"})
    chat = say("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "store": True})
    run = say("POST", "/v1/runs", {"input": "hi"})
    wait_until(lambda: client.get(f"/v1/runs/{run['run_id']}").json()["status"] == "completed", "the run ends")
    for path in ("/v1/responses/{id}", "/v1/responses/{id}/input_items", "/v1/responses/{id}?stream=true"):
        say("GET", path, id=response["id"])
    say("GET", "/v1/responses/{id}", id=queued["id"])
    say("POST", "/v1/responses/{id}/cancel", id=queued["id"])
    for path in ("/v1/chat/completions/{id}", "/v1/chat/completions/{id}/messages"):
        say("GET", path, id=chat["id"])
    say("GET", "/v1/chat/completions")
    say("POST", "/v1/chat/completions/{id}", {"metadata": {"x": "y"}}, id=chat["id"])
    for path in ("/v1/runs/{id}", "/v1/runs/{id}/events", "/v1/runs/{id}/receipt"):
        for shown in (run["run_id"], response["id"], chat["id"], queued["id"]):
            say("GET", path, id=shown)
    say("POST", "/v1/runs/{id}/stop", id=run["run_id"])
    say("POST", "/v1/runs/{id}/fork", {"from_seq": 1}, id=run["run_id"])
    say("GET", "/v1/runs?output_chars=1")
    say("GET", "/")
    say("GET", "/static/{id}", id="page.js")
    for method in ("POST", "DELETE"):
        say(method, "/v1/runs/{id}/pin", id=run["run_id"])
    for path in ("/v1/runs", "/v1/runs?status=completed&limit=1", "/api/sessions", "/v1/models", "/v1/toolsets"):
        say("GET", path)
    open_paths = ("/livez", "/readyz", "/health", "/v1/health", "/health/detailed", "/openapi.json", "/docs")
    for path in (*open_paths, "/v1/capabilities", "/api/status", "/api/model/options", "/v1/skills"):
        say("GET", path)
    say("GET", "/v1/models/{id}", id="hermes-agent")
    for path in ("/api/sessions/{id}", "/api/sessions/{id}/messages", "/api/sessions/{id}/export"):
        say("GET", path, id="schema-session")
    empty = say("POST", "/api/sessions", {"title": "Empty"})
    say("POST", "/api/sessions/{id}/model", {"model": "hermes-agent"}, id="schema-session")
    say("POST", "/api/sessions/{id}/chat", {"message": "hi"}, id="schema-session")
    say("POST", "/api/sessions/{id}/chat/stream", {"message": "hi"}, id="schema-session")
    say("PATCH", "/api/sessions/{id}", {"title": "Notes"}, id="schema-session")
    say("POST", "/api/sessions/{id}/fork", id="schema-session")
    say("DELETE", "/api/sessions/{id}", id=empty["id"])
    key = say("POST", "/api/keys", {"name": "n", "expires_in_s": 60, "limits": {"runs": 1}})
    say("GET", "/api/keys")
    say("GET", "/api/keys/{id}", id=key["id"])
    say("PATCH", "/api/keys/{id}", {"limits": None, "expires_at": None}, id=key["id"])
    say("POST", "/api/keys/{id}/rotate", id=key["id"])
    say("DELETE", "/api/keys/{id}", id=key["id"])
    say("GET", "/api/audit?action=key&limit=2")
    say("GET", "/api/usage")
    say("POST", "/v1/responses/input_tokens", {"input": "hi"})
    say("POST", "/v1/responses/compact", {"model": "hermes-agent", "input": "hi"})
    words = {"model": "hermes-agent", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    say("POST", "/v1/completions", {"prompt": "hi"})
    say("POST", "/v1/messages", words)
    say("POST", "/v1/messages/count_tokens", words)
    items = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    talk = say("POST", "/v1/conversations", {"items": items, "metadata": {"a": "b"}})
    say("GET", "/v1/conversations")
    say("POST", "/v1/conversations/{id}", {"metadata": {"x": "y"}}, id=talk["id"])
    say("GET", "/v1/conversations/{id}", id=talk["id"])
    added = say("POST", "/v1/conversations/{id}/items", {"items": items}, id=talk["id"])
    say("GET", "/v1/conversations/{id}/items", id=talk["id"])
    for method in ("GET", "DELETE"):
        say(method, "/v1/conversations/{id}/items/{item}", id=talk["id"], item=added["data"][0]["id"])
    say("DELETE", "/v1/conversations/{id}", id=talk["id"])
    say("DELETE", "/v1/responses/{id}", id=response["id"])
    say("DELETE", "/v1/chat/completions/{id}", id=chat["id"])
    page_routes(say, run["run_id"])
    told = {(method.upper(), path) for path, methods in doc["paths"].items() for method in methods}
    elsewhere = {
        ("GET", "/v1/responses"),  # a websocket: tests/story/test_websocket.py
        ("POST", "/v1/runs/{id}/approval"),  # these need a question, or a run that works: below
        ("POST", "/v1/runs/{id}/steer"),
        ("GET", "/v1/approvals"),
        ("DELETE", "/v1/approvals/{id}"),
        ("GET", "/api/elsewhere/health"),  # needs a second server: tests/story/test_elsewhere.py
    }
    assert told - say.called - elsewhere == set(), "call the new route here too"


def page_routes(say: Sayer, run: str) -> None:
    """What the web page and a scraper ask."""
    for path in ("/metrics", "/api/exit", "/api/elsewhere", "/api/runs", "/api/runs?q=status:completed&limit=1"):
        say("GET", path)
    timeline = say("GET", "/api/runs/{id}/timeline", id=run)
    for step in timeline["steps"]:
        say("GET", "/api/runs/{id}/steps/{seq}", id=run, seq=str(step["seq"]))
    say("GET", "/api/runs/{id}/conversation", id=run)
    for entry in say("GET", "/api/runs/{id}/entries", id=run)["data"]:
        say("GET", "/api/runs/{id}/entries/{seq}", id=run, seq=str(entry["seq"]))
        say("GET", "/api/runs/{id}/request/{seq}", id=run, seq=str(entry["seq"]))
    for api in (name for name, dialect in DIALECTS.items() if dialect.renders):
        say("GET", "/api/runs/{id}/as/{api}", id=run, api=api)
    say("POST", "/api/markdown", {"texts": ["**Hello** [there](https://example.com)", "- a"]})


def test_a_response_in_any_state_fits_its_schema(tmp_path: Path) -> None:
    server = start_demo(tmp_path, NINELIVES_TOOLS_APPROVAL="always")
    try:
        client = server.client
        doc = client.get("/openapi.json").json()
        say, shape = Sayer(client, doc), {"$ref": "#/components/schemas/Response"}
        shown = started(client, "search for notes")
        with client.stream(f"/v1/responses/{shown}?stream=true") as stream:
            for frame in stream:
                if "response" in frame.data:
                    say.check(shape, frame.data["response"])
                if frame.name == "response.output_item.done":
                    break
        wait_until(
            lambda: client.get(f"/v1/runs/{shown}").json()["status"] == "waiting_for_approval", "a question is asked"
        )
        say("GET", "/v1/runs/{id}", id=shown)
        say("GET", "/v1/responses/{id}", id=shown)
        say("POST", "/v1/runs/{id}/steer", {"input": "search for notes"}, id=shown)
        say("GET", "/v1/runs/{id}", id=shown)
        say("POST", "/v1/runs/{id}/approval", {"choice": "always"}, id=shown)
        finished(client, shown)
        (grant,) = say("GET", "/v1/approvals")["data"]
        say("DELETE", "/v1/approvals/{id}", id=grant["id"])
        say("GET", "/v1/runs/{id}/receipt", id=shown)
        with client.stream(f"/v1/responses/{shown}?stream=true") as stream:
            for frame in stream.rest():
                if "response" in frame.data:
                    say.check(shape, frame.data["response"])
    finally:
        assert server.stop() == 0


def test_an_error_has_the_shape_of_an_error(server: Server, doc: Json) -> None:
    for answer in (
        server.anonymous.get("/v1/models"),
        server.client.get("/v1/runs/none"),
        server.client.post("/v1/responses", b"{"),
        server.client.get("/v1/responses"),
    ):
        whole = {"$ref": "#/components/schemas/Error", "components": doc["components"]}
        Draft202012Validator(whole).validate(json.loads(answer.body))
