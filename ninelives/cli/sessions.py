"""ninelives sessions. Owns: ls, show, search, rename, fork, export and rm. They use only the public HTTP API, so they
work with a server on another machine too. Refuses to know: the store."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote, urlencode

import click

from ninelives.cli.remote import Remote, remote_options
from ninelives.cli.shared import Answer, HelpfulGroup, age_of, echo_text, json_option, print_fields

PATH = "/api/sessions"


@click.group(cls=HelpfulGroup)
def sessions() -> None:
    """List, search, read, rename, copy, export and delete sessions."""


@sessions.command("ls")
@click.option("--source", help="Show only sessions of this source, such as chat, responses or open-webui.")
@click.option("--limit", default=20, show_default=True, help="Number of sessions, the one used last first.")
@click.option("--offset", default=0, show_default=True, help="Number of sessions to skip.")
@remote_options
@json_option
def ls(url: str | None, key: str | None, as_json: bool, source: str | None, limit: int, offset: int) -> None:
    """List sessions."""
    query = {"limit": limit, "offset": offset} | ({"source": source} if source else {})
    _print_page(Remote(url, key).get(f"{PATH}?{urlencode(query)}"), as_json)


@sessions.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", default=20, show_default=True, help="Number of sessions, the one used last first.")
@remote_options
@json_option
def search(words: tuple[str, ...], limit: int, url: str | None, key: str | None, as_json: bool) -> None:
    """Find sessions with a turn or a title that has all these words, or words that begin so."""
    query = urlencode({"search": " ".join(words), "limit": limit})
    _print_page(Remote(url, key).get(f"{PATH}?{query}"), as_json)


@sessions.command("show")
@click.argument("session")
@remote_options
@json_option
def show(session: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Show one session and what was said in it."""
    answer = Remote(url, key).get(f"{_path(session)}/export")
    if as_json:
        click.echo(json.dumps(answer))
        return
    print_fields({name: value for name, value in answer["session"].items() if name != "object"})
    for message in answer["messages"]:
        named = message.get("tool_name") or message["role"]
        calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls") or ())
        echo_text(f"\n[{named}] {_text(message['content'])}{f' (calls {calls})' if calls else ''}")


@sessions.command("rename")
@click.argument("session")
@click.argument("title")
@remote_options
@json_option
def rename(session: str, title: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Give a session a title. An empty title removes it."""
    answer = Remote(url, key).get(_path(session), "PATCH", {"title": title})
    if as_json:
        click.echo(json.dumps(answer))
    else:
        echo_text(f"{answer['id']}: {answer['title'] or '(no title)'}")


@sessions.command("fork")
@click.argument("session")
@click.option("--id", "copy", help="Id of the copy (default: a new one).")
@click.option("--title", help="Title of the copy (default: that of the session).")
@remote_options
@json_option
def fork(session: str, copy: str | None, title: str | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Copy a session as it is now. The next request that names the copy goes on from there."""
    body = {name: value for name, value in (("id", copy), ("title", title)) if value is not None}
    answer = Remote(url, key).get(f"{_path(session)}/fork", "POST", body)
    click.echo(json.dumps(answer) if as_json else answer["id"])


@sessions.command("export")
@click.argument("session")
@click.option("--format", "form", type=click.Choice(["markdown", "json"]), default="markdown", show_default=True)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="File to create.")
@remote_options
def export(session: str, form: str, output: Path | None, url: str | None, key: str | None) -> None:
    """Print a session with its messages, or write it to a file."""
    with Remote(url, key).open(f"{_path(session)}/export?format={form}") as response:
        content: bytes = response.read()
    if output is None:
        echo_text(content.decode("utf-8", "replace"), nl=form == "json")
        return
    try:
        with output.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}.") from error


@sessions.command("rm")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote_options
@json_option
def rm(session: str, yes: bool, url: str | None, key: str | None, as_json: bool) -> None:
    """Delete a session with its runs."""
    remote = Remote(url, key)
    if not yes:
        found = remote.get(_path(session))
        click.confirm(f"Delete {_title(found)} ({found['turns']} turns) and its runs?", abort=True, err=True)
    answer = remote.get(_path(session), "DELETE")
    if as_json:
        click.echo(json.dumps(answer))
    else:
        echo_text(f"{answer['id']}: deleted")


def _path(session: str) -> str:
    return f"{PATH}/{quote(session, safe='')}"


def _print_page(answer: Answer, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer))
        return
    if not answer["data"]:
        click.echo("no sessions")
        return
    wide = max(len("ID"), *(len(each["id"]) for each in answer["data"]))
    click.echo(f"{'ID':{wide}}  {'USED':>5}  {'TURNS':>5}  {'TOKENS':>7}  {'SOURCE':11}  TITLE")
    for each in answer["data"]:
        tokens = each["input_tokens"] + each["output_tokens"]
        counts = f"{age_of(each['updated_at']):>5}  {each['turns']:>5}  {tokens:>7}  {each['source']:11}"
        echo_text(f"{each['id']:{wide}}  {counts}  {_title(each)[:60]}")
        if each.get("snippet"):
            echo_text(f"{'':{wide}}  {each['snippet']}")
    if answer["has_more"]:
        click.echo(f"There are more: --offset {answer['offset'] + len(answer['data'])}", err=True)


def _title(session: Answer) -> str:
    return str(session["title"] or session["preview"] or session["id"])


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or f"({part.get('type')})") for part in parts if isinstance(part, dict))
