"""The routes. Owns: the route class of each dialect, and loading dialects of other packages. Refuses to know: what a
route does.

Another package adds a dialect with an entry point of the group `ninelives.dialects` that names a ServedDialect."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ninelives.core import ids
from ninelives.dialects import DIALECTS, Dialect
from ninelives.http.routes.base import DialectRoutes
from ninelives.http.routes.chat import ChatRoutes
from ninelives.http.routes.completions import CompletionsRoutes
from ninelives.http.routes.conversations import ConversationRoutes
from ninelives.http.routes.messages import MessagesRoutes
from ninelives.http.routes.responses import ResponsesRoutes
from ninelives.http.routes.runs import RunsRoutes
from ninelives.tools.entry_points import entry_points_of

GROUP = "ninelives.dialects"


class ServedDialect(Struct, frozen=True):
    """A dialect and the class of its routes."""

    dialect: Dialect
    routes: type[DialectRoutes]


SERVED = (
    ServedDialect(DIALECTS["chat"], ChatRoutes),
    ServedDialect(DIALECTS["completions"], CompletionsRoutes),
    ServedDialect(DIALECTS["responses"], ResponsesRoutes),
    ServedDialect(DIALECTS["conversations"], ConversationRoutes),
    ServedDialect(DIALECTS["messages"], MessagesRoutes),
    ServedDialect(DIALECTS["runs"], RunsRoutes),
)


class DialectsError(Exception):
    """The dialects do not fit together. The message names the one to change."""


def served_dialects() -> tuple[ServedDialect, ...]:
    """All dialects: ours, then those of other packages. DialectsError if two of them collide or one is incomplete."""
    check_complete(SERVED)
    found = {row.dialect.name: "ninelives" for row in SERVED}
    rows = list(SERVED)
    for origin, row in _installed():
        if row.dialect.name in found:
            raise DialectsError(f"{origin} and {found[row.dialect.name]} both have a dialect {row.dialect.name!r}.")
        found[row.dialect.name] = origin
        if row.dialect.prefix:
            try:
                ids.register(row.dialect.name, row.dialect.prefix)
            except ValueError as error:
                raise DialectsError(f"{origin}: {error}") from error
        rows.append(row)
    return tuple(rows)


def check_complete(served: Iterable[ServedDialect]) -> None:
    """Every row of DIALECTS has a route class, in the same order, and there is no other."""
    names = [row.dialect.name for row in served]
    if names != list(DIALECTS):
        raise DialectsError(f"DIALECTS has {list(DIALECTS)}, but routes exist for {names}: add the missing row.")


def _installed() -> Iterable[tuple[str, ServedDialect]]:
    for point in entry_points_of(GROUP):
        origin = f"the entry point {point.name} = {point.value}"
        try:
            row = point.load()
        except Exception as error:  # the edge to other people's code, which may fail in any way
            raise DialectsError(f"{origin} cannot be loaded: {error!r}") from error
        if not isinstance(row, ServedDialect):
            raise DialectsError(f"{origin} is no ServedDialect.")
        yield origin, row
