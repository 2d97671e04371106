"""Markdown as a tree. Owns: which elements a text can become, and which links. Refuses to know: HTML. A page builds the
elements of the tree itself. So there is no markup that could be unsafe, and the policy of the page can forbid all
markup from text. HTML in a text stays text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

MOST_CHARS = 65_536
"""Longer texts stay plain."""
MOST_NODES = 5_000
ELEMENTS = frozenset(f"h{level}" for level in range(1, 7)).union(
    ("p", "em", "strong", "s", "a", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td")
)
SCHEMES = ("http://", "https://", "mailto:")
Node = Any  # a text, or [element, attributes, children]: mypy has no recursive aliases here


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def tree(text: str) -> list[Node]:
    """The text as nodes. A node is a text, or [element, attributes, children]."""
    if len(text) > MOST_CHARS:
        return [text]
    tokens = _parser().parse(text)
    if sum(1 + len(token.children or ()) for token in tokens) > MOST_NODES:
        return [text]
    return _nodes(tokens)


def _nodes(tokens: Sequence[Token]) -> list[Node]:
    root: list[Node] = []
    open_lists = [root]
    for token in tokens:
        if token.nesting == 1:
            children: list[Node] = []
            if token.hidden or token.tag not in ELEMENTS:
                children = open_lists[-1]
            else:
                open_lists[-1].append([token.tag, _attributes(token), children])
            open_lists.append(children)
        elif token.nesting == -1:
            open_lists.pop()
        else:
            open_lists[-1] += _leaf(token)
    return root


def _leaf(token: Token) -> list[Node]:
    match token.type:
        case "inline":
            return _nodes(token.children or ())
        case "fence" | "code_block":
            return [["pre", {}, [["code", {}, [token.content]]]]]
        case "code_inline":
            return [["code", {}, [token.content]]]
        case "softbreak":
            return ["\n"]
        case "hardbreak" | "hr":
            return [[token.tag, {}, []]]
        case "image":  # the page loads nothing from elsewhere
            shown = token.content or "image"
            return [["a", _link(str(token.attrs.get("src", ""))), [shown]]]
        case _:
            return [token.content] if token.content else []


def _attributes(token: Token) -> dict[str, str]:
    if token.tag == "a":
        return _link(str(token.attrs.get("href", "")))
    if token.tag == "ol" and "start" in token.attrs:
        return {"start": str(token.attrs["start"])}
    return {}


def _link(target: str) -> dict[str, str]:
    return {"href": target} if target.lower().startswith(SCHEMES) else {}
