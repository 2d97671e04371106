"""The web page as people use it: signing in, calls that wait, runs. Pictures of what was seen: tests/ui/out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.story.approvals import ASKED, DONE, RUNS, begin, finish, made, script
from tests.story.server import KEY, Server, wait_until
from tests.ui.conftest import OUT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ATTACK = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script><svg onload=window.pwned=1>'


def sign_in(tab: Page, address: str = "/") -> None:
    tab.goto(address)
    tab.get_by_label("API key").fill(KEY)
    tab.get_by_role("button", name="Sign in").click()
    tab.get_by_role("button", name="Sign out").wait_for()


def waiting(server: Server, tool: str, arguments: dict[str, Any], words: str = "") -> str:
    run, status = begin(server.client, f"{words} {script(tool, arguments)}", "hermes-agent")
    assert status == ASKED
    return run


def card_of(tab: Page, run: str) -> Locator:
    return tab.locator("article.card", has=tab.locator(f'a[href="#/runs/{run}"]'))


def picture(tab: Page, name: str) -> None:
    tab.screenshot(path=OUT / f"{name}.png")


def test_a4_a_wrong_key_is_refused_and_the_key_is_in_this_tab_only(tab: Page, server: Server) -> None:
    tab.goto("/")
    tab.get_by_label("API key").fill("wrong-key-0123456789")
    tab.get_by_role("button", name="Sign in").click()
    tab.get_by_text("The server does not know this key.").wait_for()
    picture(tab, "sign-in")
    sign_in(tab)
    kept = "() => [sessionStorage.getItem('ninelives.key'), localStorage.length, document.cookie, location.href]"
    key, local, cookie, address = tab.evaluate(kept)
    assert (key, local, cookie) == (KEY, 0, "") and KEY not in address
    tab.get_by_role("button", name="Sign out").click()
    tab.get_by_label("API key").wait_for()
    assert tab.evaluate("() => sessionStorage.length") == 0


def test_g11_a_waiting_call_of_20000_characters_is_shown_whole_and_can_be_approved(tab: Page, server: Server) -> None:
    command = f"echo {'a' * 19_970}; touch long-done"
    assert len(command) > 19_990
    run = waiting(server, "terminal", {"command": command}, "Please tidy the folder.")
    sign_in(tab, f"/#/approvals/{run}")
    card = card_of(tab, run)
    card.wait_for()
    assert card.locator(".value pre").text_content() == command, "all of it, as text"
    assert "It runs a program." in (card.text_content() or "")
    card.locator(".value pre").evaluate("each => { each.scrollTop = each.scrollHeight }")
    picture(tab, "approval-long")
    assert not made(server, "long-done")
    card.get_by_role("button", name="Approve once").click()
    card.get_by_text("Approved once.").wait_for()
    wait_until(lambda: server.client.get(f"{RUNS}/{run}").json()["status"] == DONE, "the run goes on")
    assert made(server, "long-done")


def test_a_call_cannot_run_anything_in_the_page_and_shows_what_cannot_be_seen(tab: Page, server: Server) -> None:
    run = waiting(server, "terminal", {"command": f"echo '{ATTACK}' \u202e\u200b"}, ATTACK)
    sign_in(tab, "/#/approvals")
    card = card_of(tab, run)
    card.wait_for()
    shown = card.locator(".value pre").text_content()
    assert shown == f"echo '{ATTACK}' \\u{{202e}}\\u{{200b}}"
    picture(tab, "approval-attack")
    tab.goto(f"/#/runs/{run}")
    tab.locator(".story article.card").wait_for()
    assert tab.evaluate("() => window.pwned ?? 0") == 0 and tab.locator("main img, main svg, main script").count() == 0
    tab.goto("/#/approvals")
    card_of(tab, run).get_by_role("button", name="Deny").click()
    card_of(tab, run).get_by_text("Denied.").wait_for()
    wait_until(lambda: server.client.get(f"{RUNS}/{run}").json()["status"] == DONE, "the run goes on")


def test_g11_a_number_that_a_browser_would_round_is_shown_as_it_is(tab: Page, server: Server) -> None:
    run = waiting(server, "pay", {"account": 9007199254740993})
    sign_in(tab, f"/#/approvals/{run}")
    card = card_of(tab, run)
    card.wait_for()
    assert "9007199254740993" in (card.locator(".value pre").text_content() or "")
    card.get_by_role("button", name="Deny").click()
    card.get_by_text("Denied.").wait_for()


def test_text_cannot_become_markup_even_if_a_script_tried(tab: Page, server: Server) -> None:
    sign_in(tab)
    tried = "() => { try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (e) { return e.name } }"
    assert tab.evaluate(tried) == "TypeError"


def test_calls_come_and_go_while_the_page_is_open_and_keys_answer_them(tab: Page, server: Server) -> None:
    sign_in(tab, "/#/approvals")
    tab.get_by_text("Nothing waits for you.").wait_for()
    picture(tab, "approvals-empty")
    first = waiting(server, "write_file", {"path": "first.txt", "content": "one\ntwo"}, "Write the first file.")
    second = waiting(server, "write_file", {"path": "second.txt", "content": "x"}, "Write the second file.")
    card_of(tab, second).wait_for()
    assert tab.locator(".badge").text_content() == "2" and tab.title() == "(2) Ninelives"
    picture(tab, "approvals-two")
    tab.keyboard.press("j")
    tab.keyboard.press("a")
    card_of(tab, first).get_by_text("Approved once.").wait_for()
    finish(server.client, second, "deny")
    card_of(tab, second).wait_for(state="detached")
    wait_until(lambda: server.client.get(f"{RUNS}/{first}").json()["status"] == DONE, "the first run goes on")
    assert made(server, "first.txt") and not made(server, "second.txt")


def test_d4_a_session_grant_is_offered_where_it_counts(tab: Page, server: Server) -> None:
    body = {"input": script("write_file", {"path": "granted.txt", "content": "x"}), "session_id": "page-session"}
    run = server.client.post(RUNS, {**body, "model": "hermes-agent"}).json()["run_id"]
    sign_in(tab, f"/#/approvals/{run}")
    card = card_of(tab, run)
    card.get_by_role("button", name="Approve in this session").click()
    card.get_by_text("Approved in this session.").wait_for()
    wait_until(lambda: server.client.get(f"{RUNS}/{run}").json()["status"] == DONE, "the run goes on")


def test_runs_are_listed_watched_and_cancelled(tab: Page, server: Server) -> None:
    for words in ("Say hello to the reader.", "Plan the release notes for version two."):
        server.client.post(RUNS, {"input": f"{words} [[tokens=40]]"})
    slow = server.client.post(RUNS, {"input": "Count to a thousand. [[tokens=1000 pace=0.1]]"}).json()["run_id"]
    sign_in(tab, "/#/runs")
    row = tab.locator(".item", has=tab.locator(f'a[href="#/runs/{slow}"]'))
    row.get_by_text("running").wait_for()
    assert "Count to a thousand." in (row.text_content() or "")
    picture(tab, "runs")
    row.get_by_role("link").first.click()
    tab.locator(".panel .prose", has_text=re.compile("tok3")).wait_for()
    picture(tab, "run-live")
    tab.get_by_role("button", name="Cancel").click()
    tab.locator(".run-head .status.cancelled").wait_for()
    picture(tab, "run-cancelled")
    tab.go_back()
    row.get_by_text("cancelled").wait_for()


@pytest.mark.parametrize(("name", "scheme", "width"), [("dark", "dark", 1180), ("narrow", "light", 390)])
def test_the_page_is_read_in_the_dark_and_on_a_phone(
    browser: Browser, server: Server, name: str, scheme: Any, width: int
) -> None:
    run = waiting(server, "terminal", {"command": "rm -rf build && make all", "timeout_s": 30}, "Build it again.")
    context = browser.new_context(viewport={"width": width, "height": 820}, color_scheme=scheme, base_url=server.url)
    tab = context.new_page()
    sign_in(tab, "/#/approvals")
    card_of(tab, run).wait_for()
    for place, part in (("approvals", "article"), ("runs", ".item"), (f"runs/{run}", ".waterfall button")):
        tab.goto(f"/#/{place}")
        tab.locator(part).first.wait_for()
        picture(tab, f"{'run' if run in place else place}-{name}")
        wide = tab.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{place} hangs over the edge"
    finish(server.client, run, "deny")
    context.close()


def test_a_server_that_is_away_is_told_and_found_again(browser: Browser, server: Server) -> None:
    context = browser.new_context(viewport={"width": 1180, "height": 820}, base_url=server.url)
    tab = context.new_page()
    sign_in(tab, "/#/runs")
    context.set_offline(True)
    tab.get_by_text("The server is away").wait_for()
    picture(tab, "away")
    context.set_offline(False)
    tab.wait_for_function("() => document.getElementById('away').textContent === ''")
    context.close()
