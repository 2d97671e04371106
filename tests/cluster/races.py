"""Who wins when everybody asks at once (P6, P7). Owns: the same Idempotency-Key over many connections to different
replicas, and the same conversation likewise. Refuses to know: faults; nothing dies here."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.cluster.judging import Result
from tests.cluster.lines import Request
from tests.cluster.replicas import Cluster, Shape

LOSER = "conversation_response_not_completed"


async def everywhere(cluster: Cluster, width: int, body: dict[str, object], *keys: str) -> list[Request]:
    """The same request `width` times at once, over all replicas in turn."""
    lines = [replica.line for replica in cluster.replicas]
    wanted = [keys[n % len(keys)] for n in range(width)]
    calls = (lines[n % len(lines)].post("/v1/responses", body, 60.0, Idempotency_Key=wanted[n]) for n in range(width))
    return list(await asyncio.gather(*calls))


async def one_key(cluster: Cluster, rounds: int, width: int, result: Result) -> None:
    """Every connection is answered with the one run that there is."""
    began = time.monotonic()
    for n in range(rounds):
        key = f"key-{result.seed}-{n}"
        answers = await everywhere(cluster, width, {"input": f"load-key-{n} [[tokens=3]]"}, key)
        statuses = sorted({answer.status for answer in answers})
        ids = {answer.json()["id"] for answer in answers if answer.status == 200}
        if statuses != [200] or len(ids) != 1:
            result.wrong("rerun", key, f"{width} connections were answered {statuses}, with the ids {sorted(ids)}")
        line = cluster.replicas[n % len(cluster.replicas)].line
        rows = (await line.get(f"/v1/runs?idempotency_key={key}")).json()["data"]
        if len(rows) != 1:
            result.wrong("rerun", key, f"there are {len(rows)} runs with this key")
    result.rows["rounds with one key"] = rounds
    result.rows["connections each"] = width
    result.rows["requests/s (keys)"] = round(rounds * width / (time.monotonic() - began))


async def one_conversation(cluster: Cluster, rounds: int, width: int, result: Result) -> None:
    """One connection gets the conversation, the others 409 and leave nothing; then it is free for the next round."""
    for n in range(rounds):
        keys = [f"talk-{result.seed}-{n}-{place}" for place in range(width)]
        text = f"load-talk-{n} [[tokens=5000 pace=0.05]]"
        body = {"input": text, "conversation": f"talk-{result.seed}", "background": True}
        answers = await everywhere(cluster, width, body, *keys)
        won = [(key, answer) for key, answer in zip(keys, answers, strict=True) if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 409 and answer.json()["error"]["code"] == LOSER]
        if len(won) != 1 or len(refused) != width - 1:
            codes = sorted({(answer.status, answer.data[:120]) for answer in answers if answer.status != 200})
            result.wrong("rerun", text[:20], f"{len(won)} got the conversation, {len(refused)} were refused: {codes}")
        if wrong := [answer.headers for answer in refused if answer.headers.get("x-should-retry") != "false"]:
            result.wrong("end", text[:20], f"a refusal may be retried: {wrong[0]}")
        for place, (key, answer) in enumerate(won):
            line = cluster.replicas[(n + place + 1) % len(cluster.replicas)].line
            cancelled = await line.post(f"/v1/responses/{answer.json()['id']}/cancel")
            if cancelled.status != 200:
                result.wrong("end", key, f"cancel was answered {cancelled.status}: {cancelled.data[:200]!r}")
        await _no_trace(cluster, [key for key in keys if key not in dict(won)][:: max(1, width // 4)], result)
    result.rows["rounds with one conversation"] = rounds


async def _no_trace(cluster: Cluster, keys: list[str], result: Result) -> None:
    """Losers left no run."""
    for place, key in enumerate(keys):
        line = cluster.replicas[place % len(cluster.replicas)].line
        if (await line.get(f"/v1/runs?idempotency_key={key}")).json()["data"]:
            result.wrong("rerun", key, "it was refused, and left a run")


async def races(folder: Path, seed: int, rounds: int = 50, width: int = 40, shape: Shape | None = None) -> Result:
    """The whole trial."""
    result = Result("races", seed)
    async with Cluster(folder, shape) as cluster:
        result.rows["network"] = cluster.ground.name
        await one_key(cluster, rounds, width, result)
        await one_conversation(cluster, rounds, width, result)
        if cluster.database is not None:
            (row,) = await cluster.database.ask("SELECT count(*) AS runs FROM runs")
            result.rows["runs in the database"] = row["runs"]
            if row["runs"] != 2 * rounds:
                result.wrong("rerun", "all", f"{row['runs']} runs were stored, {2 * rounds} were won")
    return result
