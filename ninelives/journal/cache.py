"""Things in memory, bounded in bytes. Owns: which of them go first. Refuses to know: what they are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Things in memory, bounded in bytes."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._things: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0

    def put(self, key: K, thing: V, size: int) -> None:
        """Keep it; what is larger than half the bound is not kept."""
        self.drop(key)
        if size > self._bound // 2:
            return
        self._things[key] = thing, size
        self.size += size
        while self.size > self._bound:
            self.size -= self._things.popitem(last=False)[1][1]

    def get(self, key: K) -> V | None:
        """What is kept under this key."""
        found = self._things.get(key)
        if found is None:
            return None
        self._things.move_to_end(key)
        return found[0]

    def names(self) -> list[K]:
        """All keys, the longest unused first."""
        return list(self._things)

    def drop(self, key: K) -> None:
        """Forget it."""
        found = self._things.pop(key, None)
        if found is not None:
            self.size -= found[1]
