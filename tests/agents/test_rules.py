"""Approval rules read what a call will do, and hosts are compared as wholes (D4, E2)."""

from __future__ import annotations

from typing import Any

import pytest

from ninelives.agents.rules import Mode, Rule
from ninelives.core.hosts import host_fits, hosts_in
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
