"""The audit log of a server that is killed: what was done is there, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.story.approvals import script
from tests.story.server import Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")


def entries(server: Server, action: str) -> list[dict[str, Any]]:
    return list(server.client.get(f"/api/audit?limit=1000&order=asc&action={action}").json()["data"])


def test_a_kill_right_after_a_deed_neither_loses_nor_doubles_its_entry(tmp_path: Path, upstream: Upstream) -> None:
    """Killed as soon as the client knows: of a key, of an approval and of the call that it allowed."""
    asks = {"NINELIVES_TOOLS_APPROVAL": "always"}
    one = start_server(tmp_path, upstream.url, **asks)
    made = one.client.post("/api/keys", {"name": "a", "owner": "ann"}).json()["id"]
    one.kill()
    two = start_server(tmp_path, upstream.url, **asks)
    assert [each["target"] for each in entries(two, "key.create")] == [made]
    call = script("write_file", {"path": "x.txt", "content": "one"})
    run = two.client.post("/v1/runs", {"input": call}).json()["run_id"]
    waits = lambda: two.client.get(f"/v1/runs/{run}").json()["status"] == "waiting_for_approval"  # noqa: E731
    wait_until(waits, "the question")
    assert two.client.post(f"/v1/runs/{run}/approval", {"choice": "once"}).status == 200
    two.kill()
    three = start_server(tmp_path, upstream.url, **asks)
    wait_until((three.data / "workspaces").exists, "a workspace")
    wait_until(lambda: list(three.data.rglob("x.txt")), "the file that the call writes")
    three.kill()
    four = start_server(tmp_path, upstream.url, **asks)
    try:
        state = lambda: four.client.get(f"/v1/runs/{run}").json()["status"]  # noqa: E731
        wait_until(lambda: state() in ("completed", "waiting_for_approval"), "the end, or the question once more")
        answers = [("once", True)]
        if state() == "waiting_for_approval":  # the kill came before the end of the call was written: it is asked again
            assert four.client.post(f"/v1/runs/{run}/approval", {"choice": "once"}).status == 200
            answers *= 2
        wait_until(lambda: entries(four, "tool.execute"), "the entry of the call")
        assert [(each["detail"], each["result"]) for each in entries(four, "tool.execute")] == [("write_file", "ok")]
        assert [(each["detail"], each["key"] != "") for each in entries(four, "run.answer")] == answers
    finally:
        assert four.stop() == 0
