"""The real Open WebUI in front of the real server in front of the scripted upstream, each a process of its own. Owns:
the start of all three, Open WebUI's settings, and killing the server and starting it again at its port, or leaving that
to its supervisor. Refuses to know: the page.

Open WebUI has two connections to the one server: its models are `chat.NAME` over Chat Completions and `responses.NAME`
over Responses. NAME is hermes-agent."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from lab.bench.machine import free_port
from tests.story.server import (
    KEY,
    ROOT,
    Client,
    Server,
    Upstream,
    start_server,
    start_supervised,
    start_upstream,
    wait_until,
)
from tests.supervisor.test_supervisor import kill_server

VENV = ROOT / ".venv-openwebui"
START_S = 300.0
Json = dict[str, Any]

WEBUI_SETTINGS = {
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "a secret of this test",
    "ENABLE_FORWARD_USER_INFO_HEADERS": "True",
    "ENABLE_OLLAMA_API": "False",
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "RAG_EMBEDDING_MODEL": "",
    "AUDIO_STT_ENGINE": "openai",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "True",
    "SCARF_NO_ANALYTICS": "True",
}


@dataclass
class OpenWebui:
    """Its process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@dataclass
class Rig:
    """All three. `server` is another process after a kill, at the same port and over the same data."""

    folder: Path
    upstream: Upstream
    server: Server
    webui: OpenWebui
    key: str = KEY
    """That of the connection."""
    users: dict[str, str] = field(default_factory=dict)
    """The ids of people with an account."""

    @property
    def url(self) -> str:
        """Of the page."""
        return self.webui.url

    def identity(self, person: str) -> dict[str, str]:
        """The headers with which Open WebUI asks for this person."""
        return {"authorization": f"Bearer {self.key}", "x-openwebui-user-id": self.users[person]}

    def runs_of(self, person: str) -> list[Json]:
        """The runs of a person, the newest first."""
        client = Client(self.server.port, self.identity(person))
        return list(client.get("/v1/runs?limit=100&order=desc").json()["data"])

    def kill(self) -> None:
        """kill -9 of the server, and wait until it is gone."""
        self.server.kill()

    def kill_under_the_supervisor(self) -> None:
        """kill -9 of the server, whose supervisor starts the next one."""
        kill_server(self.server)

    def restart(self) -> None:
        """The server again: same port, same data."""
        self.server = _ninelives(self.folder, self.upstream, self.server.port)

    def runs(self) -> list[Json]:
        """The stored runs, newest first."""
        return list(self.server.client.get("/v1/runs?limit=100&order=desc").json()["data"])

    def agent_calls(self, mark: str) -> list[Json]:
        """Model calls of agent runs about `mark`: they carry the agent's tools."""
        return [call for call in self.upstream.asked(mark) if call.get("tools")]

    def plain_calls(self, mark: str) -> list[Json]:
        """Model calls about `mark` that carry no tools: Open WebUI's own errands."""
        return [call for call in self.upstream.asked(mark) if not call.get("tools")]

    def stop(self) -> None:
        """End all three."""
        self.webui.stop()
        self.server.stop()
        self.upstream.process.stop()


def start(folder: Path, people: tuple[str, ...] = ()) -> Rig:
    """All three, ready. With `people`, Open WebUI has an account for each, and one connection that acts for them."""
    upstream = start_upstream(folder / "upstream")
    accounts = {"WEBUI_AUTH": "True", "BYPASS_MODEL_ACCESS_CONTROL": "True"} if people else {}
    return _joined(folder, upstream, _ninelives(folder, upstream, free_port()), people, accounts)


def start_kept(folder: Path, model_url: str = "") -> Rig:
    """The same with a server whose supervisor keeps model calls and clients. At `model_url` is another model, `local`,
    without tools. Open WebUI asks no model for titles and the like."""
    upstream = start_upstream(folder / "upstream")
    config = folder / "kept.toml"
    config.write_text(f'[profiles.local]\nmodel_url = "{model_url}"\ntools = []\n' if model_url else "")
    kept = {f"NINELIVES_SERVER_KEEP_{what}": "true" for what in ("CALLS", "CLIENTS")}
    server = start_supervised(folder / "ninelives", upstream.url, **kept, NINELIVES_CONFIG=str(config))
    errands = {f"ENABLE_{what}_GENERATION": "False" for what in ("TITLE", "TAGS", "FOLLOW_UP")}
    return _joined(folder, upstream, server, (), errands)


def _joined(folder: Path, upstream: Upstream, server: Server, people: tuple[str, ...], settings: dict[str, str]) -> Rig:
    """Open WebUI in front of the server."""
    rig = Rig(folder, upstream, server, start_open_webui(folder / "webui", settings))
    try:
        ready(rig.webui)
        client = Client(rig.webui.port, {}, ours=False)
        if people:
            rig.key = _key_of_the_front_end(server)
            rig.users, token = _accounts(client, people)
        else:
            token = client.post("/api/v1/auths/signin", {"email": "", "password": ""}).json()["token"]
        _connect(client, server, rig.key, token)
    except BaseException:
        rig.stop()
        raise
    return rig


def _ninelives(folder: Path, upstream: Upstream, port: int) -> Server:
    where = folder / "ninelives"
    where.mkdir(parents=True, exist_ok=True)
    rules = where / "rules.toml"
    rules.write_text('[[approvals]]\ntool = "write_file"\nask = "always"\nmatch = "to-be-asked"\n')
    return start_server(where, upstream.url, at=port, NINELIVES_CONFIG=str(rules))


def sign_in(person: str) -> str:
    """The password of a person."""
    return f"password-of-{person}"


def _key_of_the_front_end(server: Server) -> str:
    """Step 1 of docs/open-webui.md, "Several people"."""
    scopes = ["chat", "responses:read", "responses:write", "tools:approve"]
    asked = {"name": "Open WebUI", "owner": "team", "acts_for": "yes", "scopes": scopes}
    return str(server.client.post("/api/keys", asked).json()["key"])


def _accounts(webui: Client, people: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """An account for each; the first one is the admin. Their ids, and the admin's token."""
    users: dict[str, str] = {}
    token = ""
    for person in people:
        form = {"name": person, "email": f"{person}@example.org", "password": sign_in(person)}
        path, more = ("/api/v1/auths/add", {"role": "user"}) if token else ("/api/v1/auths/signup", {})
        made = webui.post(path, {**form, **more}, {"authorization": f"Bearer {token}"} if token else None)
        assert made.status == 200, made.body
        users[person], token = made.json()["id"], token or made.json()["token"]
    return users, token


def start_open_webui(where: Path, settings: dict[str, str]) -> OpenWebui:
    """Its process, at a free port, with these settings beside those of all tests."""
    where.mkdir(parents=True, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(where), "DATA_DIR": str(where / "data")}
    env |= {**WEBUI_SETTINGS, **settings}
    port = free_port()
    args = [str(VENV / "bin/open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (where / "log").open("wb") as log:
        process = subprocess.Popen(args, cwd=where, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return OpenWebui(process, port, where / "log")


def ready(webui: OpenWebui) -> None:
    """Wait until it listens."""

    def healthy() -> bool:
        assert webui.process.poll() is None, webui.log.read_text()[-2000:]
        try:
            return Client(webui.port, {}, ours=False).get("/health").status == 200
        except (OSError, HTTPException):
            return False

    wait_until(healthy, "Open WebUI listens", START_S, every=0.5)


def _connect(webui: Client, server: Server, key: str, token: str) -> None:
    """What an admin does by hand under Settings, Connections."""
    admin = {"authorization": f"Bearer {token}"}
    settings = {
        "ENABLE_OPENAI_API": True,
        "OPENAI_API_BASE_URLS": [f"{server.url}/v1"] * 2,
        "OPENAI_API_KEYS": [key] * 2,
        "OPENAI_API_CONFIGS": {
            "0": {"enable": True, "prefix_id": "chat"},
            "1": {"enable": True, "prefix_id": "responses", "api_type": "responses"},
        },
    }
    told = webui.post("/openai/config/update", settings, admin)
    assert told.status == 200, told.body
    seen = {"ui": {"showChangelog": False, "version": webui.get("/api/config").json()["version"]}}
    assert webui.post("/api/v1/users/user/settings/update", seen, admin).status == 200, "no news of its releases"
    known = [model["id"] for model in webui.get("/api/models?refresh=true", admin).json()["data"]]
    assert {"chat.hermes-agent", "responses.hermes-agent"} <= set(known), known
