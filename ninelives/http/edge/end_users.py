"""End users behind a front end. Owns: who a request with an `acts_for` key acts for, and the owner that belongs to the
pair of key and user. For all other keys these headers give no identity and no rights. Refuses to know: profiles, and
what a request asks for.

The owner is KEY_OWNER~USER. A `~` is in no name of an owner or a session, and every byte of the user that is not plain
becomes %XX. So no two pairs give one owner, and no owner is the folder of another one's session (OWNER/SESSION)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from ninelives.core.errors import ClientError
from ninelives.http.edge.keys import ApiKey
from ninelives.http.edge.scopes import is_plain

SIGNED = b"x-openwebui-user-jwt"
PLAIN_IDS = (b"x-openwebui-user-id", b"x-hermes-user-id", b"x-end-user-id")
USER_HEADERS = frozenset({SIGNED, *PLAIN_IDS})
MAX_CHARS = 256
"""Of a user, as it is stored."""
SKEW_S = 60
"""How far the clock of the front end may be behind or ahead."""
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+=-")
_ADVICE = (
    "Open WebUI sends it with ENABLE_FORWARD_USER_INFO_HEADERS=True, hermes-agent as X-Hermes-User-Id, "
    "other front ends as X-End-User-Id."
)

Seen = Mapping[bytes, list[bytes]]


class _TokenHead(Struct):
    alg: str


class _TokenClaims(Struct):
    sub: str
    exp: float


def owner_for(owner: str, user: bytes) -> str:
    """The owner of what this user of a front end makes."""
    return f"{owner}~" + "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in user)


class EndUsers:
    """Finds the end user of a request. With a `secret` only signed names count (FORWARD_USER_INFO_HEADER_JWT_SECRET of
    Open WebUI): then a key that leaked is not enough to be anybody."""

    def __init__(self, secret: str, now: Callable[[], float]) -> None:
        self._secret = secret.encode()
        self._now = now

    def of(self, key: ApiKey, seen: Seen, path: str) -> bytes | None:
        """The end user that this request acts for; None: the owner of the key itself. Raises 400."""
        if key.acts_for == "no":
            return None
        named = self._signed(seen) if self._secret else self._sent(seen)
        if named is not None:
            if len(owner_for("", named)) > MAX_CHARS:
                raise _bad(f"The end user has more than {MAX_CHARS} characters. Send a shorter id.")
            return named
        if key.acts_for == "optional" or is_plain(path):
            return None
        raise ClientError("end_user_missing", f"This key acts for end users, and the request names none. {_ADVICE}")

    def _sent(self, seen: Seen) -> bytes | None:
        if any(seen.get(SIGNED, [])):
            raise _bad("The end user is signed. Set server.user_jwt_secret to the secret of the front end.")
        found = {value for name in PLAIN_IDS for value in seen.get(name, []) if value}
        if len(found) > 1:
            raise _bad("The request names several end users. Send one.")
        return found.pop() if found else None

    def _signed(self, seen: Seen) -> bytes | None:
        tokens = [value for value in seen.get(SIGNED, []) if value]
        if not tokens:
            if any(value for name in PLAIN_IDS for value in seen.get(name, [])):
                words = "The end user is not signed. Set FORWARD_USER_INFO_HEADER_JWT_SECRET in Open WebUI."
                raise _bad(f"{words} Or remove server.user_jwt_secret.")
            return None
        user = self._verified(tokens[0]) if len(tokens) == 1 else None
        if user is None:
            words = "X-OpenWebUI-User-Jwt is not valid: its signature is wrong, or it has expired."
            raise _bad(
                f"{words} Compare FORWARD_USER_INFO_HEADER_JWT_SECRET with server.user_jwt_secret, and the clocks."
            )
        return user

    def _verified(self, token: bytes) -> bytes | None:
        """The subject of a token of HS256, or None. No other algorithm is accepted, whatever its head says."""
        try:
            head, body, signature = token.split(b".")
            digest = hmac.digest(self._secret, head + b"." + body, hashlib.sha256)
            if not hmac.compare_digest(digest, _decoded(signature)):
                return None
            if msgspec.json.decode(_decoded(head), type=_TokenHead).alg != "HS256":
                return None
            claims = msgspec.json.decode(_decoded(body), type=_TokenClaims)
        except (ValueError, binascii.Error, msgspec.MsgspecError):
            return None
        return claims.sub.encode() if claims.sub and claims.exp > self._now() - SKEW_S else None


def _decoded(part: bytes) -> bytes:
    return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _bad(words: str) -> ClientError:
    return ClientError("end_user_invalid", words)
