"""The health of a server elsewhere: who may ask for it, where, and how little of an answer is passed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote

import pytest

from ninelives.http.routes.page.elsewhere import origin_of
from tests.story.server import Client, Server, Upstream, start_server

pytestmark = pytest.mark.xdist_group("processes")
LIST, HEALTH = "/api/elsewhere", "/api/elsewhere/health"


class Elsewhere(BaseHTTPRequestHandler):
    """Answers as the class says, and notes what it was asked."""

    answers: dict[str, tuple[int, str]]
    asked: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        status, body = self.answers.get(self.path, (404, "{}"))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def other(**answers: tuple[int, str]) -> Iterator[tuple[str, type[Elsewhere]]]:
    """A server elsewhere, with its URL."""
    paths = {f"/{name.replace('_', '/')}": answer for name, answer in answers.items()}
    kind = type("Other", (Elsewhere,), {"answers": paths, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as made:
        thread = Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}", kind
        finally:
            made.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, tuple[str, type[Elsewhere]]]]:
    ours = {
        "server": "ninelives",
        "version": "9.9",
        "status": "ok",
        "uptime_s": 5.5,
        "store": {"kind": "sqlite", "reachable": True, "writable": True, "trouble": None},
        "admin": {"data_dir": "/secret"},
        "note": "not for anybody",
    }
    plain = {"status": "healthy", "token": "secret"}
    with (
        other(health_detailed=(200, json.dumps(ours))) as ninelives,
        other(health=(200, json.dumps(plain))) as simple,
        other(health_detailed=(302, "http://169.254.169.254/latest")) as redirects,
        other(health_detailed=(200, "<html>"), health=(200, '["status"]')) as page,
        other(health_detailed=(200, json.dumps(ours))) as unnamed,
    ):
        yield {"ninelives": ninelives, "simple": simple, "redirects": redirects, "page": page, "unnamed": unnamed}


@pytest.fixture(scope="module")
def asking(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, places: dict[str, tuple[str, type[Elsewhere]]]
) -> Iterator[Server]:
    named = ",".join(url for name, (url, _) in places.items() if name != "unnamed")
    server = start_server(tmp_path_factory.mktemp("asking"), upstream.url, NINELIVES_SERVER_ELSEWHERE=named)
    yield server
    assert server.stop() == 0


def asked(server: Server, url: str) -> tuple[int, dict[str, object]]:
    answer = server.client.get(f"{HEALTH}?url={quote(url, safe='')}")
    return answer.status, answer.json()


def test_the_health_of_a_named_server_is_shown_by_known_fields_only(
    asking: Server, places: dict[str, tuple[str, type[Elsewhere]]]
) -> None:
    url, kind = places["ninelives"]
    status, shown = asked(asking, f"{url}/v1")
    assert (status, shown["url"]) == (200, url)
    health = shown["health"]
    assert isinstance(health, dict) and (health["status"], health["version"], health["uptime_s"]) == ("ok", "9.9", 5.5)
    assert "secret" not in json.dumps(shown) and "not for anybody" not in json.dumps(shown)
    path, headers = kind.asked[-1]
    assert path == "/health/detailed" and not headers.keys() & {"authorization", "cookie", "referer"}


def test_a_server_of_another_kind_is_asked_for_its_plain_health(
    asking: Server, places: dict[str, tuple[str, type[Elsewhere]]]
) -> None:
    url, kind = places["simple"]
    status, shown = asked(asking, url)
    assert status == 200 and "secret" not in json.dumps(shown)
    assert [path for path, _ in kind.asked] == ["/health/detailed", "/health"]


@pytest.mark.parametrize(("name", "says"), [("redirects", "redirects"), ("page", "not with the health of a server")])
def test_redirects_are_not_followed_and_other_answers_not_shown(
    name: str, says: str, asking: Server, places: dict[str, tuple[str, type[Elsewhere]]]
) -> None:
    status, shown = asked(asking, places[name][0])
    assert status == 502 and says in json.dumps(shown) and "<html>" not in json.dumps(shown)


def test_a_private_address_that_nobody_named_is_not_asked_and_the_remedy_is_told(
    asking: Server, places: dict[str, tuple[str, type[Elsewhere]]]
) -> None:
    url, kind = places["unnamed"]
    for address in (url, url.replace("127.0.0.1", "localhost"), url.replace("127.0.0.1", "[::ffff:7f00:1]")):
        status, shown = asked(asking, address)
        assert status == 502 and "server.elsewhere" in json.dumps(shown), shown
    assert kind.asked == []


@pytest.mark.parametrize("url", ["", "ftp://a", "file:///etc/passwd", "http://", "http://u:p@127.0.0.1", "http://[1"])
def test_what_is_no_address_of_a_server_is_refused(url: str, asking: Server) -> None:
    assert asked(asking, url)[0] == 400


def test_only_an_admin_key_may_ask(asking: Server, places: dict[str, tuple[str, type[Elsewhere]]]) -> None:
    made = asking.client.post("/api/keys", {"name": "reader", "scopes": ["responses:read", "responses:write", "chat"]})
    reader = Client(asking.port, {"authorization": f"Bearer {made.json()['key']}"})
    assert [reader.get(path).status for path in (LIST, f"{HEALTH}?url={places['ninelives'][0]}")] == [403, 403]
    assert Client(asking.port, {}).get(LIST).status == 401
    listed = asking.client.get(LIST).json()["data"]
    assert listed == [url for name, (url, _) in places.items() if name != "unnamed"]


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin_of("https://Agents.example.org/v1/health?x=1") == "https://agents.example.org:443"
    assert origin_of("http://[::1]:8642/") == "http://[::1]:8642"
