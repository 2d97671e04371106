"""What a chat shows. Owns: turning the events of a run into things that stay on the screen (paragraphs, tool cards,
notes) and into the live lines above the prompt. Refuses to know: terminals, threads and the server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from textwrap import wrap

from msgspec import Struct
from rich.console import RenderableType
from rich.markdown import Markdown
from rich.panel import Panel
from rich.text import Text

from ninelives.cli.chat.follow import BACK, LOST
from ninelives.cli.shared import Answer, harmless

FENCE = "```"


class RunningTool(Struct, frozen=True):
    """A tool call that has started."""

    name: str
    preview: str
    since: float


class LiveView:
    """One run on the screen. `handle` returns what stays; `live` is what still changes."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._text = ""
        self._shown: list[str] = []
        """Paragraphs of this message that stay on the screen."""
        self._repeated: deque[str] = deque()
        """The same, of a message that a crash dropped. What comes again is not shown twice."""
        self._tools: dict[str, RunningTool] = {}
        self._lost_at = 0.0

    def handle(self, event: Answer) -> list[RenderableType]:
        """What an event leaves on the screen."""
        match event["event"]:
            case "message.delta":
                self._text += harmless(event["delta"])
                return self._complete_paragraphs()
            case "message.dropped":
                return self._drop()
            case "tool.started":
                self._tools[event["toolCallId"]] = RunningTool(event["tool"], harmless(event["preview"]), self._now())
                return self._message_end()
            case "tool.completed":
                return [self._card(event)]
            case "run.steered":
                return [*self._message_end(), Text(f"↪ read: {harmless(event['text'])}", style="cyan")]
            case name if name == LOST:
                self._lost_at = self._now()
                return []
            case name if name == BACK:
                self._lost_at = 0.0
                return [Text(f"⚡ The server was away for {event['away_s']:.1f} s. The run goes on.", style="magenta")]
            case name if name.startswith("run.") or name == "approval.request":
                return self._message_end()
        return []

    def live(self, width: int, rows: int) -> list[str]:
        """The lines that still change, at most so many."""
        lines = [
            f"⏳ {tool.name} {tool.preview}"[: width - 8] + self._elapsed(tool) for tool in [*self._tools.values()]
        ]
        for line in self._text.splitlines():
            lines += wrap(line, width) or [""]
        if self._lost_at:
            lines.append(f"The server is away ({self._now() - self._lost_at:.0f} s). Waiting; nothing is lost.")
        return lines[-rows:]

    def _elapsed(self, tool: RunningTool) -> str:
        return f" {self._now() - tool.since:.0f} s"

    def _complete_paragraphs(self) -> list[RenderableType]:
        done, self._text = split_paragraphs(self._text)
        return [made for each in done for made in self._paragraph(each)]

    def _paragraph(self, text: str) -> list[RenderableType]:
        self._shown.append(text)
        if self._repeated and self._repeated[0] == text:
            self._repeated.popleft()
            return []
        self._repeated.clear()
        return [Markdown(text), Text("")]

    def _message_end(self) -> list[RenderableType]:
        rest, self._text = self._text.strip(), ""
        made = [*self._complete_paragraphs(), *(self._paragraph(rest) if rest else [])]
        self._shown, self._repeated = [], deque()
        return made

    def _drop(self) -> list[RenderableType]:
        self._repeated, self._shown, self._text = deque(self._shown), [], ""
        return [Text("The server was killed in this message. It begins again.", style="magenta")]

    def _card(self, event: Answer) -> Panel:
        started = self._tools.pop(event["toolCallId"], None)
        end, style = f"done in {event['duration']:.2f} s", "green"
        if event.get("outcome") == "unknown":
            end, style = "unknown: the server died while it ran. It was not repeated", "magenta"
        elif event["error"]:
            end, style = f"failed after {event['duration']:.2f} s", "red"
        body = Text((started.preview if started else "") or " ")
        return Panel(body, title=f"🔧 {event['tool']}", subtitle=end, border_style=style, title_align="left")


def split_paragraphs(text: str) -> tuple[list[str], str]:
    """The complete paragraphs of a Markdown text, and the rest. A fenced block is one paragraph."""
    done, current, fenced = list[str](), list[str](), False
    *lines, last = text.split("\n")
    for line in lines:
        fenced ^= line.lstrip().startswith(FENCE)
        if line.strip() or fenced:
            current.append(line)
        elif current:
            done.append("\n".join(current))
            current = []
    return done, "\n".join([*current, last])
