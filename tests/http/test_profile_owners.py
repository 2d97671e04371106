"""Profiles that separate people (A2): who reaches which profile, and that an admin key which acts for one of them keeps
them apart too. What ids of another profile answer is in test_routes_owner.py, which plays its whole table with two
profiles of different owners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ninelives.app.agents import choose_model
from ninelives.app.assemble import assemble
from ninelives.app.errors import ConfigError
from ninelives.app.keys import profile_keys
from ninelives.app.settings import load
from ninelives.http.edge.access import split_path
from ninelives.observe.log import Log
from ninelives.testing.fake_upstream import FakeUpstream
from tests.asgi import Answer
from tests.http.test_routes_owner import CHAT, KEYS, RESPONSES, RUNS, SESSIONS, TALKS, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN, LUCAS, EVA = "the-admin-key-0123456789abcdef", "lucas-key-0123456789abcdef", "eva-key-0123456789abcdefgh"
CONFIG = f"""
[profiles.coder]
system_prompt = "You write code."

[profiles.lucas]
owner = "lucas"
key = "{LUCAS}"
system_prompt = "You help Lucas."

[profiles.lucas-terse]
owner = "lucas"
system_prompt = "You help Lucas in few words."

[profiles.eva]
owner = "eva"
key = "{EVA}"

[[approvals]]
tool = "write_file"
ask = "always"
match = "to-be-asked"

[mcp.secret-place]
command = "/nowhere/to/be/found"
"""
UNTOLD = ("x-request-id", "date", "content-length")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    KEYS.update(admin=ADMIN, lucas=LUCAS, eva=EVA)
    data: Path = tmp_path_factory.mktemp("profiles")
    async with FakeUpstream() as up:
        flags = {
            "server.data_dir": str(data),
            "server.key": ADMIN,
            "model.url": up.url,
            "model.name": "m",
            "tools.sandbox": "off",
            "tools.approval": "never",
        }
        rules = data / "ninelives.toml"
        rules.write_text(CONFIG)
        loaded = load(rules, {"HOME": str(data)}, flags)
        model, _ = await choose_model(loaded.settings, {})
        built = await assemble(loaded, ADMIN, Log(lambda: "", None), model)
        await built.start()
        yield World(built, up, "lucas", ADMIN)
        await built.stop()


async def said(house: World, who: str, path: str, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await house.call(who, "POST", path, body, headers)
    assert answer.status in (200, 202), answer.body
    return dict(answer.json())


def outputs(response: dict[str, Any]) -> str:
    return str([item["output"] for item in response["output"] if item["type"] == "function_call_output"])


def tool(name: str, **arguments: str) -> dict[str, Any]:
    return {"input": f"[[tools={name}:{json.dumps(arguments)}]]"}


MODELS = [
    ("admin", "", ["hermes-agent", "coder", "lucas", "lucas-terse", "eva"]),
    ("admin", "/p/lucas", ["lucas", "hermes-agent", "coder", "lucas-terse"]),
    ("admin", "/p/coder", ["coder", "hermes-agent"]),
    ("lucas", "", ["lucas", "lucas-terse"]),
    ("lucas", "/p/lucas-terse", ["lucas-terse", "lucas"]),
    ("eva", "", ["eva"]),
]


@pytest.mark.parametrize(("who", "path", "names"), MODELS)
async def test_a2_a_key_sees_the_profiles_that_it_may_use(house: World, who: str, path: str, names: list[str]) -> None:
    models = (await house.call(who, "GET", f"{path}/v1/models")).json()["data"]
    assert [model["id"] for model in models] == names
    capabilities = (await house.call(who, "GET", f"{path}/v1/capabilities")).json()
    assert (capabilities["model"], capabilities["models"]) == (names[0], names)
    options = (await house.call(who, "GET", f"{path}/api/model/options")).json()
    assert (options["model"], options["providers"][0]["models"]) == (names[0], names)
    sets = (await house.call(who, "GET", f"{path}/v1/toolsets")).json()["data"]
    assert [each["profile"] for each in sets] == names
    for name in ("hermes-agent", "coder", "lucas", "lucas-terse", "eva", "nobody"):
        found = await house.call(who, "GET", f"{path}/v1/models/{name}")
        assert found.status == (200 if name in names else 404), name
        known = found.body.decode().partition("Known models: ")[2].partition(".")[0]
        assert name in names or known.split(", ") == names


async def test_a3_only_admin_keys_see_the_faults_of_mcp_servers(house: World) -> None:
    told = (await house.call("admin", "GET", "/v1/toolsets")).json()["mcp"]
    assert [each["name"] for each in told] == ["secret-place"]
    assert (await house.call("lucas", "GET", "/v1/toolsets")).json()["mcp"] == []


@pytest.mark.parametrize(
    ("who", "path", "asked", "answers"),
    [
        ("lucas", "", None, "lucas"),
        ("lucas", "", "default", "lucas"),
        ("lucas", "", "eva", "lucas"),
        ("lucas", "", "hermes-agent", "lucas"),
        ("lucas", "", "lucas-terse", "lucas-terse"),
        ("lucas", "/p/lucas-terse", "gpt-4o", "lucas-terse"),
        ("eva", "", "lucas", "eva"),
        ("admin", "", "gpt-4o", "hermes-agent"),
        ("admin", "/p/lucas", None, "lucas"),
        ("admin", "/p/lucas", "eva", "lucas"),
        ("admin", "/p/coder", "lucas", "coder"),
        ("admin", "", "eva", "eva"),
    ],
)
async def test_a2_an_unknown_name_never_leads_to_a_profile_of_another_owner(
    house: World, who: str, path: str, asked: str | None, answers: str
) -> None:
    named = {} if asked is None else {"model": asked}
    bodies = {
        CHAT: {"messages": [{"role": "user", "content": "hi"}]},
        RESPONSES: {"input": "hi"},
        "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    }
    for route, body in bodies.items():
        assert (await said(house, who, path + route, {**body, **named}))["model"] == answers, route
    run = (await said(house, who, path + RUNS, {"input": "hi", **named}))["run_id"]
    owner = {"lucas": "lucas", "lucas-terse": "lucas", "eva": "eva"}.get(answers, "default")
    row = await house.built.engine.find(owner, run.removeprefix("run_"))
    assert row is not None and row.model == answers


async def test_a_profile_of_another_owner_is_answered_like_an_unknown_one(house: World) -> None:
    def plain(answer: Answer, name: str) -> tuple[int, list[tuple[str, str]], str]:
        headers = sorted(pair for pair in answer.headers if pair[0] not in UNTOLD)
        return answer.status, headers, answer.body.decode().replace(name, "NAME")

    routes = [("GET", "/v1/models", None), ("GET", RUNS, None), ("GET", SESSIONS, None), ("POST", RUNS, {"input": "x"})]
    for method, path, body in routes:
        foreign = await house.call("lucas", method, f"/p/eva{path}", body)
        nobody = await house.call("lucas", method, f"/p/nobody{path}", body)
        assert plain(foreign, "eva") == plain(nobody, "nobody")
        assert (foreign.status, foreign.error()["code"]) == (404, "profile_not_found")


async def test_a2_a_fork_starts_no_run_in_a_profile_that_the_key_may_not_use(house: World) -> None:
    run = (await said(house, "admin", f"/p/lucas{RESPONSES}", {"input": "hi", "model": "coder"}))["id"]
    refused = await house.call("lucas", "POST", f"{RUNS}/{run}/fork", {"from_seq": 1})
    assert (refused.status, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert (await house.call("admin", "POST", f"/p/lucas{RUNS}/{run}/fork", {"from_seq": 1})).status == 202


async def test_a_path_with_a_profile_mirrors_every_route(house: World) -> None:
    for path in ("/v1/capabilities", RUNS, CHAT, TALKS, SESSIONS, "/v1/approvals", "/v1/skills", "/api/status"):
        answer = await house.call("lucas", "GET", f"/p/lucas{path}")
        assert answer.status == 200, path
    made = await said(house, "lucas", "/p/lucas" + RESPONSES, {"input": "hi"})
    for prefix in ("/p/lucas", "/p/lucas-terse", ""):
        assert (await house.call("lucas", "GET", f"{prefix}{RESPONSES}/{made['id']}")).status == 200
    assert (await house.call("lucas", "GET", "/p/lucas")).status == 404
    assert (await house.call("lucas", "GET", "/p/lucas/nope")).status == 404


async def test_a_path_is_split_into_profile_and_route() -> None:
    assert split_path("/p/lucas/v1/models") == ("lucas", "/v1/models")
    assert split_path("/v1/models") == (None, "/v1/models")
    for odd in ("/p/", "/p/lucas", "/p//v1/models", "/pp/lucas/v1"):
        assert split_path(odd) == (None, odd)


WAYS = [("admin", "/p/lucas", {}, "/p/eva", {}), ("admin", "", {"model": "lucas"}, "", {"model": "eva"})]


@pytest.mark.parametrize(("who", "one", "as_lucas", "other", "as_eva"), WAYS)
async def test_an_admin_key_keeps_the_profiles_apart_for_which_it_acts(
    house: World, who: str, one: str, as_lucas: dict[str, str], other: str, as_eva: dict[str, str]
) -> None:
    """Files, notes, sessions, runs, conversations and approvals."""

    async def lucas(body: dict[str, Any], **more: str) -> dict[str, Any]:
        return await said(house, who, one + RESPONSES, {**body, **as_lucas}, more)

    async def eva(body: dict[str, Any], **more: str) -> dict[str, Any]:
        return await said(house, who, other + RESPONSES, {**body, **as_eva}, more)

    word = f"secret-of-lucas-{len(one)}"
    await lucas(tool("write_file", path="kept.txt", content=word))
    for name, arguments in {"read_file": {"path": "kept.txt"}, "terminal": {"command": "cat kept.txt"}}.items():
        assert word in outputs(await lucas(tool(name, **arguments)))
        assert word not in outputs(await eva(tool(name, **arguments)))

    await lucas(tool("memory", action="add", text=word))
    assert word in outputs(await lucas(tool("memory", action="list")))
    assert word not in outputs(await eva(tool("memory", action="list")))

    began = len(house.up.requests)
    session = {"x-hermes-session-id": f"shared-{len(one)}"}
    first = await said(house, who, one + RESPONSES, {"input": word, **as_lucas}, session)
    await said(house, who, other + RESPONSES, {"input": "what do you know", **as_eva}, session)
    await lucas({"input": word, "conversation": f"talk-{len(one)}"})
    await eva({"input": "what do you know", "conversation": f"talk-{len(one)}"})
    asked = [request for request in house.up.requests[began:] if "what do you know" in str(request["messages"][-1])]
    assert len(asked) == 2 and word not in str(asked)

    for path in (f"{RESPONSES}/{first['id']}", f"{RUNS}/{first['id']}", f"{RUNS}/{first['id']}/events"):
        assert (await house.call("eva", "GET", path)).status == 404
        assert (await house.call("admin", "GET", f"/p/eva{path}")).status == 404
        assert (await house.call("admin", "GET", f"/p/lucas{path}")).status == 200
        assert (await house.call("lucas", "GET", path)).status == 200
    follow = {"input": "go on", "previous_response_id": first["id"], **as_eva}
    assert (await house.call(who, "POST", other + RESPONSES, follow)).status == 404

    asks = tool("write_file", path=f"to-be-asked-{len(one)}.txt", content=word)
    run = (await said(house, who, one + RUNS, {**asks, **as_lucas}))["run_id"]
    await _waits(house, run)
    for answering, path in (("eva", ""), ("admin", "/p/eva")):
        answer = await house.call(answering, "POST", f"{path}{RUNS}/{run}/approval", {"choice": "approve"})
        assert answer.status == 404, (answering, path)
    assert (await house.call("lucas", "POST", f"{RUNS}/{run}/approval", {"choice": "reject"})).status == 200


async def _waits(house: World, run: str) -> None:
    async with asyncio.timeout(60):
        while True:
            shown = (await house.call("lucas", "GET", f"{RUNS}/{run}")).json()
            if shown["status"] == "waiting_for_approval":
                return
            await asyncio.sleep(0.01)


REFUSED = {
    '[profiles.a]\nkey = "a-good-key-0123456789abc"': "has a key but no owner",
    '[profiles.a]\nowner = "a"\nkey = "short"': "has 5 characters",
    '[profiles.a]\nowner = "default"': "belongs to the admin key",
    '[profiles.a]\nowner = "a/b"': "1 to 128 letters",
    '[profiles.hermes-agent]\nowner = "a"': "the default profile is for everybody",
    f'[profiles.a]\nowner = "a"\nkey = "{ADMIN}"': "the same key as the admin",
    f'[profiles.a]\nowner = "a"\nkey = "{EVA}"\n[profiles.b]\nowner = "b"\nkey = "{EVA}"': "same key as [profiles.a]",
}


async def test_an_admin_key_sees_what_a_kill_did_to_the_runs_that_it_lists(house: World) -> None:
    runs = {who: (await said(house, who, "/v1/runs", {"input": "hi"}))["run_id"] for who in ("lucas", "eva")}
    house.built.engine._finder.survivors.extend((who, run.removeprefix("run_")) for who, run in runs.items())
    for who, path, seen in (
        ("admin", "", {"lucas", "eva"}),
        ("admin", "/p/lucas", {"lucas"}),
        ("eva", "", {"eva"}),
    ):
        told = (await house.call(who, "GET", f"{path}/api/exit")).json()
        assert set(told["runs"]) == {runs[each] for each in seen} and told["went_on"] == len(seen)


@pytest.mark.parametrize("text", REFUSED)
async def test_owners_and_keys_that_would_not_separate_people_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ninelives.toml"
    file.write_text(text)
    settings = load(file, {"HOME": str(tmp_path)}, {}).settings
    with pytest.raises(ConfigError) as refused:
        profile_keys(settings, ADMIN)
    assert REFUSED[text] in str(refused.value)
    assert EVA not in str(refused.value) and ADMIN not in str(refused.value)
