"""What Prometheus reads (A4)."""

from __future__ import annotations

from pathlib import Path

from tests.observe.scrape import samples
from tests.story.server import Client, Upstream, start_server

SERIES = {
    "ninelives_runs_total",
    "ninelives_runs_active",
    "ninelives_runs_queued",
    "ninelives_run_duration_seconds_count",
    "ninelives_time_to_first_delta_seconds_count",
    "ninelives_events_total",
    "ninelives_flush_seconds_count",
    "ninelives_subscribers",
    "ninelives_recoveries_total",
    "ninelives_tool_calls_total",
    "ninelives_tokens_total",
    "ninelives_store_bytes",
}


def test_a_scrape_has_the_series_of_what_happened(tmp_path: Path, upstream: Upstream) -> None:
    server = start_server(tmp_path, upstream.url)
    try:
        client = server.client
        asked = '[[tools=write_file:{"path":"a.txt","content":"x"}]]'
        assert client.post("/v1/responses", {"input": asked}).json()["status"] == "completed"
        chat = {"messages": [{"role": "user", "content": "[[status=401]]"}]}
        assert client.post("/v1/chat/completions", chat).status == 502
        answer = client.get("/metrics")
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
        found = samples(answer.body.decode())
        assert {name for name, _ in found} >= SERIES
        ended = {labels: value for (name, labels), value in found.items() if name == "ninelives_runs_total"}
        assert ended == {
            frozenset({("dialect", "responses"), ("status", "completed")}): 1,
            frozenset({("dialect", "chat"), ("status", "failed")}): 1,
        }
        assert found["ninelives_tool_calls_total", frozenset({("tool", "write_file"), ("outcome", "ok")})] == 1
        assert found["ninelives_upstream_errors_total", frozenset({("code", "upstream_auth")})] == 1
        assert found["ninelives_tokens_total", frozenset({("direction", "output")})] > 0
        assert found["ninelives_time_to_first_delta_seconds_count", frozenset()] == 1
        assert found["ninelives_events_total", frozenset()] > 5 and found["ninelives_store_bytes", frozenset()] > 0
        assert server.anonymous.get("/metrics").status == 401
    finally:
        assert server.stop() == 0
    lines = [line for line in server.log().splitlines() if '"event":"run"' in line]
    assert len(lines) == 2 and '"status":"completed"' in lines[0] and '"code":"upstream_auth"' in lines[1]


def test_metrics_need_no_key_where_the_operator_says_so(tmp_path: Path, upstream: Upstream) -> None:
    server = start_server(tmp_path, upstream.url, NINELIVES_METRICS_OPEN="true", NINELIVES_LOG_LEVEL="warning")
    try:
        anonymous: Client = server.anonymous
        assert anonymous.get("/metrics").status == 200 and anonymous.get("/v1/models").status == 401
        assert server.client.get("/v1/models").status == 200
    finally:
        assert server.stop() == 0
    assert '"event":"request"' not in server.log()
