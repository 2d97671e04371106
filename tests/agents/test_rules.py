"""Approval rules read what a call will do, and hosts are compared as wholes (D4, E2)."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from ninelives.agents.rules import Mode, Rule
from ninelives.core.hosts import LEAST, host_fits, hosts_in, longest
from ninelives.tools.base import Reach


def fits(rule: Rule, tool: str, **arguments: Any) -> bool:
    command = arguments.get("command")
    reach = Reach("exec", command=command) if tool in ("terminal", "process", "execute_code") else Reach("write")
    return rule.fits(tool, arguments, reach)


@pytest.mark.parametrize("ask", ["always", "on-write"])
def test_a_rule_that_asks_is_searched_in_every_value(ask: Mode) -> None:
    rule = Rule("*", ask, "secret|^7$|true")
    for value in ("the secret", {"a": ["b", {"c": "secret"}]}, {"secret": 1}, 7, True):
        assert fits(rule, "any", field=value)
    assert not fits(rule, "any", field="nothing", other=[8, None, False])


def test_a_rule_that_asks_sees_a_command_without_its_quotes() -> None:
    rule = Rule("terminal", "always", "rm -rf")
    for command in ("rm -rf x", "rm   -rf x", "'rm' -rf", 'r""m -rf', "r\\m -rf", "echo it's; rm \t-rf"):
        assert fits(rule, "terminal", command=command), command
    assert not fits(rule, "terminal", command="rm x")


def test_a_field_is_the_only_value_that_is_read() -> None:
    rule = Rule("write_file", "always", "^/etc", "path")
    assert fits(rule, "write_file", path="/etc/x", content="")
    assert not fits(rule, "write_file", path="x", content="/etc") and not fits(rule, "write_file", content="/etc")


@pytest.mark.parametrize("sign", [";", "&", "&&", "|", "$x", "$(x)", "`x`", "(", ")", "<", ">", "\n", "\r", "'", '"'])
def test_an_allowed_command_has_no_sign_that_begins_another(sign: str) -> None:
    rule = Rule("terminal", "never", r"(?s)git status.*")
    assert fits(rule, "terminal", command="git status 'a b' -s")
    assert not fits(rule, "terminal", command=f"git status {sign} touch x")


def test_an_allow_rule_may_spell_the_signs_itself() -> None:
    rule = Rule("terminal", "never", r"make 2>&1 \| tail")
    assert fits(rule, "terminal", command="make 2>&1 | tail")
    assert not fits(rule, "terminal", command="make 2>&1 | tail; x")
    assert not fits(Rule("terminal", "never", r"make .* \| tail"), "terminal", command="make x | tail")


def test_an_allow_rule_fits_a_whole_value_of_its_own_tool_only() -> None:
    rule = Rule("terminal", "never", "ls")
    assert fits(rule, "terminal", command="ls") and not fits(rule, "terminal", command="ls x")
    assert not fits(rule, "process", command="ls") and not fits(Rule("terminal", "never"), "execute_code", code="1")
    path = Rule("write_file", "never", r"notes/\w+", "path")
    assert fits(path, "write_file", path="notes/a", content="; rm") and not fits(path, "write_file", path="/notes/a")


def test_a_rule_of_the_terminal_that_asks_covers_all_that_runs_programs() -> None:
    rule = Rule("terminal", "always", "rm -rf")
    assert fits(rule, "process", command="rm -rf x") and not fits(rule, "process", command="ls")
    assert fits(rule, "execute_code", code="print(1)"), "code is not compared with an expression for commands"
    assert not fits(rule, "write_file", path="rm -rf")


def test_a_text_names_hosts_as_wholes() -> None:
    text = "Read https://a.example:8080/x?y=b.example, (C.Example) or mail d@e.example. See http://[::1]/ http://box/"
    assert hosts_in(text) >= {"a.example", "b.example", "c.example", "e.example", "::1", "box"}
    assert not hosts_in(text) & {"example", "x", "read", "mail", "d"}
    assert hosts_in("bücher.example") == {"xn--bcher-kva.example"}


def test_a_pattern_allows_one_host_or_all_below_one() -> None:
    assert host_fits("Docs.example", "docs.example") and not host_fits("docs.example", "a.docs.example")
    assert host_fits("*.docs.example", "a.b.docs.example") and not host_fits("*.docs.example", "docs.example")
    assert not host_fits("*.docs.example", "evildocs.example") and host_fits("*", "any.example")


USUAL = [
    r"rm\s+-rf",
    r".*secret.*",
    r"\brm\b",
    r"git (status|log).*",
    r"(foo|bar)*x",
    r"^rm .*",
    r"secret.*key",
    r"(.*)\1",
    r"[A-Za-z0-9]{20,}",
    r"(?i)drop\s+table",
    r"(rm|dd|mkfs)\b.*",
    r"(?:a++b)*c",
]


@pytest.mark.parametrize("pattern", USUAL)
def test_a_pattern_is_bounded_by_the_length_of_the_text(pattern: str) -> None:
    """20 million steps are some 50 ms; a pattern that is worse than it looks would take hours."""
    most = min(longest(pattern, search=True), 1_000_000)
    assert most >= LEAST
    for fill in ("a", "x", "secretkey", "abc", " ", "ab", "foo", "rm ", "\n"):
        text = (fill * (most // len(fill) + 1))[: most - 1] + "!"
        began = time.process_time()
        re.search(pattern, text)
        assert time.process_time() - began < 3.0, fill


def test_a_value_that_is_too_long_for_its_pattern_is_asked_about() -> None:
    long = "git log " + "a" * 5_000
    asks = Rule(tool="terminal", ask="always", match="secret.*key")
    allows = Rule(tool="terminal", ask="never", match="git.*log.*a.*")
    assert fits(asks, "terminal", command=long) and not fits(asks, "terminal", command="git log a")
    assert not fits(allows, "terminal", command=long) and fits(allows, "terminal", command="git log a")
