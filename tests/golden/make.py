"""Makes the golden data directory of the schema that this release writes: `python -m tests.golden.make`. Owns: the
stories in it (finished, chained, named, waiting, cut off in the middle) and the record of what a client saw. Run it
once for each new schema version, before a release; a golden directory is never made again."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
import tempfile
from pathlib import Path

from tests.story.responses import PATH, SLOW, create, get
from tests.story.server import Json, Server, start_server, start_upstream

HERE = Path(__file__).parent
TOOLS = '[[tools=write_file:{"path":"a.txt","content":"one"}|read_file:{"path":"a.txt"}]]'


def tell(server: Server) -> Json:
    """Let everything happen that a directory should hold; what was seen of it."""
    client = server.client
    first = create(client, f"first {TOOLS}", conversation="golden", metadata={"a": "b"}, tool_items="function_call")
    second = create(client, "second [[reason=2]]", conversation="golden")
    third = create(client, "third", previous_response_id=first["id"])
    create(client, "fourth", {"X-Hermes-Session-Id": "golden-session"})
    keyed = create(client, "keyed", {"Idempotency-Key": "golden-key"})
    failed = create(client, "[[status=400]]")
    with client.stream(f"{PATH}/{first['id']}?stream=true") as stream:
        frames = [frame.data for frame in stream.rest()]
    chat = client.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "chat"}], "store": True}
    ).json()
    gone = create(client, "deleted")
    client.delete(f"{PATH}/{gone['id']}")
    with client.stream(PATH, {"input": f"cut {SLOW}", "stream": True}) as stream:
        cut = stream.until("response.output_text.delta")
    return {
        "bodies": [get(client, body["id"]) for body in (first, second, third, keyed, failed)],
        "frames": frames,
        "chat": chat["id"],
        "deleted": gone["id"],
        "cut": cut[0].data["response"]["id"],
        "seen": [frame.data for frame in cut],
    }


def main() -> None:
    """A server, its stories, a kill, an archive."""
    with tempfile.TemporaryDirectory() as where:
        place = Path(where)
        upstream = start_upstream(place / "upstream")
        server = start_server(place / "server", upstream.url)
        seen = tell(server)
        server.process.child.kill()
        server.process.child.wait()
        upstream.process.stop()
        # Not opened before it is packed: the write-ahead log of a killed server is part of the story.
        with sqlite3.connect(f"file:{shutil.copytree(server.data, place / 'look')}/ninelives.db", uri=True) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
        with tarfile.open(HERE / f"schema_{version:04}.tar.gz", "w:gz") as archive:
            for path in [*sorted(server.data.glob("ninelives.db*")), server.data / "secret"]:
                archive.add(path, path.name)
        (HERE / f"schema_{version:04}.json").write_text(json.dumps(seen, indent=1) + "\n")


if __name__ == "__main__":
    main()
