"""The control line between the supervisor and a server. Owns: messages (a JSON object, and file descriptors) over a
socket that only the two hold, and noticing that the other end is gone. Refuses to know: what the messages mean."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

Message = dict[str, Any]  # Any: JSON
MOST_BYTES = 131_072
"""Size of a message."""
MOST_FDS = 32


class LineEnded(Exception):
    """The other process is gone."""


class ControlLine:
    """One end of a control line. SOCK_SEQPACKET keeps messages apart, and tells the end of the other process."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    @classmethod
    def pair(cls) -> tuple[ControlLine, ControlLine]:
        """Both ends, closed on exec."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def of(cls, fd: int) -> ControlLine:
        """The end that has this descriptor."""
        return cls(socket.socket(fileno=fd))

    def send(self, message: Message, *fds: int) -> None:
        """Send a message. Raises LineEnded where nobody can read it any more, and BlockingIOError where the line is not
        blocking and full."""
        try:
            socket.send_fds(self.sock, [json.dumps(message).encode()], fds)
        except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError) as error:
            raise LineEnded from error

    def receive(self) -> tuple[Message, list[int]]:
        """The next message and its descriptors. Raises LineEnded; BlockingIOError where the line does not block."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, MOST_BYTES, MOST_FDS)  # it ignores flags (CPython 3.11)
        except ConnectionResetError as error:
            raise LineEnded from error
        for fd in fds:
            os.set_inheritable(fd, False)
        if not data:
            raise LineEnded
        message: Message = json.loads(data)
        return message, fds

    def close(self) -> None:
        """Close this end."""
        self.sock.close()
