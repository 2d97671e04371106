"""python -m tests.hostile.undone: whether each test of an attack fails without what it depends on. Owns: which lines
those are, and what would stand there in a server that is open to the attack. A copy of the checkout is changed, one
change at a time, and the tests of that attack run in it. The exit code is 1 where a test does not fail. Refuses to
know: what a test does. docs/testing.md names the tests of each attack."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
PARTS = ("ninelives", "tests", "lab", "docs", "deploy", "examples", "pyproject.toml", "README.md", "CHANGELOG.md")
ROW = re.compile(r"^\| (?P<attack>[^|]+) \| (?P<tests>`tests/[^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`(?:tests/)?([\w/]+\.py::\w+)`")
LONGEST_S = 900.0


class Undone(NamedTuple):
    """One change that opens the server to an attack again."""

    test: str
    """The end of the test's name: it must fail."""
    file: str
    """Below ninelives/."""
    line: str
    """Stands there once."""
    instead: str


UNDONE = (
    Undone(
        "test_every_pattern_takes_time_in_proportion_to_its_input",
        "dialects/approval.py",
        r'r"\A(approve|deny)\s++([A-Z0-9]{4,16})\s*+\.?\Z"',
        r'r"\s*(approve|deny)\s+([A-Z0-9]{4,16})\s*\.?\s*\Z"',
    ),
    Undone(
        "test_every_pattern_takes_time_in_proportion_to_its_input",
        "models/chunks.py",
        r'r"(?i)\b(sk|pk|rk|gsk|xai|key|token)[-_][\w*.-]{4}|\beyJ[\w-]{8}|\*{3}"',
        r'r"(?i)bearer\s+\S+|\S*(\b(sk|pk|key)[-_][\w*.-]{4,}|\beyJ[\w-]{8,}|\*{3,})\S*"',
    ),
    Undone(
        "test_no_expression_runs_over_a_message_that_is_too_long_to_be_an_answer",
        "dialects/approval.py",
        "_ANSWER.match(said) if len(said) <= LONGEST_ANSWER else None",
        "_ANSWER.match(said)",
    ),
    Undone(
        "test_headers_too_large_and_invalid_http_are_told_before_any_key_is_looked_at",
        "http/edge/gate.py",
        "len(headers) > MAX_HEADERS or size > rules.max_head",
        "False",
    ),
    Undone(
        "test_a_flood_is_answered_and_not_read_on",
        "http/edge/connection.py",
        "        most = self.limits.head_bytes\n",
        "        most = 1 << 60\n",
    ),
    Undone(
        "test_a_head_that_does_not_come_is_cut",
        "http/edge/connection.py",
        "self._set_timer(self.limits.head_s, self._late)",
        "self._set_timer(None)",
    ),
    Undone(
        "test_a_connection_without_a_first_byte_is_closed",
        "http/edge/connection.py",
        "            self._timer = self.loop.call_later(self.limits.idle_s, self._silent)\n\n    def data_received",
        "            self._timer = None\n\n    def data_received",
    ),
    Undone(
        "test_a_body_that_does_not_come_is_cut",
        "http/body.py",
        "asyncio.timeout(limits.seconds)",
        "asyncio.timeout(None)",
    ),
    Undone(
        "test_a_flood_is_answered_and_not_read_on",
        "http/edge/connection.py",
        "        if cycle.more_body:  # the answer may come before the rest of the body\n",
        "        if False:\n",
    ),
    Undone(
        "test_an_early_answer_takes_a_bounded_rest_of_the_request",
        "http/edge/connection.py",
        "        if cycle.more_body:  # the answer may come before the rest of the body\n",
        "        if False:\n",
    ),
    Undone(
        "test_many_idle_connections_leave_room_for_runs_and_for_new_clients",
        "app/descriptors.py",
        "return max(1, min(wanted, descriptors - reserve))",
        "return wanted",
    ),
    Undone(
        "test_connections_leave_a_reserve_of_descriptors",
        "app/descriptors.py",
        "return max(1, min(wanted, descriptors - reserve))",
        "return wanted",
    ),
    Undone(
        "test_a_start_raises_the_soft_limit_of_descriptors_to_the_hard_one",
        "app/descriptors.py",
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))\n",
        "",
    ),
    Undone(
        "test_a_shortage_parks_a_stored_run_again_and_again_without_a_strike",
        "engine/workers.py",
        "if short is not None and self._agent.resumable and not run.in_memory:",
        "if False:",
    ),
    Undone(
        "test_a_server_whose_descriptors_are_used_up_fails_no_stored_run",
        "core/errors.py",
        "if isinstance(cause, OSError) and cause.errno in SHORTAGES:",
        "if False:",
    ),
    Undone(
        "test_a8_a_stored_run_that_waits_for_a_slot_keeps_only_its_id_in_memory",
        "engine/admission.py",
        "        self._finder.opened(opened.run, place)\n        if self._workers.cancelling",
        "        self._finder.opened(opened.run, place)\n"
        "        self.__dict__.setdefault('waiting', []).append(order)\n        if self._workers.cancelling",
    ),
    Undone(
        "test_a8_what_an_ended_run_held_is_free_without_the_garbage_collector",
        "engine/workers.py",
        "run.halt.remove_done_callback(self._stop_pump)",
        "pass",
    ),
    Undone(
        "test_the_queue_is_bounded_in_bytes",
        "engine/work.py",
        "or (count > 0 and total + size > limits.queue_bytes)",
        "",
    ),
    Undone(
        "test_an_owner_fills_its_share_and_leaves_the_rest_to_others",
        "engine/work.py",
        "len(own) >= math.ceil(limits.queue * share)",
        "False",
    ),
    Undone(
        "test_a8_of_seven_runs_that_come_at_once_two_run_one_waits_and_four_are_429",
        "engine/work.py",
        "        self._opening.add(place)\n",
        "",
    ),
    Undone(
        "test_no_request_stops_the_server_for_much_longer_than_a_plain_one_of_its_size",
        "dialects/approval.py",
        r'r"\A(approve|deny)\s++([A-Z0-9]{4,16})\s*+\.?\Z", re.IGNORECASE)' "\nLONGEST_ANSWER = 100\n",
        r'r"\s*(approve|deny)\s+([A-Z0-9]{4,16})\s*\.?\s*\Z", re.IGNORECASE)' "\nLONGEST_ANSWER = 1 << 60\n",
    ),
    Undone(
        "test_every_api_reads_a_large_request_in_a_thread", "http/body.py", "if size <= LARGE_BYTES:", "if size > 0:"
    ),
    Undone(
        "test_the_turn_of_a_stored_run_is_encoded_in_a_thread",
        "engine/run.py",
        "self._mark = end_mark(self.staging.state)",
        "self._mark = end_mark(self.staging.state).filled()",
    ),
    Undone(
        "test_r12_large_pieces_of_all_requests_are_worked_on_one_after_the_other",
        "core/rope.py",
        "    with _turn:\n",
        "    with _free:\n",
    ),
    Undone(
        "test_maps_and_lists_of_options_are_capped_with_the_field_and_the_limit",
        "dialects/fields.py",
        "LogitBias = Annotated[dict[str, float], Meta(max_length=1024)]",
        "LogitBias = dict[str, float]",
    ),
    Undone(
        "test_an_answer_without_end_over_http_is_not_read_to_its_end",
        "tools/mcp/incoming.py",
        "            if len(waiting) > MESSAGE_BYTES:\n",
        "            if False:\n",
    ),
    Undone(
        "test_too_many_websockets_of_one_key_is_429_until_one_is_closed",
        "http/websocket.py",
        "if self._open[key] >= most:",
        "if False:",
    ),
    Undone(
        "test_p20_sessions_are_bounded_in_bytes",
        "journal/sqlite/upkeep.py",
        '(("session", gone.sessions), ("conversation", gone.conversations))',
        '(("conversation", gone.conversations),)',
    ),
    Undone(
        "test_p20_conversations_are_bounded_by_age_and_bytes",
        "journal/sqlite/upkeep.py",
        '(("session", gone.sessions), ("conversation", gone.conversations))',
        '(("session", gone.sessions),)',
    ),
    Undone(
        "test_p20_long_outputs_are_bounded_in_bytes_and_the_oldest_go",
        "engine/retention.py",
        "await self._outside.drop(gone.outside)",
        "pass",
    ),
    Undone(
        "test_p20_logs_of_background_processes_count_and_go",
        "engine/retention.py",
        "await self._outside.drop(gone.outside)",
        "pass",
    ),
    Undone(
        "test_p20_whatever_a_command_names_its_files_the_rounds_go_on",
        "tools/outside.py",
        ' and entry.name.endswith(".txt") and _is_text(entry.name)',
        ' and entry.name.endswith(".txt")',
    ),
    Undone(
        "test_a_round_that_fails_is_told_and_the_next_one_comes",
        "engine/retention.py",
        "except Exception as error:  # the edge of a task that must not end",
        "except FileExistsError as error:  # the edge of a task that must not end",
    ),
    Undone(
        "test_p20_a_workspace_counts_and_is_never_evicted",
        "tools/quota.py",
        "full = next((bound for bound in await self._bounds() if bound.used >= bound.limit), None)",
        "full = None",
    ),
    Undone(
        "test_d4_workspaces_leave_permissions_the_rest_of_the_bound",
        "engine/retention.py",
        "used, limit = self._fixed[grant.owner], fixed_limit(bound)",
        "used, limit = 0, fixed_limit(bound)",
    ),
    Undone(
        "test_auto_is_half_of_the_disk_and_nothing_for_a_database",
        "app/store.py",
        "return 0 if settings.store.shared else max(",
        "return 0 if settings else max(",
    ),
    Undone(
        "test_a_command_that_fills_the_workspace_is_ended_and_says_why",
        "tools/quota.py",
        "if over := _first_over(bounds, allowed):",
        "if over := None:",
    ),
    Undone(
        "test_when_the_disk_is_short_commands_are_ended",
        "tools/quota.py",
        "if short := await disk.reason():",
        "if short := None:",
    ),
    Undone(
        "test_r13_readers_that_stop_anywhere_in_a_big_answer_take_little_memory_each",
        "core/rope.py",
        "BIG = 64 * 1024\n",
        "BIG = 1 << 60\n",
    ),
    Undone(
        "test_r13_clients_that_do_not_read_their_answers_are_cut_where_too_much_is_unread",
        "http/edge/connection.py",
        "if self.transport.get_write_buffer_size() > LONG_ANSWER:",
        "if False:",
    ),
    Undone(
        "test_half_a_character_waits_for_its_other_half_and_never_fails_a_run",
        "models/halves.py",
        'if "\\ud800" <= text[-1:] <= "\\udbff":',
        "if False:",
    ),
    Undone(
        "test_d2_a_session_that_is_deleted_while_a_run_in_it_waits_gives_that_run_an_empty_history",
        "journal/values.py",
        "    for place, (number, _) in enumerate(rows, 1):\n        if number != place:\n",
        "    for place, (number, _) in [*enumerate(rows, 1), (len(rows) + 1, (0, b''))]:\n"
        "        if number != place and place <= resolved.session_turns:\n",
    ),
    Undone(
        "test_c3_a_position_beyond_what_was_told_waits_and_no_number_up_to_it_is_sent",
        "engine/subscription.py",
        "self._ahead = after >= 0 and isinstance(projection, Resumable)",
        "self._ahead = False",
    ),
    Undone(
        "test_a_bad_pattern_of_an_approval_is_refused_in_one_line_that_names_it",
        "app/settings.py",
        "        except (re.error, OverflowError, RecursionError) as error:\n",
        "        except FileExistsError as error:\n",
    ),
    Undone(
        "test_b7_a_chore_comes_from_open_webui_or_quotes_a_chat_and_never_names_a_session",
        "dialects/asking.py",
        'return "<chat_history>" in text if chores is None else chores',
        "return True",
    ),
    Undone(
        "test_a3_a_server_that_dies_is_in_the_log_in_health_and_in_toolsets",
        "app/assemble.py",
        'log.warning("mcp_server_lost", server=status.name, reason=status.fault, stderr=status.last_line)',
        "pass",
    ),
    Undone(
        "test_a_server_that_cannot_be_used_is_told_once_with_its_last_words",
        "tools/mcp/link.py",
        "            async with asyncio.timeout(CONNECT_S):\n                connection.session",
        "            async with asyncio.timeout(None):\n                connection.session",
    ),
    Undone(
        "test_f3_doctor_is_red_for_an_mcp_server_that_cannot_be_used",
        "cli/doctor/parts.py",
        'Check(f"mcp: {each.name}", each.usable,',
        'Check(f"mcp: {each.name}", True,',
    ),
    Undone(
        "test_one_bad_tool_does_not_take_the_others_along",
        "tools/mcp/incoming.py",
        "return [tool for tool, fault in zip(tools, faults, strict=True) if not fault]",
        "return tools",
    ),
    Undone(
        "test_nothing_at_the_path_of_a_long_output_blocks_a_run_or_the_stop",
        "tools/workspace.py",
        "        draft = _free_draft(folder, place.call_id)\n"
        '        with open(os.open(draft, _NEW, 0o644, dir_fd=folder), "wb") as file:\n',
        "        draft = path.name\n"
        '        with open(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=folder), "wb") as file:\n',
    ),
    Undone(
        "test_a_server_that_is_started_in_a_foreign_folder_runs_nothing_of_it",
        "app/config_file.py",
        '    content = read_config(here) if digest else b""  # a file that was never trusted is not even read\n'
        "    if digest == digest_of(content):\n",
        "    content = read_config(here)\n    if content:\n",
    ),
    Undone(
        "test_the_banner_names_the_file_the_sandbox_the_approval_mode_and_whether_the_model_answers",
        "app/serve.py",
        'yield f"  state     {upstream}; {agents.describe_rules()}; {config}"',
        'yield f"  state     {upstream}"',
    ),
    Undone(
        "test_a_command_that_waits_for_its_server_sends_nothing_to_another",
        "cli/remote.py",
        "self.named or before or _default_url(server)",
        "self.named or _default_url(server)",
    ),
    Undone(
        "test_the_stored_key_is_not_sent_to_a_configured_address",
        "cli/remote.py",
        'given or (stored if self.named and use_key_file else "")',
        "given or stored",
    ),
    Undone(
        "test_the_stored_key_is_sent_to_the_server_that_the_data_directory_names",
        "app/address.py",
        "    draft.replace(data / _FILE)\n",
        "    draft.unlink()\n",
    ),
    Undone(
        "test_a_profile_inherits_the_key_of_the_model_only_for_the_same_origin",
        "app/agents.py",
        "settings.model.api_key if same_origin(url, settings.model.url) else None",
        "settings.model.api_key",
    ),
    Undone(
        "test_every_secret_of_the_settings_and_the_environment_is_known",
        "app/known_secrets.py",
        "    for name, value in env.items():\n",
        "    for name, value in ():\n",
    ),
    Undone(
        "test_a_server_says_which_profile_has_no_key_and_never_prints_the_one_of_openai_api_key",
        "app/known_secrets.py",
        "    for name, value in env.items():\n",
        "    for name, value in ():\n",
    ),
    Undone(
        "test_one_event_is_one_line_of_printable_characters",
        "observe/log.py",
        "    if text.isprintable():\n",
        "    if text:\n",
    ),
    Undone(
        "test_sigterm_is_obeyed_while_strangers_flood_every_place",
        "http/edge/connection.py",
        "    def refuse(self, error: NinelivesError) -> None:\n",
        "    def refuse(self, error: NinelivesError) -> None:\n        time.sleep(30)\n",
    ),
    Undone(
        "test_a_server_under_attack_obeys_sigterm",
        "dialects/approval.py",
        r'r"\A(approve|deny)\s++([A-Z0-9]{4,16})\s*+\.?\Z", re.IGNORECASE)' "\nLONGEST_ANSWER = 100\n",
        r'r"\s*(approve|deny)\s+([A-Z0-9]{4,16})\s*\.?\s*\Z", re.IGNORECASE)' "\nLONGEST_ANSWER = 1 << 60\n",
    ),
)


def attacks() -> Iterator[tuple[str, list[str]]]:
    """The table of the page: each attack and its tests."""
    text = PAGE.read_text("utf-8")
    for found in ROW.finditer(text[text.index("### Which test reproduces which attack") :]):
        yield found["attack"], [f"tests/{test}" for test in TEST.findall(found["tests"])]


def all_tests() -> list[str]:
    """All of them."""
    return [test for _, named in attacks() for test in named]


def named(undone: Undone) -> str:
    """The whole name of its test."""
    (found,) = [test for test in all_tests() if test.endswith(f"::{undone.test}")]
    return found


def copied(folder: Path) -> None:
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "out"))
        else:
            shutil.copy(source, folder / part)


def fails(undone: Undone, folder: Path) -> str:
    """Change the copy, run the test and take the change back. Returns the first test that failed; empty: none did."""
    file = folder / "ninelives" / undone.file
    whole = file.read_text("utf-8")
    assert whole.count(undone.line) == 1, f"{undone.file} does not have once: {undone.line}"
    file.write_text(whole.replace(undone.line, undone.instead), "utf-8")
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "long or not long"]
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*words, named(undone)], cwd=folder, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "it did not end"
    finally:
        file.write_text(whole, "utf-8")
    failed = re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if failed is None and done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-1000:])
    return failed[1] if failed else ""


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    options = argparse.ArgumentParser(prog="python -m tests.hostile.undone", description=__doc__)
    options.add_argument("tests", nargs="*", metavar="TEXT", help="only tests with this text in their name")
    given = options.parse_args(argv)
    chosen = [each for each in UNDONE if not given.tests or any(text in each.test for text in given.tests)]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="ninelives-undone-") as folder:
        copied(Path(folder))
        for each in chosen:
            failed = fails(each, Path(folder))
            wrong += not failed
            print(f"{'fails' if failed else 'STAYS GREEN':11} without {each.file:26} {each.test}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} tests fail without what they depend on.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
