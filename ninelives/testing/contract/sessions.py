"""Contract: listed sessions. Owns: the rules of Sessions (D2). See contract.py."""

from __future__ import annotations

from typing import Any

import msgspec

from ninelives.core.sessions import SessionTurn, marks_of, words_of
from ninelives.core.spec import Message
from ninelives.journal.values import NewSession, Removal, Retention, SessionQuery, SessionRow, StoredTurn
from ninelives.testing.author import Author, Backend

DERIVED = "auto-1"


def says(user: str, assistant: str) -> list[Message]:
    """A turn of two messages."""
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def blob(*messages: Message) -> bytes:
    """A stored turn."""
    return msgspec.json.encode(messages)


class Lister:
    """Lists the runs of one author, as an engine does."""

    def __init__(self, backend: Backend, author: Author) -> None:
        self.sessions = backend.store.sessions
        self.author = author
        self.clock = backend.clock

    def turn(self, run: str, **fields: Any) -> SessionTurn:
        """What a run shows; one of a derived session by default."""
        now = self.clock.now_ms()
        given = {"owner": self.author.owner, "run": run, "at": now, "created_at": now, "session": DERIVED, **fields}
        return SessionTurn(**given)

    async def add(self, run: str, **fields: Any) -> None:
        """List one run."""
        await self.sessions.list_turns([self.turn(run, **fields)])

    async def chat(self, run: str, history: list[Message], user: str, answer: str) -> None:
        """A stored chat that resends its history: one run, listed."""
        await self.sessions.list_turns([await self.chat_turn(run, history, user, answer)])

    async def chat_turn(self, run: str, history: list[Message], user: str, answer: str) -> SessionTurn:
        """The same, not listed yet."""
        await self.author.finished(run, derived_session=DERIVED)
        said = says(user, answer)
        text = f"{user}\n\n{answer}"
        before, after = marks_of(DERIVED, history), marks_of(DERIVED, [*history, *said])
        counts = {"messages": 2, "earlier": len(history), "text": text, "preview": user, "source": "chat"}
        return self.turn(run, before=before, after=after, **counts)

    async def ids(self, **query: Any) -> list[str]:
        """The ids of a page."""
        return [hit.row.session for hit in await self.sessions.page(SessionQuery(owner=self.author.owner, **query))]

    async def found(self, words: str) -> list[str]:
        """The ids of the sessions that a search finds."""
        return await self.ids(words=tuple(words_of(words)))

    async def row(self, session: str) -> SessionRow:
        """A session that is there."""
        row = await self.sessions.find(self.author.owner, session)
        assert row is not None
        return row


def listing(backend: Backend, owner: str = "ann") -> tuple[Author, Lister]:
    """An author and a lister of its runs."""
    author = Author(backend, owner)
    return author, Lister(backend, author)


class SessionContract:
    """Every session that owns a stored run is listed, once."""

    # what must be listed

    async def test_d2_a_run_is_unlisted_until_it_is_listed_with_its_end(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("done")
        await ann.open("open")
        sessions = backend.store.sessions
        assert await sessions.unlisted("ann", 9, begun=False) == [("ann", "done")]
        assert await sessions.unlisted(None, 9, begun=True) == [("ann", "done"), ("ann", "open")]
        await lister.add("done")
        await lister.add("open", ended=False)
        assert await sessions.unlisted(None, 9, begun=True) == []
        await ann.end("open")
        assert await sessions.unlisted("bob", 9, begun=True) == []
        assert await sessions.unlisted("ann", 9, begun=False) == [("ann", "open")]
        await lister.add("open")
        assert await sessions.unlisted(None, 9, begun=True) == []

    async def test_d2_a_run_that_leaves_nothing_is_never_listed(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("gone", kept="delivery")
        await ann.open("going", kept="delivery")
        assert await backend.store.sessions.unlisted(None, 9, begun=True) == []
        assert await lister.ids() == []

    async def test_d2_a_run_is_listed_once(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("r1")
        for _ in range(2):
            await lister.add("r1", messages=2, input_tokens=10, output_tokens=5, text="zebra")
        await lister.add("r1", ended=False)
        row = await lister.row(DERIVED)
        assert (row.turns, row.messages, row.input_tokens, row.output_tokens) == (1, 2, 10, 5)
        assert await lister.found("zebra") == [DERIVED]

    async def test_d2_what_the_last_process_left_is_listed_by_the_next(self, backend: Backend) -> None:
        ann, _ = listing(backend)
        await ann.finished("r1", session="s")
        heir = await backend.reborn()
        assert await heir.store.sessions.unlisted(None, 9, begun=False) == [("ann", "r1")]

    async def test_d2_a_turn_whose_run_is_gone_is_listed_from_its_session(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.open("r1", session="s", kept="hours")
        await ann.end("r1", turn=blob(*says("a zebra", "yes")), session="s")
        sessions = backend.store.sessions
        assert await sessions.unlisted_turns(None, 9) == [], "its run is listed"
        await backend.store.forget([("ann", "r1")])
        for _ in range(2):
            await sessions.list_turns(await sessions.unlisted_turns("ann", 9))
        row = await lister.row("s")
        assert (row.turns, row.messages, row.preview) == (1, 2, "a zebra")
        assert await lister.found("zebra") == ["s"] and await sessions.unlisted_turns(None, 9) == []

    # which session

    async def test_d2_a_conversation_a_chain_and_a_named_session_are_one_session_each(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("n1", session="desk")
        await lister.add("n1", session="desk", named=True)
        for run in ("c1", "c2"):
            await ann.finished(run, conversation="talk")
            await lister.add(run, session="conv_c1", conversation="conv_c1")
        await ann.finished("p1", derived_session=DERIVED)
        await lister.add("p1")
        for run, previous in (("p2", "p1"), ("p3", "p2")):
            await ann.finished(run, previous=previous)
            await lister.add(run, previous=previous)
        assert sorted(await lister.ids()) == sorted(["desk", "conv_c1", DERIVED])
        assert [(await lister.row(each)).turns for each in ("desk", "conv_c1", DERIVED)] == [1, 2, 3]
        assert [row.run for row in await backend.store.sessions.runs("ann", DERIVED)] == ["p1", "p2", "p3"]

    async def test_d2_chats_that_begin_alike_are_separate_and_each_goes_on(self, backend: Backend) -> None:
        _, lister = listing(backend)
        await lister.chat("a1", [], "hello", "hi")
        await lister.chat("b1", [], "hello", "good day")
        first, second = DERIVED, f"{DERIVED}.b1"
        await lister.chat("b2", says("hello", "good day"), "and now?", "now this")
        await lister.chat("a2", says("hello", "hi"), "and now?", "now that")
        await lister.chat("a3", [*says("hello", "hi"), *says("and now?", "now that")], "more", "much more")
        assert [each.run for each in await backend.store.sessions.runs("ann", first)] == ["a1", "a2", "a3"]
        assert [each.run for each in await backend.store.sessions.runs("ann", second)] == ["b1", "b2"]
        assert [(await lister.row(each)).messages for each in (first, second)] == [6, 4]
        await backend.store.sessions.change("ann", second, title="The second")
        assert ((await lister.row(first)).title, (await lister.row(second)).title) == ("", "The second")
        await backend.store.sessions.forget("ann", second)
        assert [each.run for each in await backend.store.sessions.runs("ann", first)] == ["a1", "a2", "a3"]

    async def test_d2_turns_that_are_listed_at_once_find_each_other(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        chats = [
            ("a1", [], "hello", "hi"),
            ("b1", [], "hello", "good day"),
            ("a2", says("hello", "hi"), "more", "much"),
        ]
        turns = [await lister.chat_turn(*chat) for chat in chats]
        await ann.finished("b2", previous="b1")
        turns.append(lister.turn("b2", previous="b1", text="last words"))
        await lister.sessions.list_turns(turns)
        first, second = DERIVED, f"{DERIVED}.b1"
        for entry, runs in ((first, ["a1", "a2"]), (second, ["b1", "b2"])):
            assert [each.run for each in await lister.sessions.runs("ann", entry)] == runs
            assert (await lister.row(entry)).turns == 2
        assert (await lister.found("last"), await lister.found("much")) == ([second], [first])
        await lister.sessions.list_turns(turns)
        assert (await lister.row(first)).turns == 2

    async def test_d2_a_chat_whose_client_changes_the_answers_is_one_session(self, backend: Backend) -> None:
        _, lister = listing(backend)
        await lister.chat("a1", [], "hello", "hi")
        await lister.chat("a2", says("hello", "hi (edited)"), "more", "much more")
        assert await lister.ids() == [DERIVED]

    async def test_d2_sessions_have_owners(self, backend: Backend) -> None:
        _, ann = listing(backend)
        _, bob = listing(backend, "bob")
        await ann.chat("a1", [], "hello", "a secret")
        await bob.chat("b1", [], "hello", "hi")
        assert await bob.found("secret") == [] and await ann.found("secret") == [DERIVED]
        await backend.store.sessions.change("bob", DERIVED, title="mine")
        assert (await ann.row(DERIVED)).title == ""
        await backend.store.sessions.forget("bob", DERIVED)
        assert await ann.ids() == [DERIVED]

    # pages and searches

    async def test_d2_a_page_has_the_session_used_last_first(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        for n, source in enumerate(("chat", "responses", "chat", "cli")):
            await ann.finished(f"r{n}", session=f"s{n}")
            await lister.add(f"r{n}", session=f"s{n}", named=True, source=source)
            backend.clock.advance(1)
        assert await lister.ids() == ["s3", "s2", "s1", "s0"]
        assert await lister.ids(limit=2, offset=1) == ["s2", "s1"]
        assert await lister.ids(limit=2, after="s2") == ["s1", "s0"]
        assert await lister.ids(source="chat") == ["s2", "s0"]
        assert await lister.ids(after="nobody") == []

    async def test_d2_a_search_finds_words_by_their_beginning_without_case_and_accents(self, backend: Backend) -> None:
        _, lister = listing(backend)
        await lister.chat("a1", [], "Wo ist das Café an der Straße?", "In der Nähe, foo_bar-baz.")
        for words in ("cafe", "CAFÉ", "caf nah", "bar", "straße café", "baz"):
            assert await lister.found(words) == [DERIVED], words
        for words in ("afe", "cafe zebra", "'); DROP"):
            assert await lister.found(words) == [], words
        (hit,) = await backend.store.sessions.page(SessionQuery(owner="ann", words=("cafe",)))
        assert hit.text.startswith("Wo ist das Café")

    async def test_d2_a_search_finds_titles_as_they_are_now(self, backend: Backend) -> None:
        _, lister = listing(backend)
        await lister.chat("a1", [], "hello", "hi")
        for title in ("Zebra", "Giraffe"):
            await backend.store.sessions.change("ann", DERIVED, title=title)
        assert await lister.found("giraffe") == [DERIVED] and await lister.found("zebra") == []
        await backend.store.sessions.change("ann", DERIVED, model="another")
        changed = await backend.store.sessions.find("ann", DERIVED)
        assert changed is not None and changed.model == "another"
        await backend.store.sessions.change("ann", DERIVED, end_reason="done")
        assert ((await lister.row(DERIVED)).title, (await lister.row(DERIVED)).end_reason) == ("Giraffe", "done")
        await backend.store.sessions.change("ann", DERIVED, title="")
        assert await lister.found("giraffe") == [] and await lister.found("hello") == [DERIVED]

    async def test_d2_an_item_that_was_removed_is_not_found(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("r1", conversation="talk")
        await lister.add("r1", session="conv_r1", conversation="conv_r1", text="a zebra\n\nyes")
        removal = Removal("r1", "item", lambda _: blob({"role": "assistant", "content": "yes"}))
        assert await backend.store.conversations.remove("ann", "talk", removal)
        assert await lister.found("zebra") == [] and await lister.found("yes") == ["conv_r1"]

    # what goes

    async def test_d2_a_session_goes_with_its_last_run(self, backend: Backend) -> None:
        _, lister = listing(backend)
        await lister.chat("a1", [], "a zebra", "yes")
        await lister.chat("a2", says("a zebra", "yes"), "a giraffe", "no")
        await backend.store.delete("ann", "a1")
        assert await lister.found("zebra") == [] and await lister.found("giraffe") == [DERIVED]
        await backend.store.delete("ann", "a2")
        assert await lister.ids() == [] and await lister.found("giraffe") == []

    async def test_d2_a_forgotten_run_leaves_nothing_in_the_list(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("r1", derived_session=DERIVED, kept="hours")
        await lister.add("r1", text="a zebra")
        assert await lister.found("zebra") == [DERIVED]
        await backend.store.forget([("ann", "r1")])
        assert await lister.ids() == [] and await lister.found("zebra") == []

    async def test_d2_a_named_session_keeps_what_was_said_when_its_run_goes(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("r1", session="s", kept="hours")
        await lister.add("r1", session="s", named=True, text="a zebra")
        await backend.store.forget([("ann", "r1")])
        assert await lister.found("zebra") == ["s"] and (await lister.row("s")).turns == 1
        await backend.store.sessions.forget("ann", "s")
        assert await lister.ids() == [] and await lister.found("zebra") == []
        assert await backend.store.sessions.turns("ann", "s") == []

    async def test_d2_the_runs_of_a_deleted_session_are_listed_again(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        await ann.finished("r1", session="s")
        await lister.add("r1", session="s", named=True)
        await backend.store.sessions.forget("ann", "s")
        assert await backend.store.sessions.unlisted(None, 9, begun=False) == [("ann", "r1")]

    async def test_p20_texts_and_empty_sessions_count_and_expire(self, backend: Backend) -> None:
        _, lister = listing(backend)
        sessions, upkeep = backend.store.sessions, backend.store.upkeep
        await lister.chat("a1", [], "hello", "x" * 50_000)
        (amount,) = await upkeep.usage()
        assert amount.bytes > 50_000
        assert await sessions.make(NewSession(owner="ann", session="empty", at=backend.clock.now_ms()))
        turn = StoredTurn(backend.clock.now_ms(), None, blob(*says("z" * 20_000, "yes")))
        assert await sessions.make(NewSession(owner="ann", session="full", at=backend.clock.now_ms(), turns=(turn,)))
        backend.clock.advance(1)
        await lister.chat("b1", [], "hello", "hi")
        later = backend.clock.now_ms()
        gone = await upkeep.evict(Retention(at=later, before=later), frozenset())
        assert (gone.runs, sorted(gone.sessions)) == ([("ann", "a1")], [("ann", "empty"), ("ann", "full")])
        assert await lister.ids() == [f"{DERIVED}.b1"] and await lister.found("zzzz") == []

    # creating

    async def test_d2_a_created_session_has_its_turns_and_goes_on(self, backend: Backend) -> None:
        ann, lister = listing(backend)
        sessions = backend.store.sessions
        turns = tuple(StoredTurn(1_000 + n, None, blob(*says(f"word{n}", "yes"))) for n in range(2))
        new = NewSession(owner="ann", session="copy", at=3_000, title="Giraffe", source="cli", turns=turns)
        assert await sessions.make(new) and not await sessions.make(new)
        row = await lister.row("copy")
        assert (row.made, row.title, row.source, row.turns, row.messages) == (True, "Giraffe", "cli", 2, 4)
        assert (row.preview, row.created_at, row.updated_at) == ("word0", 1_000, 3_000)
        for words in ("word0", "word1", "giraffe"):
            assert await lister.found(words) == ["copy"], words
        await sessions.change("ann", "copy", title="Zebra")
        assert await lister.found("word1") == ["copy"] and await lister.found("giraffe") == []
        opened = await ann.finished("r1", session="copy")
        assert await backend.store.turns("ann", opened.resolved) == [turn.turn for turn in turns]
        assert len(await sessions.turns("ann", "copy")) == 3
        await lister.add("r1", session="copy", named=True)
        await backend.store.delete("ann", "r1")
        assert (await lister.row("copy")).turns == 3

    async def test_d2_a_created_session_does_not_replace_one_that_is_not_listed_yet(self, backend: Backend) -> None:
        ann, _ = listing(backend)
        await ann.finished("r1", session="s")
        assert not await backend.store.sessions.make(NewSession(owner="ann", session="s", at=1))
