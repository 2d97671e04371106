"""What the kernel knows about a TCP connection. Owns: how many bytes it took from this machine's processes for a
connection, how many it gave them, and whether it says so at all. Refuses to know: what these bytes are."""

from __future__ import annotations

import fcntl
import socket
import struct

_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = 120
"""Where struct tcp_info has tcpi_bytes_acked and tcpi_bytes_received. Its first byte is the state."""
_INFO_BYTES = 136
_OUTQ, _INQ = 0x5411, 0x541B
_ESTABLISHED, _CLOSE_WAIT = 1, 8


def written(fd: int) -> int:
    """How many bytes the kernel has taken for a connection. Nobody may write to it meanwhile. Raises OSError."""
    with _Borrowed(fd) as sock:
        if not _queue(fd, _OUTQ):  # all is acknowledged: the count stands still
            return _info(sock)[1]
        while True:
            _, before, _ = _info(sock)
            waiting = _queue(fd, _OUTQ)
            if _info(sock)[1] == before:  # else an acknowledgement came in between
                return before + waiting


def consumed(fd: int) -> int:
    """How many bytes of a connection were read from the kernel. Raises OSError where the kernel cannot say so, for
    example because the connection was reset."""
    with _Borrowed(fd) as sock:
        while True:
            state, _, before = _info(sock)
            waiting = _queue(fd, _INQ)
            if _info(sock)[::2] == (state, before):
                break
    if state not in (_ESTABLISHED, _CLOSE_WAIT):
        raise OSError("the connection is not open")
    return before - waiting - (state == _CLOSE_WAIT)  # the end of the other side counts as a byte


class _Borrowed:
    """A socket object for a descriptor that stays open."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)

    def __enter__(self) -> socket.socket:
        return self._sock

    def __exit__(self, *_: object) -> None:
        self._sock.detach()


def _info(sock: socket.socket) -> tuple[int, int, int]:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return (info[0], *_COUNTS.unpack_from(info, _COUNTS_AT))


def _queue(fd: int, which: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, which, bytes(4)), "little")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection on this machine, for which the kernel counts. Raises OSError."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        one = socket.create_connection(server.getsockname())
        while True:
            other, peer = server.accept()
            if peer == one.getsockname():  # else a stranger was faster
                return one, other
            other.close()


def why_not() -> str:
    """Why connections cannot be kept on this machine; empty where they can. Asks the kernel about a connection."""
    try:
        one, other = tcp_pair()
        with one, other:
            base = written(one.fileno())
            one.sendall(bytes(1000))
            other.recv(10, socket.MSG_WAITALL)
            found = (written(one.fileno()) - base, consumed(other.fileno()))
    except (OSError, struct.error, AttributeError) as error:
        return f"the kernel does not say how much of an answer was sent: {error}"
    return "" if found == (1000, 10) else f"the kernel counts {found} bytes in place of 1000 and 10"
