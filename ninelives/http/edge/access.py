"""Which profiles a key may use (A2). Owns: the profiles that a request can name, its default profile, and for whom an
admin key acts. Refuses to know: how keys are checked, and what a profile does."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Profile
from ninelives.http.edge.end_users import owner_for
from ninelives.http.edge.keys import ApiKey

MAX_USERS = 4096
"""End users that are remembered."""
PATH = "/p/"
"""How a path begins that names a profile: /p/NAME/v1/models is /v1/models with NAME as the default model."""


class ProfileReach(Struct, frozen=True):
    """What a request may use."""

    profile: Profile
    """The default profile of its path or key."""
    others: Mapping[str, Profile]
    """The other profiles that it may name."""
    bound: bool = False
    """The default is not that of the server."""


class ProfileAccess:
    """All profiles, and who may use them. A profile of an owner is for keys of this owner and for admin keys. A key
    that is bound to a profile uses only this one and those of its owner. A key with a list of models uses only those.
    Shared profiles are for all other keys."""

    def __init__(self, default: Profile, others: Mapping[str, Profile]) -> None:
        self._default = default
        self._profiles = {default.name: default, **others}
        self.only = None if others or default.owner else ProfileReach(default, {})
        """Where the server has one profile: what a key may use that is not bound to a profile or to models."""
        self._known: dict[tuple[str, str | None], tuple[ApiKey, ApiKey, ProfileReach]] = {}
        """What was found by the id of a key and the name in the path: the key, the key that acts, and its profiles."""
        self._users: dict[tuple[str, str, bytes], tuple[ApiKey, ProfileReach, ApiKey, ProfileReach]] = {}
        """The same for end users, by key, owner and user."""

    def enter(self, key: ApiKey, named: str | None) -> tuple[ApiKey, ProfileReach]:
        """The key and the profiles of a request whose path names a profile, or none. An admin key acts for the owner of
        that profile. Raises 404 for a profile that the key may not use, as for an unknown one."""
        known = self._known.get((key.id, named))
        if known is None or known[0] is not key:
            known = self._known[key.id, named] = (key, *self._entered(key, named))
        return known[1:]

    def act_for(self, key: ApiKey, reach: ProfileReach, user: bytes) -> tuple[ApiKey, ProfileReach]:
        """The same for an end user of a front end. Profiles of an owner are the user's own too, or a request that names
        one would leave the user."""
        known = self._users.get((key.id, key.owner, user))
        if known is None or known[0] is not key or known[1] is not reach:
            if len(self._users) >= MAX_USERS:
                self._users.clear()
            others = {name: _owned_by(profile, user) for name, profile in reach.others.items()}
            acting = ProfileReach(_owned_by(reach.profile, user), others, reach.bound)
            owner = owner_for(key.owner, user)
            known = self._users[key.id, key.owner, user] = (key, reach, replace(key, owner=owner), acting)
        return known[2:]

    def _entered(self, key: ApiKey, named: str | None) -> tuple[ApiKey, ProfileReach]:
        allowed = {name: profile for name, profile in self._profiles.items() if _may_use(key, profile)}
        if named is None:
            default = self._default_of(key, allowed)
        elif named in allowed:
            default = allowed[named]
            key = replace(key, owner=default.owner or key.owner)
            allowed = {name: each for name, each in allowed.items() if each.owner in ("", key.owner)}
        else:
            words = f"There is no profile '{named}' for this key. GET /v1/models lists those that it may use."
            raise ClientError("profile_not_found", words, status=404)
        others = {name: each for name, each in allowed.items() if name != default.name}
        return key, ProfileReach(default, others, default.name != self._default.name)

    def _default_of(self, key: ApiKey, allowed: Mapping[str, Profile]) -> Profile:
        """The profile that answers where a request names none."""
        wanted = key.profile or self._default.name
        found = allowed.get(wanted) or (None if key.profile else next(iter(allowed.values()), None))
        if found is None:
            words = "The profile of this key does not exist any more. An admin can give the key another one."
            raise ClientError("profile_not_found", words, status=404)
        return found


def _owned_by(profile: Profile, user: bytes) -> Profile:
    return replace(profile, owner=owner_for(profile.owner, user)) if profile.owner else profile


def _may_use(key: ApiKey, profile: Profile) -> bool:
    own = profile.owner == key.owner
    if key.models:
        return profile.name in key.models and (own or key.admin or not profile.owner)
    if key.admin:
        return True
    if key.profile:
        return own or (profile.name == key.profile and not profile.owner)
    return own or not profile.owner


def split_path(path: str) -> tuple[str | None, str]:
    """The profile that a path names, if any, and the path without it."""
    if not path.startswith(PATH):
        return None, path
    name, slash, rest = path.removeprefix(PATH).partition("/")
    return (name, slash + rest) if name and slash else (None, path)
