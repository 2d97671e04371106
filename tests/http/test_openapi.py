"""/openapi.json and /docs (A3, A4): the document and the routes say the same, and both pages are open."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ninelives.app.assemble import Assembled, assemble
from ninelives.app.settings import load
from ninelives.dialects.chat.parse import ChatRequest
from ninelives.dialects.responses.parse import ResponsesRequest
from ninelives.http.describe.openapi import document, plain_path
from ninelives.http.describe.operations import DescribedRoute, Endpoint, Operation
from ninelives.http.routes.server import endpoints_of
from ninelives.models.scripted import ScriptedModel
from ninelives.observe.log import Log
from tests.asgi import call

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "docs-key-0123456789abcdef"
HOST = {"host": "127.0.0.1:8642"}
AUTH = {**HOST, "authorization": f"Bearer {KEY}"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def built(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Assembled]:
    data: Path = tmp_path_factory.mktemp("docs")
    flags = {"server.data_dir": str(data), "server.key": KEY, "tools.sandbox": "off"}
    made = await assemble(load(None, {"HOME": str(data)}, flags), KEY, Log(lambda: "", None), ScriptedModel())
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def doc(built: Assembled) -> dict[str, Any]:
    answer = await call(built.app, "GET", "/openapi.json", HOST)
    assert answer.status == 200, "open without a key (A4)"
    return dict(answer.json())


def operations(doc: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in doc["paths"].items() for method in methods}


async def test_the_document_names_every_route_and_no_other(built: Assembled, doc: dict[str, Any]) -> None:
    routes = endpoints_of(built.app.inside.app.routes)
    served = {(method, plain_path(path)) for method, path in routes if method != "HEAD"}
    told = operations(doc)
    assert served - told == set(), "make this route with an Endpoint in Routes.endpoints()"
    assert told - served == set(), "the document names a route that is not there"


async def test_capabilities_agree_with_the_document(built: Assembled, doc: dict[str, Any]) -> None:
    shown = (await call(built.app, "GET", "/v1/capabilities", AUTH)).json()["routes"]
    assert {tuple(each.split(" ", 1)) for each in shown if not each.startswith("HEAD ")} == operations(doc)


async def test_a_route_that_says_nothing_is_missing_and_one_entry_puts_it_there() -> None:
    async def silent(request: Request) -> Response:
        return Response()

    async def told(request: Request) -> Response:
        return Response()

    entry = Endpoint("GET", "/told/{id:path}", told, Operation(summary="A new one", answers={200: None}))
    made = document([Route("/silent", silent), DescribedRoute(entry, "New")], {"New": "A new API."})
    assert made["tags"] == [{"name": "New", "description": "A new API."}]
    assert operations(made) == {("GET", "/told/{id}")}


async def test_request_schemas_are_those_that_requests_are_decoded_with(doc: dict[str, Any]) -> None:
    schemas = doc["components"]["schemas"]
    for kind in (ResponsesRequest, ChatRequest):
        assert set(schemas[kind.__name__]["properties"]) == set(kind.__struct_fields__)
    assert schemas["ResponsesRequest"]["required"] == ["input"]
    assert {"type": "null"} not in schemas["ResponsesRequest"]["properties"]["input"]["anyOf"]


async def test_every_reference_leads_somewhere_and_every_id_is_its_own(doc: dict[str, Any]) -> None:
    text = str(doc)
    assert doc["openapi"].startswith("3.1")
    assert set(re.findall(r"#/components/schemas/([^']+)'", text)) == set(doc["components"]["schemas"])
    ids = [operation["operationId"] for methods in doc["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in doc["components"]["schemas"])


class Tags(HTMLParser):
    """Tags with attributes, ids and inner links; fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_docs_is_one_page_without_anything_from_elsewhere(built: Assembled, doc: dict[str, Any]) -> None:
    answer = await call(built.app, "GET", "/docs", HOST)
    assert answer.status == 200 and (answer.header("content-type") or "").startswith("text/html")
    assert "default-src 'none'" in (answer.header("content-security-policy") or "")
    page, tags = answer.body.decode(), Tags()
    tags.feed(page)
    assert not tags.open
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in tags.seen}
    assert not any("style" in attributes or "src" in attributes for _, attributes in tags.seen)
    assert "url(" not in page and "@import" not in page
    ids = {attributes["id"] for _, attributes in tags.seen if "id" in attributes}
    links = {attributes["href"] for tag, attributes in tags.seen if tag == "a"}
    assert {link[1:] for link in links if link and link.startswith("#")} <= ids
    for method, path in operations(doc):
        assert path in page and method in page
    assert {o["operationId"] for methods in doc["paths"].values() for o in methods.values()} <= ids
