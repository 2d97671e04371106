"""python -m tests.supervisor.upgrade --before REF: an upgrade under live streams. Owns: a virtual environment in which
an earlier commit of this package is installed and serves, clients that stream and wait, the installation of this code
in its place, `ninelives restart`, and the verdict: no error, no client cut, each message asked of the model once, and a
run that nobody reads goes on. Refuses to know: how clients are kept."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.story.server import KEY, ROOT, Process, Server, Upstream, start_upstream, wait_until
from tests.supervisor.test_kept_clients import Caller, chat, text_of, words

TOKENS = 1500
OLD = "0.0.1"


def installed(folder: Path) -> Path:
    """An environment that has the libraries of this one, and not this package. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin/python"
    own = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
    (Path(own.strip()) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def wheel(source: Path) -> Path:
    """The package of a source."""
    subprocess.run([sys.executable, *PIP, "wheel", str(source), "--no-deps", "-w", str(source / "dist")], check=True)
    return next((source / "dist").glob("*.whl"))


def install(python: Path, package: Path) -> None:
    subprocess.run([python, *PIP, "install", "--no-deps", "--force-reinstall", str(package)], check=True)


def checkout(ref: str, folder: Path) -> Path:
    """An earlier commit, with a version of its own."""
    folder.mkdir()
    archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", ref], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    assert archive.wait() == 0, ref
    return folder


def label(source: Path, version: str) -> Path:
    """Give a source its own version, so that it is seen which one serves."""
    package = source / "ninelives/__init__.py"
    lines = [line for line in package.read_text().splitlines() if not line.startswith("__version__")]
    package.write_text("\n".join([*lines, f'__version__ = "{version}"', ""]))
    return source


def serve(python: Path, folder: Path, upstream: Upstream) -> Server:
    own = ("NINELIVES_", "API_SERVER_", "OPENAI_", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"API_SERVER_KEY": KEY, "HOME": str(folder), "NINELIVES_STORE_BALLAST_BYTES": "0"}
    env |= {"NINELIVES_SERVER_KEEP_CALLS": "true", "NINELIVES_SERVER_KEEP_CLIENTS": "true"}
    env |= {"NINELIVES_LIMITS_CONCURRENT_RUNS": "200", "NINELIVES_TOOLS_APPROVAL": "never"}
    flags = ["--port", "0", "--data-dir", str(folder / "data"), "--sandbox", "off", "--model-url", upstream.url]
    out, err = folder / "server.out", folder / "server.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        call = [str(python), "-m", "ninelives", "serve", *flags, "--model", "m"]
        child = subprocess.Popen(call, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    wait_until(lambda: "listening on" in out.read_text(), "the server", 60)
    port = int(out.read_text().partition("http://127.0.0.1:")[2].split()[0].strip("/"))
    return Server(Process(child, out, err), port, folder / "data")


def version(server: Server) -> str:
    return str(server.client.get("/health").json()["version"])


def upgrade(folder: Path, ref: str, streams: int, waiting: int) -> dict[str, object]:
    """Upgrade under so many streams and waiting POSTs. Returns what was seen."""
    python = installed(folder / "env")
    install(python, wheel(label(checkout(ref, folder / "before"), OLD)))
    unwanted = shutil.ignore_patterns(".*", "tests", "build", "dist", "*.egg-info", "bench-out")
    now = wheel(shutil.copytree(ROOT, folder / "now", ignore=unwanted))
    upstream = start_upstream(folder / "upstream")
    server = serve(python, folder, upstream)
    try:
        seen: dict[str, object] = {"before": version(server)}
        background = {"input": f"unread. [[tokens={TOKENS} pace=0.02]]", "background": True, "store": True}
        unread = server.client.post("/v1/responses", background).json()["id"]
        path = "/v1/chat/completions"
        live = [Caller(server, path, chat(f"live{n}.", TOKENS)) for n in range(streams)]
        held = [Caller(server, path, chat(f"held{n}.", TOKENS, stream=False)) for n in range(waiting)]
        for caller in live:
            caller.sees(b"tok3 ")
        wait_until(lambda: upstream.asked(f"held{waiting - 1}."), "the model to be asked")
        install(python, now)
        call = [python, "-m", "ninelives", "restart"]
        env = {**os.environ, "NINELIVES_SERVER_DATA_DIR": str(server.data)}
        env.pop("PYTHONPATH", None)
        said = subprocess.run(call, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert said.returncode == 0, (said.stderr, server.log()[-3000:])
        seen["after"] = version(server)
        assert not any(caller.ended.is_set() for caller in (*live, *held)), "a client was cut by the restart"
        for caller in live:
            assert text_of(caller.whole()) == words(TOKENS)
        for caller in held:
            caller.sees(f"tok{TOKENS - 1} ".encode())
            assert caller.seen.startswith(b"HTTP/1.1 200 OK\r\n")
        wait_until(lambda: server.client.get(f"/v1/responses/{unread}").json()["status"] == "completed", "the run", 120)
        names = ["unread.", *(f"live{n}." for n in range(streams)), *(f"held{n}." for n in range(waiting))]
        seen["asked"] = sum(len(upstream.asked(name)) for name in names)
        seen["adopted"] = server.log().count('"client_adopted"')
        assert seen["asked"] == len(names), seen
        assert seen["before"] == OLD and seen["after"] != OLD, seen
        for caller in (*live, *held):
            caller.leave()
        return seen
    finally:
        server.process.stop()
        upstream.process.stop()


def main() -> None:
    """Upgrade, and print."""
    options = argparse.ArgumentParser(prog="tests.supervisor.upgrade")
    options.add_argument("--before", default="HEAD~1", help="a commit")
    options.add_argument("--streams", type=int, default=50)
    options.add_argument("--waiting", type=int, default=20)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="upgrade-") as folder:
        seen = upgrade(Path(folder), given.before, given.streams, given.waiting)
    print(f"{given.streams} streams and {given.waiting} waiting POSTs: 0 errors, 0 cut; {seen}")


if __name__ == "__main__":
    main()
