"""Clients that outlive the server. Owns: a duplicate of the socket of each client whose answer is under way, and what
its server noted about it, until that server releases it. Refuses to know: HTTP, and what a note says."""

from __future__ import annotations

import os
from typing import Any

SLOTS = 16_384
"""Most clients. Each has a word of 8 bytes in memory that all servers share: how much was handed to its socket."""
SLOT_BYTES = 8
PAGE = 24
"""So many are handed to a server at a time: their descriptors and notes go in one message."""
PAGE_BYTES = 96 * 1024
BEATS = 4_096
"""Most keepalives of one answer. A client that got more is released: a crash cuts it."""


class HeldClient:
    """The socket of a client, and the note of its server."""

    def __init__(self, fd: int, note: dict[str, Any]) -> None:
        self.fd = fd
        self.note = note

    def close(self) -> None:
        """Close this duplicate. Where the server has closed its own, the client sees the end of its connection."""
        os.close(self.fd)


class Clients:
    """All clients that a supervisor keeps."""

    def __init__(self) -> None:
        self.held: dict[int, HeldClient] = {}

    def obey(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Do what a server asks. False where the message is about something else."""
        match message:
            case {"client": int(slot)}:
                self._release(slot)
                if fds:  # none where this process has no descriptor left
                    self.held[slot] = HeldClient(fds[0], {**message, "head": "", "beats": []})
            case {"head": str(head), "slot": int(slot)} if slot in self.held:
                self.held[slot].note["head"] = head
            case {"beat": int(place), "slot": int(slot)} if slot in self.held:
                self.held[slot].note["beats"].append(place)
                if len(self.held[slot].note["beats"]) > BEATS:
                    self._release(slot)
            case {"release": int(slot)}:
                self._release(slot)
            case _:
                return "slot" in message
        return True

    def _release(self, slot: int) -> None:
        held = self.held.pop(slot, None)
        if held is not None:
            held.close()

    def page(self, after: int) -> tuple[list[dict[str, Any]], list[int]]:
        """The next clients, by their slots, with their sockets."""
        notes: list[dict[str, Any]] = []
        size = 0
        for slot in sorted(each for each in self.held if each > after):
            note = self.held[slot].note
            size += sum(len(str(value)) for value in note.values())
            if len(notes) == PAGE or (notes and size > PAGE_BYTES):
                break
            notes.append(note)
        return notes, [self.held[note["client"]].fd for note in notes]

    def close(self) -> None:
        """Let go of all."""
        for slot in list(self.held):
            self._release(slot)
