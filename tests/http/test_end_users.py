"""End users behind a front end: who a request acts for, and that no two of them are one owner."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from itertools import product

import pytest

from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Profile, is_session_name
from ninelives.http.edge.access import ProfileAccess
from ninelives.http.edge.end_users import EndUsers, owner_for
from ninelives.http.edge.keys import ApiKey
from ninelives.tools.workspace import workspace_name

NOW = 1_800_000_000.0
CHAT = "/v1/chat/completions"
SECRET = "a-secret-of-the-front-end-0123456789"


def key(acts_for: str = "yes", owner: str = "team") -> ApiKey:
    return ApiKey("k1", owner, frozenset({"chat"}), acts_for=acts_for)  # type: ignore[arg-type]


def named(users: EndUsers, acts_for: str = "yes", path: str = CHAT, **headers: bytes | list[bytes]) -> bytes | None:
    seen = {
        name.replace("_", "-").encode(): value if isinstance(value, list) else [value]
        for name, value in headers.items()
    }
    return users.of(key(acts_for), seen, path)


def token(claims: dict[str, object], secret: str = SECRET, alg: str = "HS256") -> bytes:
    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signed = part({"alg": alg, "typ": "JWT"}) + b"." + part(claims)
    digest = hmac.digest(secret.encode(), signed, hashlib.sha256)
    return signed + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")


PLAIN = EndUsers("", lambda: NOW)
SIGNED = EndUsers(SECRET, lambda: NOW)


@pytest.mark.parametrize("header", ["x_openwebui_user_id", "x_hermes_user_id", "x_end_user_id"])
def test_each_header_names_the_user(header: str) -> None:
    assert named(PLAIN, **{header: b"anna"}) == b"anna"  # type: ignore[arg-type]


def test_for_other_keys_the_headers_give_no_identity() -> None:
    assert named(PLAIN, "no", x_openwebui_user_id=b"anna", x_end_user_id=b"bert") is None


def test_a_request_without_a_user_is_400_and_names_the_setting_of_the_front_end() -> None:
    for sent in ({}, {"x_end_user_id": b""}):
        with pytest.raises(ClientError, match="ENABLE_FORWARD_USER_INFO_HEADERS=True") as told:
            named(PLAIN, **sent)  # type: ignore[arg-type]
        assert (told.value.status, told.value.code) == (400, "end_user_missing")
    assert named(PLAIN, "optional") is None
    assert named(PLAIN, path="/v1/models") is None, "a front end lists models for nobody in particular"


def test_two_users_are_refused() -> None:
    assert named(PLAIN, x_end_user_id=b"anna", x_hermes_user_id=b"anna") == b"anna"
    for sent in ({"x_end_user_id": b"anna", "x_hermes_user_id": b"bert"}, {"x_end_user_id": [b"anna", b"bert"]}):
        with pytest.raises(ClientError, match="several end users"):
            named(PLAIN, **sent)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="more than 256"):
        named(PLAIN, x_end_user_id=b"/" * 90)


def test_a_signed_user_counts_while_it_is_valid() -> None:
    assert named(SIGNED, x_openwebui_user_jwt=token({"sub": "anna", "exp": NOW + 300, "iss": "open-webui"})) == b"anna"
    bad = [
        token({"sub": "anna", "exp": NOW + 300}, secret="another secret"),
        token({"sub": "anna", "exp": NOW - 300}),
        token({"sub": "anna"}),
        token({"sub": "", "exp": NOW + 300}),
        token({"sub": ["anna"], "exp": NOW + 300}),
        token({"sub": "anna", "exp": NOW + 300}, alg="none"),
        token({"sub": "anna", "exp": NOW + 300}).rpartition(b".")[0] + b".",
        b"a.b",
        b"a.b.c",
        b"\xff.\xff.\xff",
        b"....",
    ]
    for each in bad:
        with pytest.raises(ClientError, match="user_jwt_secret"):
            named(SIGNED, x_openwebui_user_jwt=each)


def test_with_a_secret_an_unsigned_user_is_refused_and_without_one_a_signed() -> None:
    with pytest.raises(ClientError, match="FORWARD_USER_INFO_HEADER_JWT_SECRET"):
        named(SIGNED, x_openwebui_user_id=b"anna")
    with pytest.raises(ClientError, match=r"server\.user_jwt_secret"):
        named(PLAIN, x_openwebui_user_jwt=token({"sub": "anna", "exp": NOW + 300}))


def test_no_two_pairs_give_one_owner_or_one_folder() -> None:
    users = [
        b"a",
        b"A",
        b"a~b",
        b"a/b",
        b"a%2Fb",
        b"a%b",
        b"%61",
        b"..",
        b".",
        b"a b",
        b"\xc3\xa4",
        b"\xe4",
        b"~",
        b"%",
    ]
    owners = {owner_for(owner, user): (owner, user) for owner, user in product(["t", "t.a", "T"], users)}
    assert len(owners) == 3 * len(users)
    folders = {workspace_name(owner) for owner in owners}
    assert len(folders) == len(owners)
    for owner in owners:
        assert "/" not in owner and not is_session_name(owner), "it is no session of another owner: OWNER/SESSION"


def test_a_profile_of_the_owner_is_not_a_way_out_of_the_user() -> None:
    default, own = Profile(name="main"), Profile(name="team-profile", owner="team")
    access = ProfileAccess(default, {"team-profile": own})
    one = key()
    for path in (None, "team-profile"):
        entered, reach = access.enter(one, path)
        acting, reach = access.act_for(entered, reach, b"anna")
        assert acting.owner == "team~anna" and acting.id == "k1"
        assert {profile.owner for profile in (reach.profile, *reach.others.values())} == {"", "team~anna"}
        assert access.act_for(entered, access.enter(one, path)[1], b"anna")[0] is acting, "remembered"
        assert access.act_for(entered, access.enter(one, path)[1], b"bert")[0].owner == "team~bert"
