"""python -m tests.supervisor.planted BUG,... serve ...: a server with planted bugs in what it does with kept calls and
clients, or with what a judge needs. Owns: the bugs. Refuses to know: who looks for them."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ninelives.agents import loop_state
from ninelives.core.state import RunState
from ninelives.supervisor.calls import SupervisedConnections
from ninelives.supervisor.plan import VARIABLE


def wrong_base() -> None:
    """One character too few is skipped."""
    right = loop_state.draft_of

    def draft_of(state: RunState) -> loop_state.ToldDraft:
        draft = right(state)
        return msgspec.structs.replace(draft, text=max(0, draft.text - 1))

    loop_state.draft_of = draft_of


def wrong_memory() -> None:
    """One byte of what was read before is missing."""
    from ninelives.supervisor import calls, kernel

    if not is_first():
        calls.consumed = lambda fd: kernel.consumed(fd) - 1  # type: ignore[attr-defined]


def asks_again() -> None:
    """What is held is not read again: the model is asked anew."""
    SupervisedConnections.held = lambda self, call: False  # type: ignore[method-assign]


def is_first() -> bool:
    """Is this the first server of its supervisor?"""
    return VARIABLE not in os.environ


def wrong_client_base() -> None:
    """The next server believes that one byte less was sent."""
    from ninelives.http.edge import connection
    from ninelives.supervisor import kernel

    if not is_first():
        connection.written = lambda fd: kernel.written(fd) - 1  # type: ignore[attr-defined]


class Altered:
    """A projection that writes two spaces in place of one."""

    def __init__(self, right: Any) -> None:
        self._right = right
        self.name, self.view0 = right.name, right.view0

    def step(self, view: Any, entry: Any) -> Any:
        after, frames = self._right.step(view, entry)
        return after, [frame.replace(b"data: ", b"data:  ") for frame in frames]

    def live(self, view: Any) -> Any:
        after, frames = self._right.live(view)
        return after, [frame.replace(b"data: ", b"data:  ") for frame in frames]


def wrong_version() -> None:
    """The next server renders frames in another way."""
    from ninelives.http import answering

    right = answering.stream_on

    def stream_on(parts: Any, owner: str, ticket: Any, how: Any, after: int) -> Any:
        return right(parts, owner, ticket, how.varied(projection=Altered(how.projection)), after)

    answering.stream_on = stream_on


def lost_end() -> None:
    """The end of an answer that went on is not sent."""
    from ninelives.http.edge.kept import AdoptedTransport, KeptTransport

    right = KeptTransport.write

    def write(self: KeptTransport, data: bytes) -> None:
        if not isinstance(self, AdoptedTransport) or data != b"0\r\n\r\n":
            right(self, data)

    KeptTransport.write = write  # type: ignore[method-assign]


def lost_done() -> None:
    """Nobody says that a message is committed: the bytes of its call stay."""
    SupervisedConnections.settle = lambda self, call: None  # type: ignore[method-assign]


def lost_over() -> None:
    """Nobody says that an answer is over: the note about its client stays."""
    from ninelives.supervisor.custody import ClientCustody

    ClientCustody.over = lambda self, slot: None  # type: ignore[method-assign]


def other_bytes() -> None:
    """The rest of an answer that went on has another name of the model: its text is right."""
    from ninelives.http.edge.kept import AdoptedTransport, KeptTransport

    def hand_over(self: KeptTransport, data: bytes) -> None:
        right(self, data.replace(b"hermes-agent", b"hermes-Agent") if isinstance(self, AdoptedTransport) else data)

    right = KeptTransport._hand_over
    KeptTransport._hand_over = hand_over  # type: ignore[method-assign]


def double_adoption() -> None:
    """Two connections go on with the same client."""
    from ninelives.http.edge.server import Serving

    right = Serving.adopt

    async def adopt(self: Serving, clients: Iterable[Any], app: Any) -> None:
        for client in clients:
            twin = type(client)(**{**vars(client), "sock": socket.socket(fileno=os.dup(client.sock.fileno()))})
            await right(self, [client, twin], app)

    Serving.adopt = adopt  # type: ignore[method-assign]


def no_tcp_info() -> None:
    """The kernel does not say how much was sent."""
    from ninelives.supervisor import kernel

    kernel._INFO_BYTES = 8


def other_protocol() -> None:
    """The next server is of a version that means something else by what the supervisor holds."""
    from ninelives.supervisor import supervised

    if not is_first():
        supervised.PROTOCOL = 99


def dies_before_ready() -> None:
    """No bug: the second server is killed when it has taken over, and the supervisor does not know that yet."""
    from ninelives.supervisor.supervised import Supervised

    right = Supervised.ready

    def ready(self: Supervised, status: Path, mark: str) -> None:
        if self.restarts == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        right(self, status, mark)

    Supervised.ready = ready  # type: ignore[method-assign]


def keeps_delivered() -> None:
    """No bug: runs stay after their delivery, so that a judge can read them in the journal."""
    from ninelives.engine import retention

    retention.FORGET_S = 1e9


def forked() -> None:
    """No bug: servers are forks, see forked.py."""
    become = os.execve

    def execve(path: str, words: list[str], env: dict[str, str]) -> None:
        become(path, ["tests.supervisor.forked" if each == "ninelives.supervisor" else each for each in words], env)

    os.execve = execve  # type: ignore[assignment]


CALL_BUGS = {"wrong_base": wrong_base, "wrong_memory": wrong_memory, "asks_again": asks_again}
CLIENT_BUGS = {
    "wrong_client_base": wrong_client_base,
    "wrong_version": wrong_version,
    "lost_end": lost_end,
    "double_adoption": double_adoption,
    "other_bytes": other_bytes,
    "lost_done": lost_done,
    "lost_over": lost_over,
}
BUGS = {**CALL_BUGS, **CLIENT_BUGS, "no_tcp_info": no_tcp_info, "other_protocol": other_protocol}
AIDS = {"keeps_delivered": keeps_delivered, "forked": forked, "dies_before_ready": dies_before_ready}


def plant(names: str) -> None:
    """Plant all of these, with commas between."""
    for name in names.split(","):
        (BUGS | AIDS)[name]()


if __name__ == "__main__":
    plant(sys.argv.pop(1))
    runpy.run_module("ninelives", run_name="__main__", alter_sys=True)
