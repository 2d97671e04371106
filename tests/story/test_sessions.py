"""Sessions as people understand them (D2): every session that owns a stored run is listed, one conversation is one
session, and each can be found, read, renamed, copied, exported and deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ninelives.cli import main
from tests.story import chat
from tests.story.responses import HANGS, PATH, create, started
from tests.story.server import KEY, Client, Json, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")
SESSIONS = "/api/sessions"


def say(text: str) -> str:
    return f"[[text={text}]]"


def listed(client: Client, **query: Any) -> list[Json]:
    words = "&".join(f"{name}={value}" for name, value in {"limit": 200, **query}.items())
    answer = client.get(f"{SESSIONS}?{words}")
    assert answer.status == 200, answer.body
    return list(answer.json()["data"])


def found(client: Client, mark: str) -> list[Json]:
    """The sessions whose text has this word, the one used last first."""
    return listed(client, search=mark)


def said(client: Client, session: str) -> list[tuple[str, str]]:
    data = client.get(f"{SESSIONS}/{session}/messages").json()["data"]
    return [(message["role"], message["content"]) for message in data]


def chat_turn(client: Client, history: list[Json], text: str, **more: Any) -> tuple[list[Json], str]:
    """A chat that resends its history: all messages after it, and the session that the answer names."""
    messages = [*history, {"role": "user", "content": text}]
    answer = client.post(chat.PATH, {"messages": messages, **more}, more.pop("headers", None))
    assert answer.status == 200, answer.body
    return [*messages, answer.json()["choices"][0]["message"]], answer.headers["x-hermes-session-id"]


def test_d2_a_chain_a_conversation_and_a_named_session_are_one_session_each(client: Client, mark: str) -> None:
    first = create(client, f"{mark} chain {say('one')}")
    create(client, f"{mark} second {say('two')}", previous_response_id=first["id"])
    for n in range(3):
        create(client, f"{mark} talk {n} {say('hm')}", conversation=f"talk-{mark}")
    for n in range(2):
        chat.create(client, f"{mark} named {n} {say('ah')}", {"x-hermes-session-id": f"named-{mark}"})
    sessions = found(client, mark)
    assert [each["turns"] for each in sessions] == [2, 3, 2] and [each["message_count"] for each in sessions] == [
        4,
        6,
        4,
    ]
    assert [each["source"] for each in sessions] == ["chat", "responses", "responses"]
    named, talk, chain = sessions
    assert named["id"] == f"named-{mark}" and talk["id"].startswith("conv_") and chain["id"].startswith("auto-")
    assert chain["preview"].startswith(f"{mark} chain") and chain["model"] == "hermes-agent"
    assert chain["input_tokens"] > 0 and chain["created_at"] <= chain["last_active"]
    assert [role for role, _ in said(client, chain["id"])] == ["user", "assistant"] * 2
    assert [text for _, text in said(client, talk["id"])][1::2] == ["hm"] * 3
    assert [text for _, text in said(client, named["id"])][1::2] == ["ah"] * 2


def test_d2_a_session_is_found_by_the_id_that_its_answers_echo(client: Client, mark: str) -> None:
    for path, body in ((chat.PATH, chat.ask(f"{mark} a")), (PATH, {"input": f"{mark} b"})):
        answer = client.post(path, body)
        shown = client.get(f"{SESSIONS}/{answer.headers['x-hermes-session-id']}")
        assert shown.status == 200 and shown.json()["preview"].startswith(mark)
        assert shown.json()["session"]["id"] == shown.json()["id"]


def test_d2_chats_that_begin_alike_are_separate_sessions_and_changes_touch_one(client: Client, mark: str) -> None:
    begins = f"hello {mark}"
    one, shared = chat_turn(client, [], f"{begins}", store=True)
    _, same = chat_turn(client, [], f"{begins}", store=True)
    assert shared == same, "the derived id is the same"
    one, _ = chat_turn(
        client, [*one[:1], {"role": "assistant", "content": "changed"}], f"{mark} only in one", store=True
    )
    sessions = found(client, mark)
    assert len(sessions) == 2 and {each["id"] for each in sessions} >= {shared}
    first, second = (each["id"] for each in sessions)
    assert client.call("PATCH", f"{SESSIONS}/{first}", {"title": "Renamed"}).json()["title"] == "Renamed"
    assert client.get(f"{SESSIONS}/{second}").json()["title"] is None
    assert client.delete(f"{SESSIONS}/{first}").json()["deleted"] is True
    assert [each["id"] for each in found(client, mark)] == [second]
    assert said(client, second)[0] == ("user", begins)


def test_d2_a_chat_of_a_front_end_is_one_session(client: Client, mark: str) -> None:
    history: list[Json] = []
    for n in range(3):
        history, session = chat_turn(client, history, f"{mark} {n}", headers={"x-openwebui-chat-id": f"chat-{mark}"})
    (one,) = found(client, mark)
    assert (one["id"], session, one["source"], one["turns"]) == (f"owui-chat-{mark}",) * 2 + ("open-webui", 3)
    assert one["message_count"] == 6 and len(said(client, one["id"])) == 6


def test_d2_a_chat_that_resends_its_history_is_one_session(client: Client, mark: str) -> None:
    history: list[Json] = []
    for n in range(3):
        history, _ = chat_turn(client, history, f"{mark} {n}")
    (one,) = found(client, mark)
    assert (one["turns"], one["message_count"]) == (3, 6) and len(said(client, one["id"])) == 6


def test_d2_a_session_is_listed_while_its_first_run_is_at_work(client: Client, mark: str) -> None:
    shown = started(client, f"{mark} {HANGS}")
    session = client.get(f"/v1/runs/{shown}").json()["session_id"]
    assert client.get(f"{SESSIONS}/{session}").json()["preview"].startswith(mark)
    client.post(f"{PATH}/{shown}/cancel")
    assert client.get(f"{SESSIONS}/{session}").json()["turns"] == 1


def test_d2_store_false_leaves_nothing_in_the_list_or_the_search(client: Client, mark: str) -> None:
    chat.create(client, f"{mark} chat", store=False)
    create(client, f"{mark} response", store=False)
    assert found(client, mark) == []
    assert not any(mark in each["preview"] for each in listed(client))


def test_d2_a_search_shows_where_it_found_the_words(client: Client, mark: str) -> None:
    word = mark.replace("-", "x")
    create(client, f"{'filler ' * 50}the {word} stands here{' filler' * 50} {say('and a Zebra')}")
    (hit,) = listed(client, search=f"{word[:-1]}%20stan")
    assert f">>>{word}<<< >>>stands<<<" in hit["snippet"] and len(hit["snippet"]) < 300
    assert listed(client, search=f"{word}%20giraffe") == []
    assert client.get(f"{SESSIONS}?search=%2B").error()["param"] == "search"


def test_d2_a_search_does_not_find_an_item_that_was_removed_at_once(client: Client, mark: str) -> None:
    talk = client.post("/v1/conversations", {}).json()["id"]
    create(client, f"{mark} is a secret {say('yes')}", conversation=talk)
    create(client, f"another word {say('no')}", conversation=talk)
    items = client.get(f"/v1/conversations/{talk}/items?order=asc").json()["data"]
    assert client.delete(f"/v1/conversations/{talk}/items/{items[0]['id']}").status == 200
    assert found(client, mark) == []
    assert client.get(f"{SESSIONS}/{talk}").json()["preview"] == ""


def test_d2_the_messages_of_a_session_have_no_removed_item(client: Client, mark: str) -> None:
    talk = client.post("/v1/conversations", {}).json()["id"]
    create(client, f"{mark} is a secret {say('yes')}", conversation=talk)
    items = client.get(f"/v1/conversations/{talk}/items?order=asc").json()["data"]
    assert client.delete(f"/v1/conversations/{talk}/items/{items[0]['id']}").status == 200
    assert said(client, talk) == [("assistant", "yes")]


def test_d2_a_search_has_at_most_32_words_and_256_characters(client: Client, mark: str) -> None:
    words = [f"{mark}{n}" for n in range(33)]
    short = "+".join(f"w{n}" for n in range(33))
    assert client.get(f"{SESSIONS}?search={short.rpartition('+')[0]}").status == 200
    for much in (short, "+".join(words), "x" * 3000):  # PostgreSQL takes no word of more than 2046 bytes
        answer = client.get(f"{SESSIONS}?search={much}")
        assert (answer.status, answer.error()["param"]) == (400, "search")


def test_d2_pages_go_by_offset_and_by_the_last_id(client: Client, mark: str) -> None:
    for n in range(5):
        create(client, f"{mark} number {n}")
    everything = [each["id"] for each in found(client, mark)]
    page = client.get(f"{SESSIONS}?search={mark}&limit=2&offset=1").json()
    assert [each["id"] for each in page["data"]] == everything[1:3] and page["has_more"] is True
    assert (page["limit"], page["offset"]) == (2, 1)
    after = client.get(f"{SESSIONS}?search={mark}&limit=10&after={everything[2]}").json()
    assert [each["id"] for each in after["data"]] == everything[3:] and after["has_more"] is False
    assert listed(client, search=mark, source="messages") == []


def test_d2_messages_have_times_and_the_names_of_tools(client: Client, mark: str) -> None:
    create(client, f'{mark} [[tools=terminal:{{"command":"echo tick"}}]]', conversation=f"tools-{mark}")
    (one,) = found(client, mark)
    data = client.get(f"{SESSIONS}/{one['id']}/messages").json()["data"]
    assert [message["role"] for message in data] == ["user", "assistant", "tool", "assistant"]
    assert data[2]["tool_name"] == "terminal" and "tick" in data[2]["content"]
    assert all(one["created_at"] <= message["timestamp"] <= one["last_active"] for message in data)


def test_d2_a_copy_of_any_session_goes_on_with_what_was_said(client: Client, upstream: Upstream, mark: str) -> None:
    first = create(client, f"{mark} chain {say('uno')}")
    create(client, f"{mark} more {say('due')}", previous_response_id=first["id"])
    (chain,) = found(client, mark)
    copy = client.post(f"{SESSIONS}/{chain['id']}/fork", {"id": f"copy-{mark}", "title": "The copy"})
    assert copy.status == 201 and copy.json()["turns"] == 2 and copy.json()["title"] == "The copy"
    assert client.post(f"{SESSIONS}/{chain['id']}/fork", {"id": f"copy-{mark}"}).status == 409
    chat.create(client, f"{mark} goes on", {"x-hermes-session-id": f"copy-{mark}"})
    told = [message["content"] for message in upstream.asked(f"{mark} goes on")[-1]["messages"]]
    assert "uno" in told and "due" in told
    assert len(said(client, f"copy-{mark}")) == 6 and len(said(client, chain["id"])) == 4
    assert client.delete(f"{SESSIONS}/{chain['id']}").status == 200
    assert client.get(f"{PATH}/{first['id']}").status == 404, "a deleted session takes its runs along"
    assert len(said(client, f"copy-{mark}")) == 6


def test_d2_a_session_is_exported_as_json_and_as_markdown(client: Client, mark: str) -> None:
    create(client, f'{mark} [[tools=terminal:{{"command":"echo ```"}}]] {say("done")}', conversation=f"x-{mark}")
    (one,) = found(client, mark)
    client.call("PATCH", f"{SESSIONS}/{one['id']}", {"title": "A title", "end_reason": "finished"})
    exported = client.get(f"{SESSIONS}/{one['id']}/export").json()
    assert exported["session"]["title"] == "A title" and exported["session"]["end_reason"] == "finished"
    assert [message["role"] for message in exported["messages"]] == ["user", "assistant", "tool", "assistant"]
    text = client.get(f"{SESSIONS}/{one['id']}/export?format=markdown")
    assert text.headers["content-type"].startswith("text/markdown")
    told = text.body.decode()
    assert told.startswith("# A title\n\n## User\n\n") and "**Output of terminal**" in told and "````" in told
    assert client.get(f"{SESSIONS}/{one['id']}/export?format=pdf").status == 400


def test_f2_the_command_lists_searches_shows_renames_copies_exports_and_deletes(
    server: Server, client: Client, mark: str, tmp_path: Path
) -> None:
    def cli(*words: str) -> str:
        args = [*words, "--url", server.url, "--key", KEY]
        result = CliRunner().invoke(main, ["sessions", *args], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    create(client, f"{mark} a walnut {say('falls')}", {"x-hermes-session-id": f"cli/{mark}"})
    assert cli("ls").splitlines()[0].split() == ["ID", "USED", "TURNS", "TOKENS", "SOURCE", "TITLE"]
    row = next(line for line in cli("ls").splitlines() if line.startswith(f"cli/{mark} "))
    assert row.split()[1][-1] in "smh" and row.split()[2] == "1" and "a walnut" in row
    assert ">>>walnut<<<" in cli("search", "walnut", mark)
    assert json.loads(cli("search", "nothing", mark, "--json"))["data"] == []
    assert cli("rename", f"cli/{mark}", "A nut") == f"cli/{mark}: A nut\n"
    assert "title: A nut" in cli("show", f"cli/{mark}") and "[assistant] falls" in cli("show", f"cli/{mark}")
    copy = cli("fork", f"cli/{mark}", "--id", f"copy-{mark}").strip()
    file = tmp_path / "out.md"
    cli("export", copy, "-o", str(file))
    assert file.read_text().startswith("# A nut\n") and "falls" in cli("export", copy, "--format", "json")
    assert cli("rm", copy, "--yes") == f"{copy}: deleted\n"
    assert CliRunner().invoke(main, ["sessions", "show", copy, "--url", server.url, "--key", KEY]).exit_code == 1


def test_d2_a_server_that_is_killed_before_it_lists_a_run_lists_it_after_its_start(
    upstream: Upstream, tmp_path: Path
) -> None:
    server: Server = start_server(tmp_path, upstream.url)
    create(server.client, "a walrus appears")
    server.kill()
    server = start_server(tmp_path, upstream.url)
    try:
        (one,) = listed(server.client, search="walrus")
        assert one["turns"] == 1
        wait_until(lambda: len(listed(server.client, search="walrus")) == 1, "it is listed once")
    finally:
        assert server.stop() == 0
