"""Who may use how much. Owns: the limits of owners, keys and profiles. Refuses to know: where they are written, and
what was used."""

from __future__ import annotations

from collections.abc import Mapping

from ninelives.core.limits import NO_LIMITS, Limits
from ninelives.engine.base import Limited
from ninelives.journal.values import Subject

EVERYBODY = "*"
"""The name of the limits of all owners."""


class LimitBook:
    """All limits of a server. `keys` has those of each key, by its id; it may change."""

    def __init__(
        self, owners: Mapping[str, Limits], profiles: Mapping[str, Limits], keys: Mapping[str, Limits]
    ) -> None:
        self._default = owners.get(EVERYBODY, NO_LIMITS)
        self._owners = {name: limits.over(self._default) for name, limits in owners.items() if name != EVERYBODY}
        self._profiles = {name: limits for name, limits in profiles.items() if limits != NO_LIMITS}
        self._keys = keys

    def of(self, owner: str, key: str, profile: str) -> Limited:
        """Whom and what a run counts for, where that has limits."""
        own, of_key = self._owners.get(owner, self._default), self._keys.get(key, NO_LIMITS)
        of_profile = self._profiles.get(profile, NO_LIMITS)
        if own is of_key is of_profile is NO_LIMITS:
            return ()
        found: tuple[tuple[Subject, Limits], ...] = (
            (("owner", owner), own),
            (("key", key), of_key),
            (("model", profile), of_profile),
        )
        return tuple([each for each in found if each[1] != NO_LIMITS])
