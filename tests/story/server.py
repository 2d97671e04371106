"""A real server process and a real fake upstream process for the story tests, and a small blocking client that sees
raw frames. Owns: starting (wait for the line that says so), stopping by PID, cutting a stream in the middle, and
waiting on conditions with a deadline. Refuses to know: what any test wants."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from itertools import islice
from pathlib import Path
from typing import Any

from tests.canary import LONGEST, key_in, shows_a_new_key

ROOT = Path(__file__).parents[2]
KEY = "story-key-0123456789abcdef"
Json = dict[str, Any]


def signal_process(pid: int, number: signal.Signals) -> None:
    """A signal to a process of ours, which may be gone."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, number)
        os.close(pidfd)


def wait_until(true: Callable[[], Any], what: str, seconds: float = 60.0, every: float = 0.01) -> Any:
    """The first true value of a condition; an assertion with `what` when the deadline passes."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(every)
    return value


@dataclass
class Answer:
    """What came back. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> Json:
        """The inner error object; fails where the body is not exactly one (A7)."""
        (inner,) = self.json().values()
        assert set(inner) == {"message", "type", "param", "code"}, inner
        return dict(inner)


@dataclass
class Frame:
    """One server-sent event. `data` is parsed; the end mark is the text [DONE]."""

    name: str
    data: Any
    raw: bytes

    @property
    def number(self) -> int:
        return int(self.data["sequence_number"])


def frame_of(block: bytes) -> Frame | None:
    """A block between blank lines; None for comments."""
    name, data = "", None
    for line in block.split(b"\n"):
        assert not line.startswith(b"id:"), "no id line is ever written (G6)"
        if line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"data: "):
            data = line[6:].decode()
    if data is None:
        return None
    return Frame(name, data if data == "[DONE]" else json.loads(data), block)


class Stream:
    """A stream that is being read. `ended`: None so far, "whole" after a proper end, "cut" after a broken one."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.comments: list[bytes] = []
        self.ended: str | None = None
        self._blocks: deque[bytes] = deque()
        self._tail: list[bytes] = []

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the socket, whatever is under way."""
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self.next()) is not None:
            yield frame

    def next(self) -> Frame | None:
        """The next frame; None at the end."""
        while True:
            while not self._blocks:
                if not self._more():
                    return None
            block = self._blocks.popleft()
            if (frame := frame_of(block)) is not None:
                return frame
            self.comments.append(block)

    def _more(self) -> bool:
        if self.ended is not None:
            return False
        try:
            data = self._response.read1(1 << 20)
        except (IncompleteRead, ConnectionError, ValueError):
            self.ended = "cut"
            return False
        if not data:
            self.ended = "whole"
            return False
        assert not key_in(b"".join(self._tail[-1:])[-LONGEST:] + data), "the stream shows a key"
        self._tail.append(data)
        if b"\n\n" in b"".join(self._tail[-2:])[-len(data) - 1 :]:
            *whole, rest = b"".join(self._tail).split(b"\n\n")
            self._blocks.extend(whole)
            self._tail = [rest]
        return True

    def take(self, n: int) -> list[Frame]:
        """The next n frames."""
        return list(islice(self, n))

    def until(self, wanted: str) -> list[Frame]:
        """Frames up to and with the first of a type (a responses event's type, an SSE name or [DONE])."""
        frames: list[Frame] = []
        for frame in self:
            frames.append(frame)
            if frame.data == wanted or frame.name == wanted:
                return frames
        raise AssertionError(f"no {wanted} in {[f.name or f.data for f in frames]}")

    def rest(self) -> list[Frame]:
        """All frames up to the end, without [DONE], which must come last and once where the stream is whole."""
        frames = list(self)
        ends = [n for n, frame in enumerate(frames) if frame.data == "[DONE]"]
        assert ends in ([], [len(frames) - 1]), "one [DONE], at the end"
        self.done = bool(ends)
        return frames[:-1] if ends else frames

    done: bool = False


@dataclass
class Process:
    """A child process with its output in files."""

    child: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        return self.child.pid

    def stop(self) -> int:
        """Ask it to end, and see that it did."""
        if self.child.poll() is None:
            self.child.terminate()
        try:
            return self.child.wait(60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait(5)
            raise


def _start(args: list[str], env: dict[str, str], where: Path, name: str) -> Process:
    where.mkdir(parents=True, exist_ok=True)
    out, err = where / f"{name}.out", where / f"{name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, *args], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
    return Process(child, out, err)


def _said(process: Process, pattern: str) -> str:
    """What the process prints once it is ready."""

    def look() -> re.Match[str] | None:
        told = re.search(pattern, process.out.read_text())
        if told is None and process.child.poll() is not None:
            raise AssertionError(f"it ended at once: {process.err.read_text()[-300:]}")
        return told

    return str(wait_until(look, f"{pattern} from {process.child.args}")[1])


class Client:
    """Blocking HTTP to one place, a new connection per request. `ours`: the answers are those of a server of ours, and
    must show no key."""

    def __init__(self, port: int, headers: dict[str, str], *, ours: bool = True) -> None:
        self.port = port
        self._ours = ours
        self._headers = headers

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {**self._headers, **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent = {"content-type": "application/json", **sent}
        try:
            connection.request(method, path, body, sent)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request and its whole answer."""
        connection, response = self._send(method, path, body, headers)
        try:
            told = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, told, response.read())
            if self._ours and not shows_a_new_key(method, path):
                assert not key_in(repr(told).encode() + answer.body), f"{path} shows a key"
            return answer
        finally:
            response.close()
            connection.close()

    def left_waiting(self, path: str, body: Any, headers: dict[str, str] | None = None) -> socket.socket:
        """A POST that was sent and whose answer nobody has read: the caller closes the socket."""
        sent = {**self._headers, "content-type": "application/json", "host": "127.0.0.1", **(headers or {})}
        text = json.dumps(body).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in {**sent, "content-length": len(text)}.items())
        sock = socket.create_connection(("127.0.0.1", self.port), 10)
        sock.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + text)
        return sock

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return self.call("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        return self.call("POST", path, body, headers)

    def delete(self, path: str) -> Answer:
        return self.call("DELETE", path)

    def stream(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, *, status: int = 200
    ) -> Stream:
        """A stream: POST where there is a body, else GET."""
        connection, response = self._send("POST" if body is not None else "GET", path, body, headers)
        stream = Stream(connection, response)
        if stream.status != status:
            told = response.read()
            stream.leave()
            raise AssertionError(f"{stream.status} {told!r}")
        return stream


class Upstream(Client):
    """The fake upstream in its own process."""

    def __init__(self, process: Process) -> None:
        super().__init__(int(_said(process, r"^(\d+)\n")), {})
        self.process = process
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def stats(self) -> Json:
        return dict(self.get("/_stats").json())

    def asked(self, marker: str) -> list[Json]:
        """The requests in which `marker` stands, oldest first."""
        return [request for request in self.get("/_requests").json() if marker in json.dumps(request["messages"])]


@dataclass
class Server:
    """A server process and a client that holds its key."""

    process: Process
    port: int
    data: Path
    client: Client = field(init=False)
    anonymous: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.port, {"authorization": f"Bearer {KEY}"})
        self.anonymous = Client(self.port, {})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.process.err.read_text()

    def health(self) -> Json:
        return dict(self.anonymous.get("/health/detailed").json())

    def rss_kb(self) -> int:
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1])  # type: ignore[index]

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> int:
        return self.process.stop()

    def kill(self) -> None:
        """kill -9, and see that it is dead."""
        self.process.child.kill()
        self.process.child.wait(10)


def start_upstream(where: Path) -> Upstream:
    """A fake upstream that is ready."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Upstream(_start(["-m", "ninelives.testing.fake_upstream", "--port", "0"], env, where, "upstream"))


def start_server(
    where: Path, model_url: str, *, at: int = 0, program: str = "ninelives", sandbox: str = "off", **settings: str
) -> Server:
    """A server that listens, on a free port or `at` one. `settings` are environment variables, `program` is the module
    that is run."""
    flags = ["--sandbox", sandbox, "--model-url", model_url, "--model", "m"]
    return _serve(where, flags, settings, at, program=(program,))


def start_stock(where: Path, model_url: str, *, at: int = 0) -> Server:
    """A server as its user starts it: nothing is set but key, port, data directory and model. It has no supervisor,
    because its users kill it and start the next one themselves."""
    data = where / "data"
    args = ["--port", str(at), "--data-dir", str(data), "--model-url", model_url, "--model", "m", "--no-supervisor"]
    return _started(where, ["ninelives", "serve", *args], _environment(where), data)


def start_demo(where: Path, **settings: str) -> Server:
    """The same with the model that is built in."""
    return _serve(where, [], settings)


def start_supervised(where: Path, model_url: str, bug: str = "", flags: Sequence[str] = (), **settings: str) -> Server:
    """A server with its supervisor, whose pid is that of the process. `bug`: one of tests/supervisor/planted.py."""
    flags = [*flags, "--model-url", model_url, "--model", "m"]
    program = ["tests.supervisor.planted", bug] if bug else ["ninelives"]
    return _serve(where, flags, settings, program=program, supervisor=True)


def start_worker(where: Path, model_url: str, **settings: str) -> Server:
    """A process that only carries out runs; what it serves is its health."""
    return _serve(where, ["--model-url", model_url, "--model", "m"], settings, command="worker")


def _serve(
    where: Path,
    flags: list[str],
    settings: dict[str, str],
    at: int = 0,
    *,
    command: str = "serve",
    program: Sequence[str] = ("ninelives",),
    supervisor: bool = False,
) -> Server:
    env = _environment(where)
    env |= {"NINELIVES_TOOLS_APPROVAL": "never", "NINELIVES_STORE_BALLAST_BYTES": "0"}
    env |= {"NINELIVES_LIMITS_DRAIN_S": "3", **settings}  # the time that a run which hangs adds to a stop
    data = Path(settings.get("NINELIVES_SERVER_DATA_DIR", where / "data"))
    args = [command, "--port", str(at), "--data-dir", str(data), "--sandbox", "off"]
    alone = [] if supervisor or command != "serve" else ["--no-supervisor"]  # tests kill the process that they started
    return _started(where, [*program, *args, *alone, *flags], env, data)


def _environment(where: Path) -> dict[str, str]:
    """Nothing of this user's own settings, and the key."""
    own = ("NINELIVES_", "API_SERVER_", "OPENAI_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return env | {"API_SERVER_KEY": KEY, "PYTHONPATH": str(ROOT), "HOME": str(where)}


def _started(where: Path, args: list[str], env: dict[str, str], data: Path) -> Server:
    """`args` begin with the module that is run."""
    process = _start(["-m", *args], env, where, "server")
    port = int(_said(process, r"(?:listening|health) on http://127\.0\.0\.1:(\d+)"))
    return Server(process, port, data)
