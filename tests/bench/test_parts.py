"""The pure parts of the benchmark: statistics, choosing, charts, the page."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from lab.bench.figures import CONTROL, DIRECT, DURABLE, FLOOR, Report, spread
from lab.bench.generator import Generator
from lab.bench.judge import judge
from lab.bench.length import costs, growth
from lab.bench.machine import Cores, Fleet, Server
from lab.bench.page import write
from lab.bench.plots import draw
from lab.bench.program import Impossible, Wish, calmest, choose
from lab.bench.svg import Chart, Scale, Series, bars, lines, log_ticks, ticks
from lab.bench.tables import COLUMNS, cells
from lab.bench.targets import Ground, Peer
from lab.bench.wire import Stream
from tests.bench.made import figure, kept, report


def test_a_spread_is_median_p99_and_worst() -> None:
    assert spread([float(n) for n in range(101)], "first_ms") == {
        "first_p50_ms": 50.0,
        "first_p99_ms": 99.0,
        "first_max_ms": 100.0,
    }
    assert spread([7.0], "first_ms") == {"first_p50_ms": 7.0, "first_p99_ms": 7.0, "first_max_ms": 7.0}
    assert spread([], "first_ms") == {}


def test_the_cost_of_each_thousand_is_the_cpu_between_its_ends() -> None:
    marks = [(0, 1.0), (500, 1.01), (1000, 1.1), (1600, 1.2), (2100, 1.43)]
    assert costs(marks) == [pytest.approx(100.0), pytest.approx(300.0)]


def test_growth_is_the_last_thousands_over_the_first_and_one_hiccup_does_not_decide() -> None:
    assert growth([10, 10, 90, 10, 10, 10, 30, 30, 1])["growth"] == pytest.approx(3.0)
    assert growth([10, 10, 10, 10, 10]) == {}


def test_a_mark_that_two_reads_share_is_counted_once() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" + b"data: {}\n\n" * 5 + b"event: response.completed\n\n"
    for cut in range(1, len(data)):
        stream = Stream()
        for part in (data[:cut], data[cut:]):
            stream.add(bytearray(part), len(part), b"data: {")
        assert (stream.frames, stream.completed, stream.size) == (5, True, len(data))


def test_only_names_loads_and_targets_whole_or_by_their_first_part() -> None:
    loads, names = choose(Wish(only=("paced", "floor", "ninelives-durable")))
    assert [load.name for load in loads] == [f"paced-{n}" for n in (50, 100, 200, 250, 400)]
    assert names == [DIRECT, FLOOR, DURABLE]
    loads, names = choose(Wish(only=("tiny-1",)))
    assert [load.name for load in loads] == ["tiny-1"] and CONTROL not in names
    with pytest.raises(Impossible, match="hurry"):
        choose(Wish(only=("hurry",)))


def test_the_control_is_there_for_its_own_load_and_for_all_if_asked() -> None:
    assert CONTROL in choose(Wish())[1]
    assert choose(Wish(only=("control",)))[1] == [DIRECT, FLOOR, CONTROL]
    assert CONTROL in choose(Wish(only=("control", DURABLE, "tiny-1")))[1]
    assert CONTROL in choose(Wish(only=("tiny-1",), control=True))[1]


def test_every_promise_has_its_load_in_the_whole_run() -> None:
    from lab.bench.judge import RULES

    names = {load.name for load in choose(Wish())[0]}
    assert {rule.load for rule in RULES} <= names


def test_a_peer_is_a_name_a_url_and_a_key() -> None:
    assert Peer.parse("other=http://127.0.0.1:4000/v1,sk-1") == Peer("other", "http://127.0.0.1:4000/v1", "sk-1")
    assert Peer.parse("o=http://h:1/v1,k,m").model == "m"
    assert Peer.parse("o=http://h:1").key == ""
    for wrong in ("other", "=http://h", "o=", "o=ftp://h", "o=https://h", "o=http://h,k,m,x"):
        with pytest.raises(ValueError, match="NAME=URL"):
            Peer.parse(wrong)


def test_the_server_of_another_checkout_is_not_looked_for_in_the_current_folder(tmp_path: Path) -> None:
    fleet, cores = Fleet(tmp_path), Cores(0, (0,))
    upstream, own = Server("upstream", 0, 1, 0.0), [sys.executable, "-m", "ninelives"]
    for foreign in (True, False):
        on = Ground(fleet, cores, Generator(()), upstream, own, tmp_path, foreign=foreign)
        assert ("PYTHONSAFEPATH" in on.env) is foreign


@pytest.mark.parametrize("top", [0.003, 0.9, 1, 7, 99, 1234, 3e6])
def test_ticks_are_few_and_reach_the_top(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0 and found[-1] >= top * 0.999 and 3 <= len(found) <= 8


def test_a_scale_puts_more_higher_and_stays_in_the_picture() -> None:
    for scale in (Scale(ticks(50), False), Scale(log_ticks(0.2, 50), True)):
        heights = [scale.y(value) for value in (0.2, 1, 10, 50)]
        assert heights == sorted(heights, reverse=True)
        assert scale.y(-1) <= 360 and scale.y(1e9) >= 0


def test_charts_are_well_formed_whatever_the_names_and_holes() -> None:
    chart = Chart(
        "a < b & c", "µs", "x & y", ["1", "2"], [Series("<x>", [1.0, None]), Series("y", [None, 2.0])], bound=1.5
    )
    for text in (bars(chart), lines(chart)):
        root = ET.fromstring(text)
        assert "a < b & c" in [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_void_figures_are_not_drawn() -> None:
    it = figure("flood-32", DURABLE, events_per_s=1000.0)
    assert dict(draw(report(it)))
    it.void = "direct reached only 90 %"
    assert not dict(draw(report(it)))


def test_the_page_holds_verdicts_figures_and_charts_and_its_json_reads_back(tmp_path: Path) -> None:
    made = report(*kept())
    made.verdicts = judge(made)
    paths = write(made, tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert all(verdict.says in page and verdict.bound in page for verdict in made.verdicts)
    assert all(path.name in page for path in paths if path.suffix == ".svg") and len(paths) > 6
    assert msgspec.json.decode((tmp_path / "bench.json").read_bytes(), type=Report) == made


def test_every_kind_of_load_has_its_table() -> None:
    kinds = {load.kind for load in choose(Wish())[0]}
    assert kinds == set(COLUMNS)
    rows = cells(
        "paced", [figure("paced-50", DIRECT, latency_p50_ms=1.0), figure("paced-50", DURABLE, latency_p50_ms=3.5)]
    )
    assert rows[2][rows[0].index("added p50")] == "2.50"


def test_a_load_is_taken_again_while_the_machine_disturbs_it_and_the_calmest_round_counts() -> None:
    """By what the server hardly causes: the best result is not looked for."""
    rounds = [
        [figure("paced-200", DURABLE, upstream_late=0.05, latency_p99_ms=9.0)],
        [figure("paced-200", DURABLE, upstream_late=0.02, latency_p99_ms=99.0)],
        [figure("paced-200", DURABLE, others_server=0.3, latency_p99_ms=1.0)],
        [figure("paced-200", DURABLE, upstream_late=0.0, latency_p99_ms=50.0)],
    ]
    left = iter(rounds)
    best, others = calmest(lambda: next(left), 3)
    assert best == rounds[1]
    assert others == [*rounds[0], *rounds[2]]
    left = iter(reversed(rounds))
    assert calmest(lambda: next(left), 3) == (rounds[3], [])
