"""The load generator in Python, for machines without a C compiler: the same commands, options and output as load.c, at
about a tenth of its rate. `python -m lab.bench.slow upstream --port P`, or `client --url HOST:PORT ...`. Refuses
to know: what the numbers are used for."""

from __future__ import annotations

import argparse
import asyncio
import sys

from lab.bench.slow_client import Want, load
from lab.bench.slow_upstream import serve


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.slow")
    commands = parser.add_subparsers(dest="command", required=True)
    upstream = commands.add_parser("upstream")
    upstream.add_argument("--port", type=int, default=0)
    client = commands.add_parser("client")
    for name in ("url", "path", "key", "mode", "model", "body-extra"):
        client.add_argument(f"--{name}", default=getattr(Want, name.replace("-", "_")))
    for name in ("streams", "n", "pace-us", "rounds", "ramp-ms", "whole"):
        client.add_argument(f"--{name}", type=int, default=getattr(Want, name.replace("-", "_")))
    client.add_argument("--seconds", type=float, default=Want.seconds)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Serve until killed, or make one load and print what was seen."""
    given = vars(_parse(argv))
    if given.pop("command") == "upstream":
        asyncio.run(serve(given["port"]))
        return
    sys.stdout.write(asyncio.run(load(Want(**given))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
