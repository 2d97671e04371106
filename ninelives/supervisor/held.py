"""Sockets that outlive the server. Owns: duplicates of the descriptors that a server gave, until it releases them.
Refuses to know: whose sockets these are, and what is said about them."""

from __future__ import annotations

import os

from ninelives.supervisor.line import Message

PAGE = 12
"""So many are handed to a server in one message."""


class HeldSockets:
    """All that a supervisor holds, by the names that servers gave."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Message, list[int]]] = {}

    def obey(self, message: Message, fds: list[int]) -> None:
        """Hold or release what the message names. Where the server has closed its own descriptor, a release ends the
        connection."""
        for fd in self._held.pop(message["held"], (message, []))[1]:
            os.close(fd)
        if fds:  # none where it is a release, or where this process has no descriptor left
            self._held[message["held"]] = message, fds

    def page(self, after: int) -> tuple[list[tuple[Message, int]], list[int]]:
        """The next ones after so many: the message of each, and how many descriptors it has; and all of these."""
        page = list(self._held.values())[after : after + PAGE]
        return [(message, len(fds)) for message, fds in page], [fd for _, fds in page for fd in fds]

    def release_all(self) -> None:
        """No server wants them."""
        for message, _ in list(self._held.values()):
            self.obey(message, [])
