"""Who may begin a run: the whole decision as a table."""

from __future__ import annotations

import pytest

from ninelives.core.admission import (
    Accept,
    Asked,
    Attach,
    ConversationFound,
    Found,
    KeyFound,
    RunFound,
    decide,
    editable,
    resolve_without_store,
)
from ninelives.core.errors import ClientError
from ninelives.core.spec import Resolved

RUN, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


def asks(**fields: object) -> Asked:
    return Asked(
        **{"owner": "alice", "fingerprint": "1:x", "fresh_conversation": "conv_new", "derived_session": "auto-1"}
        | fields  # type: ignore[arg-type]
    )


ACCEPTED = [
    ("nothing named: a derived session, no history", asks(), Found(), Resolved(session="auto-1")),
    (
        "D2 a named session gives its turns and remembers",
        asks(session="s"),
        Found(session_turns=3),
        Resolved(session="s", session_turns=3, remember=True),
    ),
    (
        "D2 a named session that is new has no turns yet",
        asks(session="s"),
        Found(),
        Resolved(session="s", session_turns=0, remember=True),
    ),
    (
        "D2 a turn with store left out is added to its session",
        asks(session="s", kept="hours"),
        Found(session_turns=3),
        Resolved(session="s", session_turns=3, remember=True),
    ),
    (
        "D2 a turn with store=false reads its session and changes nothing",
        asks(session="s", kept="delivery"),
        Found(session_turns=3),
        Resolved(session="s", session_turns=3),
    ),
    (
        "D2 so does one in memory",
        asks(session="s", kept="memory"),
        Found(session_turns=3),
        Resolved(session="s", session_turns=3),
    ),
    (
        "D2 the same with a chain",
        asks(previous=RUN, session="s", kept="delivery"),
        Found(previous=RunFound(True, "s-old")),
        Resolved(previous=RUN, session="s"),
    ),
    (
        "D2 and in a conversation",
        asks(conversation="trip", session="s", kept="delivery"),
        Found(conversation=ConversationFound("conv_1", RUN, None)),
        Resolved(previous=RUN, conversation="conv_1", session="s"),
    ),
    (
        "D2 a request with its own history gets none from the session",
        asks(session="s", history_given=True),
        Found(session_turns=3),
        Resolved(session="s", remember=True),
    ),
    ("D2 a session that was not named gives no turns", asks(), Found(session_turns=3), Resolved(session="auto-1")),
    (
        "C6 a chain: its session goes along",
        asks(previous=RUN),
        Found(previous=RunFound(True, "s-old")),
        Resolved(previous=RUN, session="s-old"),
    ),
    (
        "D2 chain and session: the chain gives the history, the header names the session",
        asks(previous=RUN, session="s"),
        Found(previous=RunFound(True, "s-old"), session_turns=9),
        Resolved(previous=RUN, session="s", remember=True),
    ),
    (
        "C6 a chain that is not stored",
        asks(previous=RUN, kept="delivery"),
        Found(previous=RunFound(True, "s-old")),
        Resolved(previous=RUN, session="s-old"),
    ),
    (
        "C7 a new name is created on use",
        asks(conversation="trip"),
        Found(),
        Resolved(conversation="conv_new", session="conv_new"),
    ),
    (
        "C7 a turn that is not stored makes no conversation",
        asks(conversation="trip", kept="delivery"),
        Found(),
        Resolved(session="auto-1"),
    ),
    (
        "C7 the latest completed run comes before",
        asks(conversation="trip"),
        Found(conversation=ConversationFound("conv_1", RUN, None)),
        Resolved(previous=RUN, conversation="conv_1", session="conv_1"),
    ),
    (
        "C7 a known id without a run",
        asks(conversation="conv_1"),
        Found(conversation=ConversationFound("conv_1", None, None)),
        Resolved(conversation="conv_1", session="conv_1"),
    ),
    (
        "C7 a turn that is not stored reads the latest and is never refused",
        asks(conversation="trip", kept="delivery"),
        Found(conversation=ConversationFound("conv_1", RUN, OTHER)),
        Resolved(previous=RUN, conversation="conv_1", session="conv_1"),
    ),
    (
        "D2 conversation and session",
        asks(conversation="trip", session="s"),
        Found(conversation=ConversationFound("conv_1", RUN, None), session_turns=4),
        Resolved(previous=RUN, conversation="conv_1", session="s", remember=True),
    ),
    ("C5 a key that nobody used", asks(key="k"), Found(), Resolved(session="auto-1")),
]


@pytest.mark.parametrize(("rule", "asked", "found", "resolved"), ACCEPTED, ids=[row[0] for row in ACCEPTED])
def test_accepted(rule: str, asked: Asked, found: Found, resolved: Resolved) -> None:
    """C5, C6, C7, D2."""
    assert decide(asked, found) == Accept(resolved)


ACTIVE = ConversationFound("conv_1", RUN, OTHER)
REFUSED = [
    ("C5 other request", asks(key="k"), Found(key=KeyFound(RUN, "1:y")), 409, "idempotency_key_conflict", None),
    ("C6 unknown", asks(previous=RUN), Found(), 404, "response_not_found", "previous_response_id"),
    (
        "C6 active, failed or cancelled",
        asks(previous=RUN),
        Found(previous=RunFound(False, "s")),
        409,
        "previous_response_not_completed",
        "previous_response_id",
    ),
    ("C7 unknown id", asks(conversation="conv_x"), Found(), 404, "conversation_not_found", "conversation"),
    (
        "C7 active",
        asks(conversation="trip"),
        Found(conversation=ACTIVE),
        409,
        "conversation_response_not_completed",
        "conversation",
    ),
]


@pytest.mark.parametrize(
    ("asked", "found", "status", "code", "param"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused(asked: Asked, found: Found, status: int, code: str, param: str | None) -> None:
    """C5, C6, C7."""
    with pytest.raises(ClientError) as caught:
        decide(asked, found)
    assert (caught.value.status, caught.value.code, caught.value.param) == (status, code, param)


def test_an_unknown_previous_response_is_named_in_the_message() -> None:
    """C6, G7."""
    with pytest.raises(ClientError, match=f"^Response not found: resp_{RUN}$"):
        decide(asks(previous=RUN), Found())


def test_the_active_response_is_named_in_the_message() -> None:
    """C7: the caller can wait for it or cancel it."""
    with pytest.raises(ClientError, match=f"resp_{OTHER} is still running"):
        decide(asks(conversation="trip"), Found(conversation=ACTIVE))


@pytest.mark.parametrize(
    "found",
    [
        Found(key=KeyFound(RUN, "1:x")),
        Found(key=KeyFound(RUN, "1:x"), conversation=ACTIVE),
        Found(key=KeyFound(RUN, "1:x"), previous=RunFound(False, "s")),
        Found(key=KeyFound(RUN, "1:x"), previous=None, session_turns=7),
    ],
    ids=["alone", "conversation active", "previous not completed", "everything else is gone"],
)
def test_a_known_key_with_the_same_request_attaches_whatever_else_is_true(found: Found) -> None:
    """C5, R16: idempotency comes first."""
    assert decide(asks(key="k", previous=RUN, conversation=None), found) == Attach(RUN)
    assert decide(asks(key="k", conversation="trip"), found) == Attach(RUN)


def test_a_key_of_another_request_is_refused_before_anything_else_is_looked_at() -> None:
    """R16."""
    with pytest.raises(ClientError) as caught:
        decide(asks(key="k", previous=RUN), Found(key=KeyFound(RUN, "1:y")))
    assert caught.value.code == "idempotency_key_conflict"


@pytest.mark.parametrize("kept", ["stored", "hours", "delivery"])
def test_b8_a_request_joins_the_run_whose_connection_was_lost(kept: str) -> None:
    """B8, G13: also where a new run would be refused, because that run holds the conversation."""
    assert decide(asks(match="m", kept=kept), Found(lost=RUN)) == Attach(RUN, again=True)
    busy = Found(lost=OTHER, conversation=ACTIVE)
    assert decide(asks(match="m", conversation="trip", kept=kept), busy) == Attach(OTHER, again=True)


def test_b8_a_key_is_asked_first_and_a_key_that_nobody_used_joins_nothing() -> None:
    """C5, R16: a key names its run; nothing has to be guessed."""
    assert decide(asks(key="k"), Found(key=KeyFound(RUN, "1:x"), lost=OTHER)) == Attach(RUN)
    assert isinstance(decide(asks(key="k"), Found(lost=OTHER)), Accept)


# Conversations as things of their own (C8)


def test_a_conversation_is_made_whatever_its_client_calls_it() -> None:
    asked = Asked(owner="o", fingerprint="f", conversation_use="make", fresh_conversation="conv_new")
    assert decide(asked, Found()) == Accept(Resolved(conversation="conv_new", session="conv_new"))


def test_what_extends_a_conversation_makes_none() -> None:
    for named in ("talk", "conv_x"):
        asked = Asked(owner="o", fingerprint="f", conversation=named, conversation_use="extend")
        with pytest.raises(ClientError) as caught:
            decide(asked, Found())
        assert (caught.value.status, caught.value.code) == (404, "conversation_not_found")
        assert caught.value.param is None and named in caught.value.message


def test_a_conversation_can_be_edited_while_nothing_runs_in_it() -> None:
    free = ConversationFound("conv_x", "r1", None)
    assert editable("talk", free) is free
    for found, status in ((None, 404), (ConversationFound("conv_x", "r1", "r2"), 409)):
        with pytest.raises(ClientError) as caught:
            editable("talk", found)
        assert caught.value.status == status


def test_what_names_nothing_is_settled_without_a_store_exactly_as_with_an_empty_one() -> None:
    plain = Asked(owner="o", fingerprint="f", derived_session="auto-1", kept="memory")
    assert decide(plain, Found()) == Accept(resolve_without_store(plain) or Resolved())
    names = {"key": "k", "previous": RUN, "conversation": "talk", "session": "s", "conversation_use": "make"}
    for name, value in {"match": "m", **names}.items():
        assert resolve_without_store(Asked(owner="o", fingerprint="f", **{name: value})) is None  # type: ignore[arg-type]
