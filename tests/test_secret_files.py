"""Secrets that stand in files: which one wins, and what is refused (F1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninelives.app.errors import ConfigError
from ninelives.app.settings import SECRET_ENV, LoadedSettings, load

KEY = "story-key-0123456789abcdef"


def _load(tmp_path: Path, **env: str) -> LoadedSettings:
    return load(None, {"HOME": str(tmp_path), **env}, {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{KEY}\n")
    return path


@pytest.mark.parametrize("name", ["API_SERVER_KEY", "NINELIVES_SERVER_KEY"])
def test_a_file_that_the_environment_names_holds_the_secret(tmp_path: Path, file: Path, name: str) -> None:
    loaded = _load(tmp_path, **{f"{name}_FILE": str(file)})
    assert loaded.settings.server.key == KEY and loaded.origins["server.key"] == f"env {name}_FILE"


def test_a_named_file_wins_over_a_credential_and_that_over_nothing(tmp_path: Path, file: Path) -> None:
    (tmp_path / "server.key").write_text("of-systemd-0123456789abcdef")
    env = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    loaded = _load(tmp_path, **env)
    assert loaded.settings.server.key == "of-systemd-0123456789abcdef"
    assert loaded.origins["server.key"] == "credential server.key" and loaded.settings.model.api_key is None
    assert _load(tmp_path, **env, API_SERVER_KEY_FILE=str(file)).settings.server.key == KEY
    assert _load(tmp_path, **env, API_SERVER_KEY=KEY).settings.server.key == KEY


def test_only_options_that_hold_a_secret_have_a_file(tmp_path: Path, file: Path) -> None:
    assert {"API_SERVER_KEY", "NINELIVES_MODEL_API_KEY", "NINELIVES_STORE_URL"} <= set(SECRET_ENV)
    with pytest.raises(ConfigError, match="NINELIVES_SERVER_PORT_FILE"):
        _load(tmp_path, NINELIVES_SERVER_PORT_FILE=str(file))


def test_a_secret_that_is_given_twice_is_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ConfigError, match="API_SERVER_KEY and API_SERVER_KEY_FILE are both set"):
        _load(tmp_path, API_SERVER_KEY=KEY, API_SERVER_KEY_FILE=str(file))


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"", "empty"), (b"\xff", "not text")])
def test_a_file_without_a_secret_is_refused_by_name(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "wrong"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"API_SERVER_KEY_FILE names .*wrong.*{why}"):
        _load(tmp_path, API_SERVER_KEY_FILE=str(path))
