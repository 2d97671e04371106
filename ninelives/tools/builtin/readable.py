"""HTML to readable text, as a program: HTML on stdin, text on stdout, the URL of the page as its argument. Owns: which
parts of a page are text. It is a process because a page can make the parser run for ever, and a process can be killed.
It also limits its own memory and time. Refuses to know: the server and the network. It imports the standard library
only."""

from __future__ import annotations

import re
import resource
import signal
import sys
from html.parser import HTMLParser
from urllib.parse import urljoin

SECONDS = 20
MEMORY_BYTES = 512 * 1_048_576
URL_CHARS = 500

_DROPPED = frozenset({"script", "style", "nav", "noscript", "template", "svg", "iframe", "object", "canvas", "select"})
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "details", "div", "dl", "fieldset",
    "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "main", "ol", "p", "pre", "section",
    "summary", "table", "ul",
})  # fmt: skip
_LINES = frozenset({"br", "li", "tr", "dt", "dd"})
_SPACE = re.compile(r"\s+")
_EMPTY_LINES = re.compile(r"(?<![ \t])[ \t]*+\n(?:[ \t]*+\n)++")
"""Looks at each run of blanks once: the lookbehind forbids a start in the middle of one."""
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}


class HtmlReader(HTMLParser):
    """Feed it a page, then read `title` and `text()`."""

    def __init__(self, address: str, dropped: frozenset[str] = _DROPPED) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._address = address
        self._dropped = dropped
        self._parts: list[str] = []
        self._owed = 0  # line ends before the next text
        self._prefix = ""  # a mark before the next text
        self._links: list[tuple[str, int]] = []
        self._hidden = ""
        self._depth = 0
        self._raw = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            self._depth += tag == self._hidden
        elif tag == "title":
            self._in_title = not self.title
        elif tag in self._dropped:
            self._hidden, self._depth = tag, 1
        else:
            self._break(tag)
            self._open(tag, {name: value or "" for name, value in attrs})

    def _open(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "a":
            self._links.append((self._link(attributes.get("href", "")), len(self._parts)))
        elif tag == "img" and (alt := attributes.get("alt", "").strip()):
            self._say(f"[image: {alt}]")
        elif tag == "pre":
            self._raw += 1
        elif tag == "li":
            self._prefix = "- "
        elif tag in ("td", "th") and not self._owed:
            self._say(" | ")
        else:
            self._prefix = _HEADINGS.get(tag, self._prefix)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif self._hidden:
            self._depth -= tag == self._hidden
            # An element that is never closed would hide the rest of the page.
            if self._depth <= 0 or tag in ("html", "body"):
                self._hidden = ""
        else:
            self._raw -= tag == "pre" and self._raw > 0
            self._break(tag)
            if tag == "a" and self._links:
                self._close_link(*self._links.pop())

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = " ".join((self.title + data).split())[:300]
        elif not self._hidden:
            self._say(data)

    def _break(self, tag: str) -> None:
        if tag in _HEADINGS or tag in _BLOCKS:
            self._owed = 2
        elif tag in _LINES:
            self._owed = max(self._owed, 1)

    def _say(self, text: str) -> None:
        text = text if self._raw else _SPACE.sub(" ", text)
        if not self._raw and (self._owed or not self._parts or self._parts[-1].endswith((" ", "\n"))):
            text = text.lstrip()
        if text:
            lead = "\n" * self._owed if self._parts else ""
            self._parts.append(lead + self._prefix + text)
            self._owed, self._prefix = 0, ""

    def _link(self, href: str) -> str:
        try:
            link = urljoin(self._address, href.strip()) if href and not href.startswith("#") else ""
        except ValueError:
            return ""
        return link if link.startswith(("http://", "https://")) and len(link) <= URL_CHARS else ""

    def _close_link(self, link: str, begin: int) -> None:
        shown = "".join(self._parts[begin:]).strip()
        if link and shown and shown != link:
            self._parts[-1] = f"{self._parts[-1].rstrip()} ({link})"

    def text(self) -> str:
        """The text, with at most one empty line in a row."""
        return _EMPTY_LINES.sub("\n\n", "".join(self._parts)).strip()


def main() -> None:
    """Read stdin, write stdout."""
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    page = sys.stdin.buffer.read().decode("utf-8", "replace")
    sys.stdout.buffer.write(readable(page, sys.argv[1]).encode("utf-8", "replace"))


def readable(page: str, address: str) -> str:
    """Title and text of a page. Menus count only if there is nothing else."""
    for dropped in (_DROPPED, _DROPPED - {"nav", "noscript", "template"}):
        reader = HtmlReader(address, dropped)
        reader.feed(page)
        reader.close()
        if text := reader.text():
            break
    return "\n\n".join(filter(None, (reader.title, text)))


if __name__ == "__main__":
    main()
