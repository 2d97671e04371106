"""What `ninelives chat` remembers between two starts. Owns: the file with the last session and run of each server.
Refuses to know: what was said there (the server has it)."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from pathlib import Path

from ninelives.cli.shared import settings_from

FILE = Path("~/.local/state/ninelives/chat.json")


class ChatPlace:
    """One session, and the run that was followed last in it."""

    def __init__(self, file: Path, server: str, session: str, run: str, *, resumed: bool) -> None:
        self._file = file
        self._server = server
        self.session = session
        self.run = run
        self.resumed = resumed

    def remember(self, session: str, run: str) -> None:
        """Store the place. A terminal without a home forgets it."""
        self.session, self.run = session, run
        with suppress(OSError):
            known = {**_known(self._file), self._server: {"session": session, "run": run}}
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self._file.with_name(f"{self._file.name}.{secrets.token_hex(4)}")
            draft.write_text(json.dumps(known))
            draft.replace(self._file)


class ChatMemory:
    """The last session of each server. A server is named by its URL, or by its data directory."""

    def __init__(self, url: str | None) -> None:
        self._server = url or str(settings_from(None).settings.server.data_path)
        self._file = FILE.expanduser()

    def enter(self, session: str | None, *, fresh: bool) -> ChatPlace:
        """The named session; else the last one, unless a fresh one is wanted."""
        last = _known(self._file).get(self._server, {})
        if session is None and not fresh and last:
            return ChatPlace(self._file, self._server, last["session"], last["run"], resumed=True)
        run = last["run"] if session and last.get("session") == session else ""
        return ChatPlace(self._file, self._server, session or new_session(), run, resumed=bool(session))


def new_session() -> str:
    """A name that no other session has."""
    return f"chat-{secrets.token_hex(6)}"


def _known(file: Path) -> dict[str, dict[str, str]]:
    try:
        known = json.loads(file.read_text())
        return {str(name): {"session": str(each["session"]), "run": str(each["run"])} for name, each in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # no file, or one of another version
