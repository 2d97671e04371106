"""A health check every 5 ms, in a process of its own: python -m tests.hostile.probe PORT. Owns: how long each answer
took. Prints `ready` after the first answer, and a line of JSON when its stdin is closed. With --control it is a server
of a few lines instead, which prints its port: a second probe of that one shows what the machine itself delays.
Refuses to know: what else happens to the server."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import sys
import time

EVERY_S = 0.005
LONGEST_S = 60.0
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def ask(line: socket.socket) -> None:
    """One request and its whole answer. Raises OSError."""
    line.sendall(REQUEST)
    got = b""
    while b"\r\n\r\n" not in got:
        piece = line.recv(65536)
        if not piece:
            raise ConnectionError
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    size = next(int(each.split(b":")[1]) for each in head.split(b"\r\n") if each.lower().startswith(b"content-length"))
    while len(body) < size:
        body += line.recv(65536)


def connect(port: int) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), LONGEST_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def probe(port: int) -> dict[str, float]:
    """Ask until stdin ends. Times in milliseconds."""
    took: list[float] = []
    broken = 0
    line = connect(port)
    while not select.select([sys.stdin], [], [], 0)[0]:
        began = time.perf_counter()
        try:
            ask(line)
        except OSError:
            broken += 1
            line.close()
            time.sleep(0.05)
            try:
                line = connect(port)
            except OSError:
                continue
        took.append(1000 * (time.perf_counter() - began))
        if len(took) == 1:
            print("ready", flush=True)
        time.sleep(max(0.0, EVERY_S - (time.perf_counter() - began)))
    line.close()
    took.sort()
    return {"count": len(took), "longest_ms": took[-1], "p99_ms": took[len(took) * 99 // 100], "broken": broken}


async def control() -> None:
    """Answer every request at once, until stdin ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # its end is the program's
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1] == "--control":
        asyncio.run(control())
    else:
        print(json.dumps(probe(int(sys.argv[1]))), flush=True)
