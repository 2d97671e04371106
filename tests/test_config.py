"""Rules of ninelives/app/settings.py (A4, A8, F1, G16)."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ninelives.app.config_file import TrustList
from ninelives.app.keys import ConfigError, ensure_key, weakness
from ninelives.app.settings import OPTIONS, LoadedSettings, Settings, is_loopback, load
from ninelives.app.store import total_bytes

GOOD_KEY = "test-key-0123456789"


@pytest.fixture(autouse=True)
def empty_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def given(
    text: str | None = None, env: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> LoadedSettings:
    """Settings from a file with this text, this environment and these flags, and from nothing else."""
    path = None
    if text is not None:
        path = Path("given.toml")
        path.write_text(text, "utf-8")
    return load(path, {"HOME": str(Path("home").absolute()), **(env or {})}, flags or {})


def value(loaded: LoadedSettings, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(loaded.settings, section), name)


def refusal(*args: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        given(*args, **more)
    return str(caught.value)


# Defaults and docs

DEFAULTS: dict[str, object] = {
    "server.host": "127.0.0.1",
    "server.port": 8642,
    "server.key": None,
    "server.cors_origins": (),
    "server.data_dir": "~/.local/share/ninelives",
    "server.allowed_hosts": (),
    "server.model_name": "hermes-agent",
    "server.unknown_model": "default",
    "store.url": "",
    "store.direct_url": "",
    "store.prepared": True,
    "store.lanes": 2,
    "store.pool": 4,
    "store.wait_s": 30.0,
    "store.lease_s": 15.0,
    "server.worker": True,
    "server.replica": "",
    "store.hold_s": 10.0,
    "store.unstored_hours": 24.0,
    "store.durability": "normal",
    "store.max_responses": 10_000,
    "store.owner_bytes": 0,
    "store.total_bytes": "auto",
    "tools.workspace_bytes": 10 * 1024**3,
    "model.url": "",
    "model.api_key": None,
    "agent.max_rounds": 50,
    "agent.max_message_bytes": 4 * 1024 * 1024,
    "agent.tool_progress": "compatible",
    "agent.tool_items": "auto",
    "agent.output_event_bytes": 16384,
    "agent.store_false": "journal",
    "agent.resend_window_s": 900.0,
    "agent.resend_anonymous_s": 120.0,
    "tools.sandbox": "auto",
    "tools.workspace": "owner",
    "limits.concurrent_runs": 256,
    "limits.queue": 1024,
    "limits.queue_bytes": 1_073_741_824,
    "limits.queue_share": 0.75,
    "limits.body_bytes": 10_000_000,
    "limits.json_depth": 64,
    "limits.json_values": 100_000,
    "limits.parts": 2048,
    "limits.keepalive_s": 15.0,
    "limits.drain_s": 10.0,
    "limits.drain_notice_s": "auto",
    "limits.tool_timeout_s": 60.0,
    "limits.tool_output_bytes": 1024 * 1024,
    "limits.subscriber_bytes": 1024 * 1024,
    "limits.stall_s": 60.0,
    "limits.leave_grace_s": 2.0,
    "limits.chores": 8,
}


@pytest.mark.parametrize(("key", "default"), DEFAULTS.items())
def test_nothing_given_is_the_documented_default(key: str, default: object) -> None:
    loaded = given()
    assert value(loaded, key) == default
    assert loaded.origins[key] == "default"
    assert loaded.settings == Settings()


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_has_one_line_of_doc_what_it_takes_and_its_unit(option: Any) -> None:
    assert option.doc.endswith(".")
    assert "\n" not in option.doc
    assert option.allowed
    for ending, unit in (("_s", "seconds"), ("_bytes", "bytes")):
        assert not option.name.endswith(ending) or unit in option.doc


def test_the_data_directory_knows_home() -> None:
    assert Settings().server.data_path == Path.home() / ".local/share/ninelives"


ALLOWING = ("tool = '*'", "tool = 'write_file'", "tool = 'execute_code'", "tool = '*'\nfield = 'a'")


@pytest.mark.parametrize("rule", ALLOWING)
def test_a_rule_that_lets_calls_pass_must_say_which_value_it_reads(rule: str) -> None:
    words = refusal(f"[[approvals]]\n{rule}\nask = 'never'\nmatch = 'notes/.*'\n")
    assert "[[approvals]] tool " in words and 'field = "path"' in words and "given.toml" in words


@pytest.mark.parametrize("pattern", ["(", "[a", "a{99999999999}", "(?P<n>a)(?P<n>b)", "(" * 5000 + ")" * 5000])
def test_a_bad_pattern_of_an_approval_is_refused_in_one_line_that_names_it(pattern: str) -> None:
    words = refusal(f"[[approvals]]\ntool = 'terminal'\nask = 'always'\nmatch = '{pattern}'\n")
    assert "[[approvals]] tool terminal" in words
    assert "given.toml" in words
    assert "\n" not in words
    assert len(words) < 400


SLOW = ["(a+)+$", "(a|a)*b", "(x+x+)+y", "(a?){40}b", "a?" * 30 + "a" * 30, ".*a.*b.*c.*d", "(?=(a+)+b)"]


@pytest.mark.parametrize("pattern", SLOW)
@pytest.mark.parametrize("table", ["approvals", "clients"])
def test_a_pattern_that_can_take_minutes_is_refused_in_one_line_that_names_it(pattern: str, table: str) -> None:
    fields = "tool = 'terminal'\nask = 'always'\nmatch" if table == "approvals" else "name = 'n'\nagent"
    words = refusal(f"[[{table}]]\n{fields} = '{pattern}'\n")
    assert f"[[{table}]]" in words and "could take minutes" in words and "given.toml" in words
    assert "\n" not in words and len(words) < 400


@pytest.mark.parametrize(("text", "bound"), [("auto", "auto"), ("0", 0), ("1000000", 1_000_000)])
def test_total_bytes_is_auto_or_a_number(text: str, bound: object) -> None:
    assert value(given(env={"NINELIVES_STORE_TOTAL_BYTES": text}), "store.total_bytes") == bound
    written = f'"{text}"' if text == "auto" else text
    assert value(given(f"[store]\ntotal_bytes = {written}"), "store.total_bytes") == bound


@pytest.mark.parametrize("text", ["half", "-1", "1.5"])
def test_total_bytes_is_nothing_else(text: str) -> None:
    assert "auto, or a whole number of bytes" in refusal(env={"NINELIVES_STORE_TOTAL_BYTES": text})


def test_auto_is_half_of_the_disk_and_nothing_for_a_database(tmp_path: Path) -> None:
    here = {"server.data_dir": str(tmp_path)}
    disk = os.statvfs(tmp_path)
    assert total_bytes(Settings.load(here, env={})) == max(1 << 30, disk.f_blocks * disk.f_frsize // 2)
    there = {**here, "store.url": "postgresql://u@h/d"}
    assert total_bytes(Settings.load(there, env={})) == 0
    assert total_bytes(Settings.load({**there, "store.total_bytes": 5}, env={})) == 5


# Where values come from


@pytest.mark.parametrize(
    ("text", "env", "flags", "port", "origin"),
    [
        (None, {}, {}, 8642, "default"),
        ("[server]\nport = 1", {}, {}, 1, "file given.toml"),
        ("[server]\nport = 1", {"API_SERVER_PORT": "2"}, {}, 2, "env API_SERVER_PORT"),
        (None, {"API_SERVER_PORT": "2", "NINELIVES_SERVER_PORT": "3"}, {}, 3, "env NINELIVES_SERVER_PORT"),
        ("[server]\nport = 1", {"NINELIVES_SERVER_PORT": "3"}, {"server.port": 4}, 4, "command line"),
        ("[server]\nport = 1", {"NINELIVES_SERVER_PORT": ""}, {"server.port": None}, 1, "file given.toml"),
        (None, {}, {"server.port": "0"}, 0, "command line"),
    ],
)
def test_flags_win_over_env_over_file_over_default(
    text: str | None, env: dict[str, str], flags: dict[str, object], port: int, origin: str
) -> None:
    loaded = given(text, env, flags)
    assert (value(loaded, "server.port"), loaded.origins["server.port"]) == (port, origin)


ENV = [
    ("NINELIVES_MODEL_URL", "http://127.0.0.1:11434/v1", "model.url", "http://127.0.0.1:11434/v1"),
    ("NINELIVES_MODEL_API_KEY", "null", "model.api_key", "null"),
    ("NINELIVES_TOOLS_SANDBOX", "landlock", "tools.sandbox", "landlock"),
    ("NINELIVES_TOOLS_APPROVAL", "on-write", "tools.approval", "on-write"),
    ("NINELIVES_LIMITS_CONCURRENT_RUNS", " 7 ", "limits.concurrent_runs", 7),
    ("NINELIVES_LIMITS_KEEPALIVE_S", "0.5", "limits.keepalive_s", 0.5),
    ("NINELIVES_STORE_PREPARED", "true", "store.prepared", True),
    ("NINELIVES_STORE_PREPARED", "0", "store.prepared", False),
    ("NINELIVES_AGENT_STORE_FALSE", "memory", "agent.store_false", "memory"),
    ("NINELIVES_STORE_UNSTORED_HOURS", "0", "store.unstored_hours", 0.0),
    ("NINELIVES_LIMITS_LEAVE_GRACE_S", "0", "limits.leave_grace_s", 0.0),
    (
        "NINELIVES_SERVER_CORS_ORIGINS",
        "https://a.b, http://c:1,",
        "server.cors_origins",
        ("https://a.b", "http://c:1"),
    ),
    ("NINELIVES_SERVER_ALLOWED_HOSTS", "box.lan", "server.allowed_hosts", ("box.lan",)),
    ("NINELIVES_STORE_MAX_RESPONSES", "5", "store.max_responses", 5),
    ("API_SERVER_KEY", GOOD_KEY, "server.key", GOOD_KEY),
    ("API_SERVER_HOST", "localhost", "server.host", "localhost"),
    ("API_SERVER_PORT", "9000", "server.port", 9000),
    ("API_SERVER_CORS_ORIGINS", "*", "server.cors_origins", ("*",)),
    ("API_SERVER_MODEL_NAME", "my-agent", "server.model_name", "my-agent"),
    ("TAVILY_API_KEY", "tvly-0123456789abcdef", "web.tavily_key", "tvly-0123456789abcdef"),
]


@pytest.mark.parametrize(("name", "text", "key", "expected"), ENV)
def test_the_environment_is_read_by_name(name: str, text: str, key: str, expected: object) -> None:
    loaded = given(env={name: text})
    assert (value(loaded, key), loaded.origins[key]) == (expected, f"env {name}")


def test_every_option_can_be_given_in_the_environment() -> None:
    assert OPTIONS["limits.tool_timeout_s"].env == "NINELIVES_LIMITS_TOOL_TIMEOUT_S"
    assert len({option.env for option in OPTIONS.values()}) == len(OPTIONS)


def test_a_file_gives_values_of_every_type() -> None:
    loaded = given(
        """
        [server]
        cors_origins = ["https://a.b"]
        [store]
        durability = "full"
        [limits]
        drain_s = 3
        queue = 0
        [agent]
        store_false = "memory"
        [tools]
        """
    )
    assert value(loaded, "server.cors_origins") == ("https://a.b",)
    assert value(loaded, "store.durability") == "full"
    assert value(loaded, "limits.drain_s") == 3.0
    assert value(loaded, "limits.queue") == 0
    assert value(loaded, "agent.store_false") == "memory"


def test_a_path_on_the_command_line_is_taken(tmp_path: Path) -> None:
    assert given(flags={"server.data_dir": tmp_path}).settings.server.data_path == tmp_path


def write(path: str, port: int) -> Path:
    place = Path(path).absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"[server]\nport = {port}\n")
    return place


def trusted(file: Path) -> None:
    TrustList({"HOME": str(Path("home").absolute())}).add(file, file.read_bytes())


def test_the_file_is_the_named_one_then_the_trusted_one_of_the_directory_then_that_of_home() -> None:
    write("home/.config/ninelives/ninelives.toml", 1)
    assert value(given(), "server.port") == 1
    trusted(write("ninelives.toml", 2))
    assert value(given(), "server.port") == 2
    named = write("named.toml", 3)
    assert value(given(env={"NINELIVES_CONFIG": str(named)}), "server.port") == 3
    assert value(load(write("flag.toml", 4), {"NINELIVES_CONFIG": str(named)}, {}), "server.port") == 4


# What is refused

UNKNOWN = [
    ("[server]\nprot = 1", {}, "server.prot", "server.port", "given.toml"),
    ("[serve]\nport = 1", {}, "serve.port", "server.port", "given.toml"),
    ("[limits]\nport = 1", {}, "limits.port", "server.port", "given.toml"),
    ("port = 1", {}, "port", "server.port", "given.toml"),
    ("server = 1", {}, "server", "server.host", "given.toml"),
    ("[limits]\ntimeout_s = 1", {}, "limits.timeout_s", "limits.tool_timeout_s", "given.toml"),
    ("[zzzz]", {}, "zzzz", "config show", "given.toml"),
    (None, {"NINELIVES_SERVER_PROT": "1"}, "NINELIVES_SERVER_PROT", "NINELIVES_SERVER_PORT", "environment"),
    (None, {"NINELIVES_MODEL_URI": "1"}, "NINELIVES_MODEL_URI", "NINELIVES_MODEL_URL", "environment"),
    (None, {"NINELIVES_PORT": ""}, "NINELIVES_PORT", "NINELIVES_SERVER_PORT", "environment"),
]


@pytest.mark.parametrize(("text", "env", "name", "meant", "where"), UNKNOWN)
def test_an_unknown_name_is_refused_with_what_was_meant_and_where_it_stands(
    text: str | None, env: dict[str, str], name: str, meant: str, where: str
) -> None:
    message = refusal(text, env)
    assert f"no option {name} " in message
    assert meant in message.partition(")")[2]
    assert where in message


@pytest.mark.parametrize(
    ("text", "env", "instead"),
    [
        ("[agent]\ndurable_chat = true", {}, "by default"),
        (None, {"NINELIVES_AGENT_DURABLE_CHAT": "1"}, "by default"),
        ("[limits]\ndisconnect_grace_s = 1", {}, "limits.leave_grace_s"),
    ],
)
def test_an_option_that_was_removed_is_refused_with_what_to_do(
    text: str | None, env: dict[str, str], instead: str
) -> None:
    assert instead in refusal(text, env)


def test_a_weight_of_all_owners_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "ninelives.toml"
    config.write_text('[owners."*"]\nweight = 3\n')
    with pytest.raises(ConfigError, match="Set it for one owner"):
        load(config, {}, {})


def test_an_unknown_flag_is_refused() -> None:
    assert "server.port" in refusal(flags={"server.prot": 1})


def test_other_variables_are_none_of_our_business() -> None:
    assert given(env={"API_SERVER_ENABLED": "true", "PATH": "/bin", "OPENAI_API_KEY": "x"}).settings == Settings()


WRONG = [
    ('[server]\nport = "8642"', {}, ("server.port", "'8642'", "given.toml", "whole number")),
    ("[server]\nport = 70000", {}, ("server.port", "70000", "at most 65535")),
    ("[server]\nport = true", {}, ("server.port", "True")),
    ("[server]\ncors_origins = 'https://a.b'", {}, ("server.cors_origins", "exact origins")),
    ("[server]\ncors_origins = ['https://a.b/']", {}, ("server.cors_origins", "without a path")),
    ("[server]\ncors_origins = ['a.b']", {}, ("server.cors_origins",)),
    ("[server]\ncors_origins = ['https://*.a.b']", {}, ("server.cors_origins",)),
    ("[server]\nallowed_hosts = ['http://box.lan']", {}, ("server.allowed_hosts", "without scheme and port")),
    ("[server]\nhost = ''", {}, ("server.host", "not empty")),
    ("[server]\nhost = {a = 1}", {}, ("server.host",)),
    ("[store]\ndurability = 'half'", {}, ("store.durability", "'half'", "one of normal, full")),
    ("[model]\nurl = 'localhost:11434'", {}, ("model.url", "http://")),
    ("[limits]\nkeepalive_s = nan", {}, ("limits.keepalive_s", "seconds")),
    ("[limits]\nkeepalive_s = inf", {}, ("limits.keepalive_s", "seconds")),
    ("[limits]\nkeepalive_s = 0", {}, ("limits.keepalive_s", "more than 0")),
    ("[limits]\nbody_bytes = 1.5", {}, ("limits.body_bytes", "1.5", "bytes")),
    (None, {"NINELIVES_SERVER_PORT": "abc"}, ("server.port", "'abc'", "env NINELIVES_SERVER_PORT")),
    (None, {"API_SERVER_PORT": "-1"}, ("server.port", "'-1'", "env API_SERVER_PORT", "at least 0")),
    (None, {"NINELIVES_STORE_PREPARED": "maybe"}, ("store.prepared", "true or false")),
    ("[agent]\nstore_false = 'disk'", {}, ("agent.store_false", "one of journal, memory")),
    ("[store]\nunstored_hours = -1", {}, ("store.unstored_hours", "at least 0")),
    (None, {"NINELIVES_TOOLS_SANDBOX": "vm"}, ("tools.sandbox", "one of auto, landlock, docker, off")),
    (None, {"NINELIVES_LIMITS_QUEUE": "9" * 5000}, ("limits.queue",)),
    (None, {"NINELIVES_MODEL_NAME": "\udcff"}, ("model.name",)),
]


@pytest.mark.parametrize(("text", "env", "words"), WRONG)
def test_a_wrong_value_is_refused_with_its_name_value_origin_and_what_is_allowed(
    text: str | None, env: dict[str, str], words: tuple[str, ...]
) -> None:
    message = refusal(text, env)
    assert "Allowed: " in message
    assert "(from " in message
    assert [word for word in words if word not in message] == []


def test_a_wrong_value_is_refused_even_where_another_one_wins() -> None:
    assert "given.toml" in refusal("[server]\nport = 'x'", {"NINELIVES_SERVER_PORT": "1"})


def test_a_wrong_secret_is_not_told() -> None:
    assert "12345" not in refusal("[server]\nkey = 12345678901234567")
    assert "hunter2" not in refusal("[model]\nurl = 'ftp://me:hunter2@host/'")


@pytest.mark.parametrize("content", [b"[server", b"[server]\nport = 1\nport = 2", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused_by_name(content: bytes) -> None:
    Path("ninelives.toml").write_bytes(content)
    trusted(Path("ninelives.toml"))
    assert "ninelives.toml cannot be read" in refusal()


def test_a_named_file_must_exist() -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        load(Path("gone.toml"), {}, {})
    assert "other.toml" in refusal(env={"NINELIVES_CONFIG": "other.toml"})


# The key (A4)

WEAK = {
    "short": "k" * 3 + "abcdefghijkl",
    "one character": "a" * 32,
    "few characters": "abababababababab",
    "changeme": "changeme-changeme",
    "change-me": "please-change-me-now",
    "your-api-key": "your-api-key-goes-here",
    "YOUR_API_KEY": "<YOUR_API_KEY>!!",
    "sk-xxxx": "sk-xxxxxxxxxxxxxxxx",
    "sk-xxxx and more": "sk-xxxx-1234567890",
    "placeholder": "placeholder-012345",
    "password": "password12345678",
    "space": "a key with spaces in it",
    "not ASCII": "schlüssel-0123456789",
    "overlong": secrets.token_hex(300),
}


@pytest.mark.parametrize("key", WEAK.values(), ids=WEAK.keys())
@pytest.mark.parametrize("name", ["API_SERVER_KEY", "NINELIVES_SERVER_KEY"])
def test_a_weak_key_is_refused_with_how_to_make_one(name: str, key: str) -> None:
    message = refusal(env={name: key})
    assert f"env {name}" in message
    assert "token_urlsafe" in message
    assert key not in message


@pytest.mark.parametrize(
    "key", [GOOD_KEY, "sk-proj-9f8a7b6c5d4e3f2a", "0123456789abcdef", "VkOYy0HxlnJMk50_9cJGHdDVW5rwbs4Eom1qx8b9c2o"]
)
def test_a_decent_key_is_taken(key: str) -> None:
    assert given(env={"API_SERVER_KEY": key}).settings.server.key == key


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org"])
def test_beyond_loopback_a_key_must_be_given(host: str) -> None:
    message = refusal(flags={"server.host": host})
    assert host in message
    assert "API_SERVER_KEY" in message
    with_word = {"server.host": host, "server.key": GOOD_KEY, "server.allow_remote": True}
    assert given(flags=with_word).settings.server.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4"])
def test_beyond_loopback_an_explicit_word_must_be_said(host: str) -> None:
    message = refusal(flags={"server.host": host, "server.key": GOOD_KEY})
    assert host in message and "--allow-remote" in message and "NINELIVES_SERVER_ALLOW_REMOTE" in message
    assert given(flags={"server.host": host, "server.uds": "/tmp/s"}).settings.server.uds == "/tmp/s", "not listened on"


def test_a_unix_socket_has_no_tls_and_proxies_are_addresses() -> None:
    assert "server.uds" in refusal(flags={"server.uds": "s", "server.tls_cert": "c", "server.tls_key": "k"})
    for wrong in ("1.2.3", "10.0.0.0/99", "proxy.lan"):
        assert "trusted_proxies" in refusal(flags={"server.trusted_proxies": wrong})
    found = given(flags={"server.trusted_proxies": "10.0.0.0/8, ::1, unix"}).settings.server.trusted_proxies
    assert found == ("10.0.0.0/8", "::1", "unix")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("127.1", False),
        ("", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_is_this_machine_only(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# The key file


def test_without_a_key_one_is_made_once_for_the_owner_of_the_data_directory_only(tmp_path: Path) -> None:
    place = tmp_path / "new" / "data"
    key, created = ensure_key(None, place)
    assert (created, weakness(key)) == (True, None)
    assert stat.S_IMODE((place / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert ensure_key(None, place) == (key, False)


def test_a_given_key_leaves_no_file(tmp_path: Path) -> None:
    settings = given(env={"API_SERVER_KEY": GOOD_KEY}).settings
    assert ensure_key(settings.server.key, tmp_path / "data") == (GOOD_KEY, False)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o622, 0o777])
def test_a_key_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    ensure_key(None, tmp_path)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match=r"chmod 600 .*key"):
        ensure_key(None, tmp_path)


@pytest.mark.parametrize("content", [b"", b"short\n", b"changeme-changeme\n", b"\xff\xfe" * 20])
def test_a_key_file_without_a_good_key_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="key"):
        ensure_key(None, tmp_path)
    assert path.read_bytes() == content


def test_a_place_that_cannot_hold_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "key").mkdir(mode=0o700)
    (tmp_path / "link").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "link" / "key")
    for place in (tmp_path / "file", tmp_path / "file" / "below", tmp_path, tmp_path / "link"):
        with pytest.raises(ConfigError, match="cannot be used"):
            ensure_key(None, place)


# What is shown


def test_config_show_has_a_row_for_every_option_with_its_origin_and_doc() -> None:
    rows = {row.key: row for row in given(env={"API_SERVER_CORS_ORIGINS": "https://a.b,https://c.d"}).describe()}
    assert set(rows) == set(OPTIONS)
    assert rows["server.cors_origins"].value == "https://a.b,https://c.d"
    assert rows["server.cors_origins"].origin == "env API_SERVER_CORS_ORIGINS"
    assert rows["limits.drain_s"].doc.endswith("(seconds).")
    assert rows["server.key"].value == ""


SECRETS = {
    "NINELIVES_SERVER_KEY": f"{GOOD_KEY}-hunter2",
    "NINELIVES_MODEL_API_KEY": "hunter2",
    "NINELIVES_STORE_URL": "postgresql://me:hunter2@db:5432/ninelives?password=hunter2&sslmode=require",
    "NINELIVES_MODEL_URL": "http://me:hunter2@host/v1",
}


def test_no_secret_is_shown_in_rows_or_in_a_repr() -> None:
    loaded = given(env=SECRETS)
    rows = {row.key: row.value for row in loaded.describe()}
    assert rows["server.key"] == rows["model.api_key"] == "********"
    assert rows["store.url"] == "postgresql://me:********@db:5432/ninelives?password=********&sslmode=require"
    assert rows["model.url"] == "http://me:********@host/v1"
    shown = f"{loaded!r} {loaded.settings} {loaded.settings.server} {rows}"
    assert "hunter2" not in shown and "port='8642'" in shown, "all that is no secret is shown"
    assert loaded.settings.model.api_key == "hunter2"
