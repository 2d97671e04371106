"""The checks of the cluster's trials are worth something: a storm over one server on SQLite finds nothing, and the same
storm finds each fault that is planted in what its clients were told, in what tools did, or in the server itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ninelives.drill.checks import Told, calls_of, frames_of
from ninelives.drill.loads import Load
from tests.cluster.chaos import Dose
from tests.cluster.clients import Client
from tests.cluster.judging import STRIKES, most_sealed
from tests.cluster.replicas import Cluster, Shape
from tests.cluster.storm import Extent, Storm, every_try_killed, storm

pytestmark = pytest.mark.xdist_group("processes")
ALONE = Shape(postgres=False)
CALM = Dose(kills=1, freezes=0, cables=0, restarts=0, severs=0)


@asynccontextmanager
async def blown(folder: Path) -> AsyncIterator[Storm]:
    """A storm that is over, with nothing found, and its server still there."""
    extent = Extent(seed=3, runs=8, in_flight=8, dose=CALM, shape=ALONE)
    async with Cluster(folder, ALONE) as cluster:
        made = Storm(cluster, extent)
        result = await made.blow()
        assert not result.found, "\n".join(str(one)[:500] for one in result.found)
        assert result.rows["runs completed"] == 8
        yield made


def follower(made: Storm) -> Client:
    """One that streamed a response, and was told something on one connection at least."""
    fits = (one for one in made.clients if one.kind == "follow" and one.load.dialect == "responses")
    return next(one for one in fits if len(frames_of(one.load.told[0].data)) > 4)


@contextmanager
def alone(made: Storm, client: Client) -> Iterator[None]:
    """Nobody else is judged: the others are as they were."""
    clients, watchers = list(made.clients), list(made.watchers)
    made.clients[:] = [client]
    made.watchers[:] = [one for one in watchers if one.beside is client]
    yield
    made.clients[:], made.watchers[:] = clients, watchers


async def test_P1_P2_P5_P11_each_tampering_with_the_record_is_found(tmp_path: Path) -> None:
    async with blown(tmp_path) as made:
        client = follower(made)
        before = list(client.load.told)

        async def found_with(change: Callable[[list[bytes]], list[bytes]]) -> set[str]:
            first = before[0]
            told = Told(first.dialect, first.after, b"".join(change(frames_of(first.data))))
            client.load.told[:] = [told, *before[1:]]
            with alone(made, client):
                found = {finding.kind for finding in (await made.judged()).found}
            client.load.told[:] = before
            return found

        assert await found_with(lambda frames: frames) == set()
        assert await found_with(lambda f: [*f[:2], f[2].replace(b"response", b"rasponse", 1), *f[3:]]) >= {"changed"}
        assert await found_with(lambda f: [*f[:2], *f[3:]]) >= {"numbers", "changed"}, "an event is missing"
        assert await found_with(lambda f: [*f[:3], *f[2:]]) >= {"numbers", "changed"}, "an event came twice"
        assert await found_with(lambda f: [*f[:2], f[3], f[2], *f[4:]]) >= {"numbers", "changed"}, "the order"
        await _told_too_much(made, client)
        await _run_again(made)
        await _never_ends(made)
        await made.cluster.line.delete(f"/v1/responses/{client.load.id}")
        assert "lost" in {finding.kind for finding in (await made.judged()).found}, "a run is gone"


async def _told_too_much(made: Storm, client: Client) -> None:
    """Something that no replay has."""
    client.load.told.append(Told("responses", client.load.last_seen(), b'data: {"sequence_number": 9999}\n\n'))
    with alone(made, client):
        assert {finding.kind for finding in (await made.judged()).found} & {"lost", "changed"}
    client.load.told.pop()


async def _run_again(made: Storm) -> None:
    """A tool whose result is on record runs once more: one line more in the file of effects."""
    calls: dict[str, str] = {}
    for one in made.clients:
        replay = (await made.cluster.line.get(f"/v1/runs/{one.load.id}/events")).data
        calls |= {call: name for call, (name, _) in calls_of(replay).items()}
    wrote = next(call for call, name in calls.items() if name == "drill_write")
    kept = next(call for call, name in calls.items() if name == "drill_read")
    before = made.cluster.traces.read_bytes()
    for call in (wrote, kept):
        made.cluster.traces.write_bytes(before + f"{call} {4_000_000_000_000}\n".encode())
        assert "rerun" in {finding.kind for finding in (await made.judged()).found}, f"{calls[call]} ran again"
    made.cluster.traces.write_bytes(before)
    assert not (await made.judged()).found


def test_P18_a_run_that_is_given_up_needs_as_many_blows_and_is_one_of_few() -> None:
    assert most_sealed(200, STRIKES - 1) == 0, "nobody can have been hit so often"
    assert most_sealed(20, STRIKES) == 1
    assert most_sealed(200, 20) == 4


def test_a_caller_may_be_given_an_error_only_where_each_of_its_tries_can_have_been_killed() -> None:
    assert every_try_killed((10.0, 20.0), [11.0, 15.0, 19.0])
    assert not every_try_killed((10.0, 20.0), [9.0, 11.0, 15.0, 21.0])
    assert not every_try_killed((0.0, 0.0), [1.0, 2.0, 3.0]), "it was given none"


@pytest.mark.long
async def test_P1_a_server_that_tells_before_it_writes_is_found(tmp_path: Path) -> None:
    shape = replace(ALONE, modules=(*ALONE.modules, "tests.crash.broken"))
    dose = replace(CALM, kills=2)
    result = await storm(tmp_path, Extent(seed=4, runs=14, in_flight=14, dose=dose, shape=shape))
    assert result.count("lost", "changed", "numbers"), f"nothing was found: {result}"


async def _never_ends(made: Storm) -> None:
    """A run that hangs, and whose client waits for it."""
    client = Client(Load("load-hangs", "responses", "load-hangs [[hang=1]]"), "follow", made.chance, made.cluster.line)
    await client.bring_to_its_end(2.0)
    made.clients.append(client)
    assert {"stuck", "end"} <= {finding.kind for finding in (await made.judged()).found}
    made.clients.pop()
