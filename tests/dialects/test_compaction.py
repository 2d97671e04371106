"""The seal of a compaction: what only this server can make, for one owner, and nobody can read or change."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.responses import compaction
from ninelives.dialects.responses.compaction import seal, unseal
from tests.journals import Pen, quick

ALICE = Context("alice", {}, Profile("hermes-agent"), b"secret")


@quick
@given(st.text(max_size=300), st.text(alphabet="0123456789abcdef", min_size=8, max_size=24))
def test_what_was_sealed_is_read_by_its_owner_on_this_server_only(summary: str, run: str) -> None:
    sealed = seal(ALICE, run, summary)
    assert unseal(ALICE, sealed) == summary.encode("utf-8", "replace").decode()
    assert unseal(replace(ALICE, owner="bob"), sealed) is None
    assert unseal(replace(ALICE, secret=b"another"), sealed) is None


@quick
@given(st.text(min_size=1, max_size=50), st.data())
def test_no_bit_of_a_sealed_item_can_be_changed(summary: str, data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(seal(ALICE, "0123456789abcdef", summary)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unseal(ALICE, base64.urlsafe_b64encode(bytes(raw)).decode()) is None


@quick
@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_anything_else_is_nothing_and_never_an_exception(text: str) -> None:
    assert unseal(ALICE, text) is None


def test_a_seal_says_nothing_about_its_words_and_is_another_for_each_run() -> None:
    words = "The password is swordfish. " * 4
    one, two = seal(ALICE, "aaaaaaaa", words), seal(ALICE, "bbbbbbbb", words)
    assert one != two and b"swordfish" not in base64.urlsafe_b64decode(one)
    crossed = bytes(a ^ b for a, b in zip(*(base64.urlsafe_b64decode(s)[17:-32] for s in (one, two)), strict=True))
    assert any(crossed), "no key stream is used twice"


def test_an_empty_cut_or_failed_summary_is_an_error() -> None:
    """Half a summary would lose the other half of the conversation."""
    assert compaction.failure(Pen().attempt().text("All of it.").settle().complete().state) is None
    empty = compaction.failure(Pen().attempt().text("  ").settle().complete().state)
    assert empty is not None and (empty.code, empty.status) == ("compaction_failed", 502)
    cut = Pen().attempt().text("Half").settle(finish="length").write(e.RunInterrupted("max_output_tokens"))
    told = compaction.failure(cut.state)
    assert told is not None and (told.code, told.status) == ("compaction_failed", 502)
    failed = e.RunFailed(code="server_error", message="Down.", reason="upstream_unreachable", status=502)
    told = compaction.failure(Pen().attempt().write(failed).state)
    assert told is not None and told.code == "upstream_unreachable"


def test_pictures_and_files_of_the_user_are_kept_in_their_form() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:,x"}}
    said = {"role": "user", "content": [{"type": "text", "text": "See"}, image, file]}
    state = Pen().attempt().text("They looked.").settle().complete().state
    (kept, sealed) = compaction.body(state, ALICE, [said, {"role": "assistant", "content": "I see."}]).output
    assert kept["content"] == [
        {"type": "input_text", "text": "See"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:,x"},
    ]
    assert unseal(ALICE, sealed["encrypted_content"]) == "They looked."


def test_a_compaction_of_another_server_is_refused_by_its_first_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes of something else are neither decoded nor hashed."""
    read: list[int] = []
    decode = base64.b64decode

    def noting(text: bytes, *args: Any, **named: Any) -> bytes:
        read.append(len(text))
        return decode(text, *args, **named)

    monkeypatch.setattr(base64, "b64decode", noting)
    assert unseal(ALICE, "gAAA" * 100_000) is None
    assert sum(read) <= 4
