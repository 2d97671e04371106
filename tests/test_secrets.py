"""No secret that the process knows is in a log line, an error or a stored failure. One event is one line. A key goes
to the origin that it was configured for."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ninelives import Settings, Turn, create_app
from ninelives.app.agents import _model_of, keyless_profiles, same_origin
from ninelives.app.known_secrets import known_secrets
from ninelives.app.settings import load
from ninelives.core.errors import AgentError
from ninelives.observe.log import LibraryHandler, Log, Secrets, printable
from tests.story.server import _environment, _started, start_upstream, wait_until
from tests.test_extensions import KEY, ask

CONFIG = """
[server]
key = "the-admin-key-0123456789"
[model]
url = "https://me:pass-in-url@one.example/v1?api_key=query-secret"
api_key = "model-key-abc"
[profiles.p]
model_api_key = "profile-key-abc"
model_url = "https://two.example/v1"
[mcp.a]
command = "x"
args = ["--token", "arg-token-1", "--api-key=arg-token-2", "--verbose", "harmless"]
env = { SHOP_TOKEN = "env-token", PLAIN = "short", LONG = "a-long-value-of-an-env" }
[mcp.b]
url = "https://mcp.example/?token=mcp-url-token"
headers = { Authorization = "Bearer mcp-header-token" }
"""
HIDDEN = (
    *("the-admin-key-0123456789", "pass-in-url", "query-secret", "model-key-abc", "profile-key-abc", "arg-token-1"),
    *("arg-token-2", "env-token", "a-long-value-of-an-env", "mcp-url-token", "mcp-header-token"),
)
ENVIRONMENT = {
    "OPENAI_API_KEY": "sk-found-in-the-environment",
    "PGPASSWORD": "database-password",
    "DATABASE_URL": "postgres://me:password-of-a-url@host/db",
    "GITHUB_TOKEN": "ghp_0123456789",
}
SHOWN = {"PWD": "/work/project-folder", "GIT_AUTHOR_NAME": "Ada Lovelace", "KEYBOARD_LAYOUT": "us-international"}


def test_every_secret_of_the_settings_and_the_environment_is_known(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(CONFIG)
    known = known_secrets(load(file, {"HOME": str(tmp_path)}, {}).settings, {**ENVIRONMENT, **SHOWN})
    hidden = Secrets(known)
    for text in (*HIDDEN, *ENVIRONMENT.values()):
        assert "[secret]" in hidden.mask(f"x {text} y"), text
    for text in (*SHOWN.values(), "harmless", "short", "--verbose", "one.example"):
        assert hidden.mask(text) == text


def lines(write: Any, *, json_lines: bool, secrets: tuple[str, ...] = ()) -> list[str]:
    out = io.StringIO(newline="")
    write(Log(lambda: "now", out, json=json_lines, secrets=secrets))
    return out.getvalue().split("\n")[:-1]


HOSTILE = "a\nb\r\x1b[31mred\x1b]0;title\x07\u202eright\u2028line\x85next\x9bcsi\ud800half\x00\x7f\U000e0001"


@pytest.mark.parametrize("json_lines", [False, True])
def test_one_event_is_one_line_of_printable_characters(json_lines: bool) -> None:
    (line,) = lines(lambda log: log.info("said", reason=HOSTILE, more={"x": "\u202e"}), json_lines=json_lines)
    assert line.isprintable() and "red" in line and "next" in line
    if json_lines:
        assert json.loads(line)["reason"].startswith("a\nb\r\x1b[31mred")


@pytest.mark.parametrize("json_lines", [False, True])
@pytest.mark.parametrize("secret", ["plain-secret", 'quo"te\\d-secret', "ünïcode secret", "line\nbreak-secret"])
def test_a_secret_is_hidden_in_each_form_that_it_takes(json_lines: bool, secret: str) -> None:
    error = ValueError(f"bad key {secret}")

    def write(log: Log) -> None:
        log.error("failed", error=repr(error), text=secret, url=f"http://h/?k={secret}", more=[secret])

    (line,) = lines(write, json_lines=json_lines, secrets=(secret,))
    assert "secret]" in line and "-secret" not in line and " secret" not in line.replace("[secret]", ""), line


def test_of_two_secrets_of_which_one_begins_the_other_nothing_is_left() -> None:
    hidden = Secrets(["abcd", "abcdef", "abcdefgh"])
    assert hidden.mask("abcdefgh abcdef abcd") == "[secret] [secret] [secret]"


def test_lines_of_libraries_follow_the_same_rules() -> None:
    def write(log: Log) -> None:
        handler = LibraryHandler(log)
        handler.handle(logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, "key %s\n\x1b", ("s3cret-key",), None))

    (line,) = lines(write, json_lines=False, secrets=("s3cret-key",))
    assert line.isprintable() and "s3cret" not in line and "source=uvicorn.error" in line


def test_text_that_is_printable_stays_as_it_is() -> None:
    assert printable("Grüße, 世界 🙂") == "Grüße, 世界 🙂"
    assert printable("a\tb\nc\x1b", keep="\n\t") == "a\tb\nc\\x1b"


class Telling:
    """An agent whose error has a secret in it."""

    resumable = False

    async def run(self, turn: Turn) -> AsyncIterator[Any]:
        raise AgentError("told", "the MCP server said: env-token is wrong")
        yield

    async def end_leftovers(self, *_: Any) -> None: ...


async def test_the_failure_of_a_run_is_stored_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[mcp.a]\ncommand = "true"\nenv = { SHOP_TOKEN = "env-token" }\n')
    base = {"server.data_dir": str(tmp_path / "data"), "server.key": KEY, "tools.sandbox": "off"}
    settings = Settings.load(base, config=tmp_path / "a.toml", env={"HOME": str(tmp_path)})
    app = create_app(settings, agents={"telling": Telling()})  # type: ignore[dict-item]
    async with app.running():
        body = {"model": "telling", "input": "x"}
        answer = await ask(app, "/v1/responses", body)
    assert answer["status"] == "failed" and "the MCP server said: [secret]" in answer["error"]["message"], answer


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("https://a.example/v1", "https://A.example:443/other", True),
        ("https://a.example/v1", "http://a.example/v1", False),
        ("https://a.example/v1", "https://a.example:8443/v1", False),
        ("https://a.example/v1", "https://a.example.evil/v1", False),
        ("https://a.example@evil.example/", "https://a.example/", False),
        ("https://a.example:x/", "https://a.example/", False),
        ("bedrock:eu", "bedrock:us", True),
        ("bedrock:eu", "https://a.example/", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(one: str, two: str, same: bool) -> None:
    assert same_origin(one, two) == same_origin(two, one) == same


def test_a_profile_inherits_the_key_of_the_model_only_for_the_same_origin(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[model]\nurl = "https://one.example/v1"\napi_key = "model-key-abc"\n'
        '[profiles.same]\nmodel_url = "https://one.example/v2"\n'
        '[profiles.named]\nmodel_name = "big"\n'
        '[profiles.other]\nmodel_url = "https://two.example/v1"\n'
        '[profiles.own]\nmodel_url = "https://two.example/v1"\nmodel_api_key = "own-key-abc"\n'
    )
    settings = load(tmp_path / "a.toml", {"HOME": str(tmp_path)}, {}).settings
    models: Any = {name: _model_of(settings, table, None) for name, table in settings.tables.profiles.items()}
    keys = {name: model._upstream.api_key for name, model in models.items()}
    assert keys == {"same": "model-key-abc", "named": "model-key-abc", "other": "", "own": "own-key-abc"}
    assert keyless_profiles(settings) == ["other"]


def test_a_server_says_which_profile_has_no_key_and_never_prints_the_one_of_openai_api_key(
    tmp_path: Path,
) -> None:
    secret = "sk-found-in-the-environment"
    upstream = start_upstream(tmp_path / "upstream")
    (tmp_path / "a.toml").write_text(
        f'[model]\nurl = "{upstream.url}"\napi_key = "model-key-abc"\n[profiles.other]\nmodel_url = "http://[::1]:1/v1"\n'
        f'[tools]\nmodules = ["{tmp_path}/telling.py"]\nsandbox = "off"\napproval = "never"\n'
    )
    (tmp_path / "telling.py").write_text(
        "import logging\nfrom ninelives import tool\n@tool(effect='read')\ndef tell() -> str:\n"
        f"    'Tells.'\n    logging.getLogger('lib').error('the key is %s', {secret!r})\n    return 'told'\n"
    )
    env = {**_environment(tmp_path), "OPENAI_API_KEY": secret, "NINELIVES_CONFIG": str(tmp_path / "a.toml")}
    words = ["ninelives", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    server = _started(tmp_path, words, env, tmp_path / "data")
    try:
        body = {"model": "hermes-agent", "messages": [{"role": "user", "content": "[[tools=tell:{}]]"}]}
        assert server.client.post("/v1/chat/completions", body).status == 200
        wait_until(lambda: "the key is" in server.log(), "the line of the library", 60)
    finally:
        assert server.stop() == 0
        upstream.process.stop()
    assert "profile_without_key" in server.log() and '"profile":"other"' in server.log()
    assert secret not in server.log() and "the key is [secret]" in server.log()


def test_a_stored_key_is_hidden_by_its_form_and_its_id_is_seen() -> None:
    secret = f"nl_0123456789ab_{'s' * 43}"
    for line in (f"path=/v1/models?key={secret}", f"x {secret}", f'{{"authorization":"Bearer {secret}"}}'):
        hidden = Secrets().mask(line)
        assert "s" * 43 not in hidden and "nl_0123456789ab_[secret]" in hidden
    assert Secrets().mask("nl_not_a_key") == "nl_not_a_key"
