"""The chat in a terminal. Owns: the prompt, what a line that was typed does (ask, steer, approve, command), and the
thread that follows the run. Refuses to know: how events look (view.py), and how a run is followed (follow.py)."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable
from difflib import get_close_matches
from queue import SimpleQueue

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.panel import Panel
from rich.text import Text

from ninelives.cli.chat.ask import CHOICES
from ninelives.cli.chat.follow import ENDS, RunFollower
from ninelives.cli.chat.memory import ChatPlace, new_session
from ninelives.cli.chat.view import LiveView
from ninelives.cli.remote import Remote
from ninelives.cli.shared import Answer, harmless

FOREVER_S = 7 * 86_400.0
COMMANDS = {
    "/help": "show this list",
    "/new": "begin a new session",
    "/cancel": "stop the run (as Ctrl-C does)",
    "/quit": "leave (as Ctrl-D does); a run goes on",
}
ACTIVE = ("queued", "running", "waiting_for_approval", "stopping")
_ROWS_KEPT = 8
"""Rows of the terminal that live lines leave free."""


class ChatScreen:
    """A conversation in this terminal."""

    def __init__(self, connect: Callable[[], Remote], place: ChatPlace, model: str) -> None:
        self._connect = connect
        self._place = place
        self._model = model
        self._follower = RunFollower(connect, FOREVER_S)
        self._view = LiveView()
        self._asked: Answer | None = None
        self._worker: threading.Thread | None = None
        self._sender: threading.Thread | None = None
        self._to_send: SimpleQueue[Callable[[], object]] = SimpleQueue()
        """Steers, answers and cancels, in their order."""
        self._run_id = ""
        self._interrupted = False
        """Ctrl-C was pressed while no prompt read it."""
        self._cancelled = False
        """The run is to stop, also where its id is not known yet."""
        self._console = Console(force_terminal=True, highlight=False)
        depth = ColorDepth.DEPTH_1_BIT if self._console.no_color else None
        self._prompt: PromptSession[str] = PromptSession(erase_when_done=True, color_depth=depth)

    def run(self) -> None:
        """Talk until Ctrl-D. Raises ClickException where no server answers at the start."""
        self._connect().get("/health", timeout=5.0)
        with patch_stdout(raw=True):
            self._welcome()
            signal.signal(signal.SIGINT, lambda *_: self._interrupt())
            while self._one_line():
                continue
            if self._working:
                self._note(f"{self._run_id} goes on without you. `ninelives chat` shows it again.")

    @property
    def _working(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    def _interrupt(self) -> None:
        self._interrupted = True

    def _take_interrupt(self) -> None:
        if self._interrupted:
            self._interrupted = False
            self._prompt.app.exit(exception=KeyboardInterrupt)

    def _one_line(self) -> bool:
        """Read one line and do what it says. False: leave."""
        try:
            line = self._prompt.prompt(
                self._message, refresh_interval=0.25, bottom_toolbar=self._toolbar, pre_run=self._take_interrupt
            ).strip()
        except KeyboardInterrupt:
            line = "/cancel"
        except EOFError:
            return False
        try:
            return line not in ("/quit", "/exit") and self._dispatch(line)
        except click.ClickException as error:
            self._print(Text(error.format_message(), style="red"))
            return True

    def _dispatch(self, line: str) -> bool:
        if self._asked is not None and not line.startswith("/"):
            self._answer(line)
        elif line.startswith("/"):
            self._command(line)
        elif line and self._working:
            self._steer(line)
        elif line:
            self._print(Text(f"› {line}", style="bold"))
            self._begin(lambda: self._ask(line))
        return True

    def _command(self, line: str) -> None:
        match line:
            case "/help":
                self._print(Text("\n".join(f"{name:8} {what}" for name, what in COMMANDS.items())))
            case "/new" if not self._working:
                self._place.remember(new_session(), "")
                self._note(f"New session {self._place.session}.")
            case "/new":
                self._note("The agent still works. /cancel it first.")
            case "/cancel" if self._working:
                self._cancelled = True
                self._note("Stopping the run.")
                if self._run_id:
                    self._stop(self._run_id)
            case "/cancel":
                self._note("Nothing runs. Ctrl-D leaves.")
            case _:
                near = get_close_matches(line, COMMANDS, 1)
                self._note(f"No command {line}." + (f" Did you mean {near[0]}?" if near else " /help lists them."))

    def _stop(self, run: str) -> None:
        self._aside(lambda: self._connect().get(f"/v1/runs/{run}/stop", "POST"))

    def _steer(self, line: str) -> None:
        run = self._run_id
        if not run:
            self._note("The run has not started yet.")
            return

        def send() -> None:
            self._connect().get(f"/v1/runs/{run}/steer", "POST", {"input": line})
            self._print(Text(f"↪ {line}", style="cyan"))

        self._aside(send)

    def _answer(self, line: str) -> None:
        choice, asked, run = CHOICES.get(line[:1].lower()), self._asked, self._run_id
        if choice is None or asked is None:
            self._note("Answer with y (once), s (session), a (always) or n (no).")
            return
        body = {"choice": choice, "digest": asked["digest"]}
        self._asked = None

        def send() -> None:
            try:
                self._connect().get(f"/v1/runs/{run}/approval", "POST", body)
            except BaseException:
                self._asked = asked if self._run_id == run and self._working else None
                raise

        self._aside(send)

    # the threads

    def _aside(self, work: Callable[[], object]) -> None:
        """Send this after what was sent before. The prompt goes on, so Ctrl-C and Ctrl-D work while a server hangs."""
        if self._sender is None:
            self._sender = threading.Thread(target=self._send, daemon=True, name="requests")
            self._sender.start()
        self._to_send.put(work)

    def _send(self) -> None:
        while True:
            work = self._to_send.get()
            try:
                work()
            except click.ClickException as error:
                self._print(Text(error.format_message(), style="red"))

    def _begin(self, work: Callable[[], None]) -> None:
        self._run_id, self._cancelled = "", False
        self._worker = threading.Thread(target=self._guarded, args=(work,), daemon=True, name="run")
        self._worker.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except click.ClickException as error:
            self._print(Text(error.format_message(), style="red"))
        finally:
            self._asked = None

    def _ask(self, text: str) -> None:
        body: Answer = {"input": text, "session_id": self._place.session}
        body |= {"model": self._model} if self._model else {}
        self._follow(self._follower.start(body, f"chat-{secrets.token_hex(12)}"))

    def _follow(self, run: str) -> None:
        self._run_id, self._view = run, LiveView()
        self._place.remember(self._place.session, run)
        if self._cancelled:  # before the id of the run was known
            self._stop(run)
        for event in self._follower.events(run):
            self._print(*self._view.handle(event))
            if event["event"] == "approval.request":
                self._ask_for_approval(run)
            elif event["event"] == "approval.responded":
                self._asked = None
                self._note(f"Answer: {event['choice']}")
            elif event["event"] in ENDS:
                self._end(event)
            self._prompt.app.invalidate()

    def _ask_for_approval(self, run: str) -> None:
        asked = self._follower.shown(run).get("approval")  # a server that went away meanwhile is waited for
        if asked is not None:
            text = Text(harmless(asked["call"]) + (f"\n\n{harmless(asked['why'])}" if asked.get("why") else ""))
            self._print(Panel(text, title="Waiting for you", border_style="yellow", title_align="left"))
            self._asked = asked

    def _end(self, event: Answer) -> None:
        run = self._connect().get(f"/v1/runs/{self._run_id}")
        if run["status"] != "completed":
            why = run["error"] or event.get("reason") or ""
            self._print(Text(harmless(f"{run['status']}: {why}" if why else run["status"]), style="red"))
        if event.get("pending_steer"):
            self._note("It ended before it read your last message. Send it again.")
        seconds, tokens = run["updated_at"] - run["created_at"], run["usage"]["total_tokens"]
        self._note(f"{seconds:.1f} s · {tokens} tokens{self._crashes(run)} · {self._run_id}")

    def _crashes(self, run: Answer) -> str:
        count = run.get("recoveries", 0)
        return f" · ⚡ {count} {'crash' if count == 1 else 'crashes'} survived" if count else ""

    # the screen

    def _welcome(self) -> None:
        self._print(Text(f"Ninelives at {self._connect().url}. /help lists commands, Ctrl-D leaves.", style="bold"))
        if not self._place.resumed:
            return
        self._note(f"Session {self._place.session} goes on (/new begins another).")
        try:
            self._show_last_turn()
        except click.ClickException as error:
            self._note(f"Nothing of it is stored: {error.format_message()}")
            self._place.run = ""
        if self._place.run and self._connect().get(f"/v1/runs/{self._place.run}")["status"] in ACTIVE:
            self._note("The run of last time still works.")
            self._begin(lambda: self._follow(self._place.run))

    def _show_last_turn(self) -> None:
        said = self._connect().get(f"/api/sessions/{self._place.session}/export")["messages"]
        words = [each for each in said if each["role"] in ("user", "assistant") and isinstance(each["content"], str)]
        for each in words[-2:]:
            text = harmless(each["content"])
            self._print(Text(f"› {text}", style="bold") if each["role"] == "user" else Markdown(text))

    def _message(self) -> FormattedText:
        size = self._prompt.output.get_size()
        lines = self._view.live(size.columns - 1, max(3, size.rows - _ROWS_KEPT)) if self._working else []
        asks = "approve? y once, s session, a always, n no › " if self._asked is not None else ""
        return FormattedText([("", "".join(f"{line}\n" for line in lines)), ("bold", asks or "› ")])

    def _toolbar(self) -> str:
        state = "works: what you write steers it, Ctrl-C cancels" if self._working else "Ctrl-D leaves"
        return f" {self._place.session} · {state}"

    def _note(self, text: str) -> None:
        self._print(Text(text, style="dim"))

    def _print(self, *things: RenderableType) -> None:
        self._console.width = os.get_terminal_size(0).columns
        for thing in things:
            self._console.print(thing)
