# SPDX-License-Identifier: Apache-2.0
"""tcpkmon diff: no false alarm, real differences found, settings first, conditions, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.analysis.check import parse_where
from tcpkmon.formats.analysis.diff import (
    BY_NAME,
    METRICS,
    compare,
    interval_text,
    judge,
    parse_conditions,
    parse_sides,
    read_run,
)
from tcpkmon.formats.analysis.diff.picture import courses_of
from tcpkmon.formats.analysis.diff.sides import values_by_connection, values_of_run
from tcpkmon.formats.analysis.diff.statistics import DIFFERS, NO_DATA, SAME, TOO_FEW
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.expressions import ExpressionError
from tcpkmon.formats.commands.diff import command
from tests.unit.log_files import write_folder
from tests.unit.psc_files import write_runs
from tests.unit.test_latency import begin, transfer

pytest.importorskip("scipy")


def run(*words: object) -> int:
    return cli.run(command, [str(word) for word in words])


def draw(chance: np.random.Generator, units: int, factor: float = 1.0) -> dict[str, Any]:
    """Values that depend on each other, with a long tail, and some that are mostly 0."""
    base = chance.lognormal(0, 0.5, units)
    found = {
        one.name: 1000 * factor * base * chance.lognormal(0, 0.3, units)
        for one in METRICS if not one.name.startswith("share_")
    }  # fmt: skip
    found["retrans_ratio"] = np.where(chance.random(units) < 0.8, 0, chance.random(units))
    found |= {one.name: np.round(chance.random(units), 1) for one in METRICS
              if one.name.startswith("share_")}  # fmt: skip
    return found


def test_equal_sides_give_at_most_one_false_alarm_in_20() -> None:
    chance = np.random.default_rng(17)
    units, alarms = 9, 0
    for _ in range(20):
        found, _ = compare(draw(chance, units), draw(chance, units))
        alarms += any(one.result == DIFFERS for one in found)
        assert {one.result for one in found} <= {SAME, DIFFERS}
    assert alarms <= 1


def test_a_real_difference_is_found_and_measured() -> None:
    chance = np.random.default_rng(18)
    found, _ = compare(draw(chance, 60), draw(chance, 60, factor=2.0))
    by_name = {one.metric.name: one for one in found}
    for name in ("goodput_p50", "srtt_p95_us", "latency_whole_us"):
        one = by_name[name]
        assert one.result == DIFFERS and one.change is not None and one.interval is not None
        assert one.interval[0] < 1.0 < one.interval[1] and one.larger is not None
        large = replace(one, change=320.0, interval=(183.0, 437.0))
        assert interval_text(large) == "x 184 to x 438", "as its change: x 321"
        assert interval_text(replace(one, interval=(-0.1, 3))) == "-10 to +300 %"
        assert 0.4 < one.change < 1.8 and one.larger > 0.7
    assert by_name["goodput_p50"].is_worse is False and by_name["srtt_p95_us"].is_worse is True
    assert by_name["share_cwnd"].result == SAME


@pytest.mark.parametrize("tied", [False, True])
def test_the_test_is_exact_for_few_units(tied: bool) -> None:
    """Of all orders of 5 and 5 units, just two are as far apart."""
    a, b = np.arange(5.0), 10 + np.arange(5.0)
    if tied:
        a[:2], b[:2] = 0, 10
    (one,), (family,) = compare({"min_rtt_us": a}, {"min_rtt_us": b}, alpha=0.05)
    assert one.p == pytest.approx(2 / comb(10, 5)) and one.larger == 1.0
    assert one.result == DIFFERS and family.tests == 1


def test_p_is_corrected_after_holm() -> None:
    chance = np.random.default_rng(3)
    a = {name: chance.normal(5, 1, 9) for name in ("goodput_p50", "duration_us", "min_rtt_us")}
    b = {name: chance.normal(5 + at, 1, 9) for at, name in enumerate(a)}
    alone = {name: compare({name: a[name]}, {name: b[name]})[0][0].p or 0 for name in a}
    together = {one.metric.name: one.p for one in compare(a, b)[0]}
    order = sorted(alone, key=lambda name: alone[name])
    right, largest = {}, 0.0
    for place, name in enumerate(order):
        largest = max(largest, min(1.0, (3 - place) * alone[name]))
        right[name] = largest
    assert together == pytest.approx(right)
    # What was named before is corrected for by itself.
    first, others = compare(a, b, ["min_rtt_us"])[1]
    assert (first.names, first.tests, others.tests) == (("min_rtt_us",), 1, 2)
    named = {one.metric.name: one.p for one in compare(a, b, ["min_rtt_us"])[0]}
    assert named["min_rtt_us"] == pytest.approx(alone["min_rtt_us"])


def test_no_data_and_too_few_are_no_equality() -> None:
    many, few = np.arange(50.0), np.arange(3.0)
    found, (family,) = compare(
        {"min_rtt_us": many, "duration_us": few, "handshake_us": many, "retrans_ratio": many * 0},
        {"min_rtt_us": many, "duration_us": few + 99, "retrans_ratio": many * 0},
    )
    results = {one.metric.name: one.result for one in found}
    assert results == {"min_rtt_us": SAME, "duration_us": TOO_FEW, "handshake_us": NO_DATA,
                       "retrans_ratio": SAME}  # fmt: skip
    assert family.tests == 2 and family.needed == 6
    assert 2 / comb(12, 6) * 2 <= 0.01 < 2 / comb(10, 5) * 2


def test_a_change_from_nothing_is_above_every_bound() -> None:
    zero, some = np.zeros(20), np.linspace(0.1, 0.2, 20)
    conditions = parse_conditions(["retrans_ratio worse 900%", "share_rwnd more 5%",
                                   "share_rwnd more 20%", "share_rwnd less 0%"])  # fmt: skip
    names = ["retrans_ratio", "share_rwnd"]
    found, _ = compare(dict.fromkeys(names, zero), dict.fromkeys(names, some), names)
    judged = judge(conditions, {one.metric.name: one for one in found})
    assert [one.failed for one in judged] == [True, True, False, False]
    assert judged[0].why == "its median changed: from 0"


def test_where_the_medians_are_equal_the_means_tell() -> None:
    """Most connections have no retransmission on either side, but on one side some have many."""
    a, b = np.zeros(60), np.r_[np.zeros(40), np.linspace(0.05, 0.1, 20)]
    conditions = parse_conditions(["retrans_ratio worse 50%", "share_recovery worse 2%",
                                   "share_recovery worse 3%", "share_rwnd less 0%"])  # fmt: skip
    names = ["retrans_ratio", "share_recovery", "share_rwnd"]
    found, _ = compare(dict.fromkeys(names, a), dict.fromkeys(names, b), names)
    assert {(one.result, one.by) for one in found} == {(DIFFERS, "mean")}
    assert found[1].change == pytest.approx(b.mean()) and found[1].interval is not None
    assert found[1].interval[0] < b.mean() < found[1].interval[1]
    judged = judge(conditions, {one.metric.name: one for one in found})
    assert [one.failed for one in judged] == [True, True, False, False]
    assert judged[1].why == "its mean changed: +2.5 points"


@pytest.mark.parametrize(("text", "failed"), [
    ("srtt_p95_us worse 20% and srtt_p50_us worse 20%", False),
    ("srtt_p95_us worse 20% or srtt_p50_us worse 20%", True),
    ("not (srtt_p95_us better 0%)", True),
    ("srtt_p95_us worse 20% and min_rtt_us worse 20%", None),
])  # fmt: skip
def test_conditions_are_joined(text: str, failed: bool | None) -> None:
    values = np.linspace(100, 110, 30)
    (condition,) = parse_conditions([text])
    names = [metric.name for metric in condition.metrics]
    a = {"srtt_p95_us": values, "srtt_p50_us": values}
    found, _ = compare(a, {**a, "srtt_p95_us": values * 1.3}, names)
    (one,) = judge([condition], {each.metric.name: each for each in found})
    assert one.failed is failed
    assert one.why.startswith("srtt_p95_us: its median changed: +30 %") or len(names) == 1


def test_all_mistakes_at_once() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_conditions(["goodput_p50 worse 5%", "goodput_p5 worze five", "goodput_p5 worse 5",
                          "share_cwnd worse 1%",
                          "", "min_rtt_us", "min_rtt_us better",
                          "min_rtt_us worse 5% x", "goodput_p50 worse 100%",
                          "share_cwnd more 100.5%", "goodput_p50 better 100%", "5% worse 1%",
                          "p95(srtt_us) more 1%", "not min_rtt_us > 3"])  # fmt: skip
    told = [(text, mistake.at, mistake.what.split(",")[0]) for text, mistake in
            caught.value.mistakes]  # fmt: skip
    assert told == [
        ("goodput_p5 worze five", 11, "expected worse"),
        ("goodput_p5 worse 5", 0, "no metric 'goodput_p5' (did you mean 'goodput_p50'?)"),
        ("goodput_p5 worse 5", 17, "expected a bound such as 5%"),
        ("share_cwnd worse 1%", 11,
         "neither direction of share_cwnd is worse: write more or less"),
        ("", 0, "expected a name"),
        ("min_rtt_us", 0, "say how min_rtt_us may not change: worse"),
        ("min_rtt_us better", 17, "expected a name"),
        ("min_rtt_us worse 5% x", 20, "expected worse"),
        ("goodput_p50 worse 100%", 18,
         "this never fails: goodput_p50 changes by 100% less at most"),
        ("share_cwnd more 100.5%", 16,
         "this never fails: share_cwnd changes by 100 points at most"),
        ("5% worse 1%", 0, "worse takes a metric before it"),
        ("p95(srtt_us) more 1%", 0, "more takes a metric before it"),
        ("not min_rtt_us > 3", 15, "expected worse"),
    ]  # fmt: skip
    assert caught.value.lines()[2] == "             ^"
    for bad in ("srtt > 1", "srtt_p50_us", "nope == 1"):
        with pytest.raises(ExpressionError):
            parse_where(bad)


def test_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.pm", "b.pm", "x=y,z.pm"):
        Path(name).write_bytes(b"")
    Path("runs").mkdir()
    for name in ("2.pm", "1.pm", ".3.pm", "notes.txt"):
        Path("runs", name).write_bytes(b"")
    Path("runs/notes").mkdir()  # no capture
    a, b = Path("a.pm"), Path("b.pm")
    assert parse_sides(["a.pm", "b.pm"]) == {"a.pm": [a], "b.pm": [b]}
    assert parse_sides(["old=a.pm", "new=b.pm,x=y,z.pm"])["new"] == [b, Path("x=y"), Path("z.pm")]
    assert parse_sides(["x=y,z.pm", "n=a.pm", "n=b.pm"]) == {
        "x=y,z.pm": [Path("x=y,z.pm")], "n": [a, b],
    }  # fmt: skip
    Path("more").mkdir()
    Path("more/a.pm").write_bytes(b"")
    assert list(parse_sides(["a.pm", "more/a.pm"])) == ["a.pm", "more/a.pm"]
    assert parse_sides(["runs", "b=b.pm"])["runs"] == [Path("runs/1.pm"), Path("runs/2.pm")]
    for log in ("logs/one/kernlog.dump.cpu0", "logs/two/vm-20261123T044532Z-000001.pm"):
        Path(log).parent.mkdir(parents=True)
        Path(log).write_bytes(b"")
    assert parse_sides(["logs", "b.pm"])["logs"] == [Path("logs/one"), Path("logs/two")]
    Path("empty").mkdir()
    for bad in (["a.pm"], ["a.pm", "a.pm"], ["a.pm", "b.pm", "x=y,z.pm"], ["=a.pm", "b.pm"],
                ["a.pm", "b="], ["a.pm", "empty"], ["a=a.pm,a.pm", "b.pm"]):  # fmt: skip
        with pytest.raises(TcpkmonError) as caught:
            parse_sides(bad)
        assert caught.value.exit_code == UsageError.exit_code
    with pytest.raises(TcpkmonError) as caught:
        parse_sides(["a.pm", str(tmp_path / "a.pm"), "=b.pm", "empty", "x="])
    said = caught.value.lines()
    assert len(said) == 5
    for told, line in zip(("'=b.pm' names no", "no capture in empty", "'x=' names no",
                           "twice: a.pm, /", "here are 5"), said, strict=True):
        assert told in line


def test_of_two_ends_the_sender_counts(tmp_path: Path) -> None:
    path = write_runs(tmp_path / "a.pm", [(1e6, 500), (2e6, 500), (4e6, 900)], both_ends=True)
    one = read_run(path)
    assert one.connections is not None and one.proven, one.verdict
    assert one.connections["lport"].tolist() == [5001, 5002, 5003]
    values = values_by_connection(one.connections, None)
    assert values["goodput_mean"] == pytest.approx([1e6, 2e6, 4e6], rel=1e-2)
    assert set(values) >= {"goodput_p50", "srtt_p50_us", "retrans_ratio", "share_cwnd"}
    assert "latency_whole_us" not in values
    of_run = values_of_run(one.connections, None)
    assert {len(column) for column in of_run.values()} == {1}
    assert of_run["goodput_mean"] == pytest.approx([2e6], rel=1e-2)
    some = read_run(path, parse_where("lport > 5001 and srtt_p50_us > 0.8ms")).connections
    assert some is not None and some["lport"].tolist() == [5003]


def test_what_was_not_recorded_is_no_ratio_of_0(tmp_path: Path) -> None:
    """Without the column bytes_retrans it is the sum of RETRANSMIT, where that was recorded."""
    for ways, told in (({"RETRANSMIT": "btf"}, True), ({"SEGMENT_RECEIVED": "btf"}, False)):
        path = write_runs(tmp_path / "a.pm", [(1e6, 500), (2e6, 500)], {"locations": ways})
        table = read_run(path).connections
        assert table is not None
        for name in ("bytes_retrans", "retrans_ratio"):
            assert np.isfinite(table[name]).all() == told
        assert (len(values_by_connection(table, None)["retrans_ratio"]) > 0) == told
        assert ("retrans_ratio" in values_of_run(table, None)) == told
    table["bytes_retrans"][0], table["retrans_ratio"][0] = 50, 0.01
    table["bytes_sent"][:] = 5000, 9999
    assert values_of_run(table, None)["retrans_ratio"] == pytest.approx([0.01])


def test_flows_of_schema_magnet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = begin()
    transfer(log, 20_000, transfer(log))
    one, two = (write_folder(tmp_path / name, log) for name in ("log", "log2"))
    found = read_run(one)
    assert found.connections is None and found.settings["latency from"] == "both ends"
    values = values_by_connection(None, found.flows)
    parts = [values[f"latency_{name}_us"][0] for name in
             ("buffer", "stack", "qdisc", "network", "hole", "reader")]  # fmt: skip
    assert sum(parts) == pytest.approx(values["latency_whole_us"][0])
    assert values["latency_qdisc_us"] == pytest.approx([0.04])
    assert run(one, two, "--unproven-ok", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["result"] for row in told["metrics"]} == {TOO_FEW}
    assert {row["metric"] for row in told["metrics"]} <= {
        name for name in BY_NAME if name.startswith("latency_")
    }  # fmt: skip


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two that are alike, and one that is slower, with another setting."""
    chance = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("diff")
    system = {"sysctl": {"net.ipv4.tcp_congestion_control": "cubic", "net.ipv4.tcp_sack": "1"},
              "qdiscs": [{"device": "eth0", "parent": "root", "kind": "fq", "handle": "8001:"}]}

    def draw(factor: float) -> list[tuple[float, float]]:
        return [(1e6 / factor * rate, 1000 * factor * rtt) for rate, rtt in
                chance.lognormal(0, 0.2, (24, 2))]  # fmt: skip

    other = {**system, "sysctl": {**system["sysctl"], "net.ipv4.tcp_congestion_control": "reno"}}
    return (
        write_runs(folder / "a.pm", draw(1), {"system": system, "columns": "default"}),
        write_runs(folder / "b.pm", draw(1), {"system": system, "columns": "default"}),
        write_runs(folder / "c.pm", draw(2), {"system": other, "columns": "full"}),
    )


def test_settings_come_first_then_what_differs(
    captures: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = captures
    assert run(a, b) == 0
    out = capsys.readouterr().out
    assert "No setting differs" in out and "worse" not in out and "24 connections" in out
    assert run(f"old={a}", f"new={c}") == 0
    lines = capsys.readouterr().out.splitlines()
    at = {name: next(n for n, line in enumerate(lines) if line.startswith(name)) for name in
          ("net.ipv4.tcp_congestion_control", "columns", "goodput_p50")}  # fmt: skip
    assert list(at.values()) == sorted(at.values())
    assert lines[at["net.ipv4.tcp_congestion_control"]].split()[1:] == ["cubic", "reno"]
    assert "worse" in lines[at["goodput_p50"]] and "~" not in lines[at["goodput_p50"]]


def test_conditions_and_exit_codes(
    captures: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = captures
    slow = ("--fail-if", "goodput_p50 worse 20%")
    assert run(a, b, *slow) == 0
    assert "ok     goodput_p50 worse 20%: no difference" in capsys.readouterr().out
    assert run(a, c, *slow, "--fail-if", "goodput_p50 worse 90%", "--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert [one["failed"] for one in told["fail_if"]] == [True, False]
    assert told["exit_code"] == 3 and told["unit"] == "connection"
    by_name = {one["metric"]: one for one in told["metrics"]}
    assert by_name["goodput_p50"]["worse"] and by_name["goodput_p50"]["change"] < -0.3
    assert told["settings"][0]["name"] == "net.ipv4.tcp_congestion_control"
    assert run(c, a, *slow) == 0
    assert "better" in capsys.readouterr().out
    # What nobody measured is no success.
    assert run(a, c, "--fail-if", "handshake_us worse 5%") == 2
    assert "no data: it cannot be judged" in capsys.readouterr().out
    assert run(a, c, "--where", "lport < 5003", *slow) == 2
    out = capsys.readouterr().out
    assert "too few: it cannot be judged" in out and "each side needs 5 connections" in out
    lossy = write_runs(tmp_path / "lossy.pm", [(1e6, 500)] * 8, lose=True)
    assert run(a, lossy) == 5
    said = capsys.readouterr()
    assert not said.out and "lossy.pm: " in said.err and "--unproven-ok" in said.err
    assert run(a, lossy, "--unproven-ok") == 0
    assert "NOT PROVEN: 1" in capsys.readouterr().out


def test_several_captures_of_a_side_are_runs(
    captures: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, factor in (("one", 1.0), ("two", 1.5)):
        (tmp_path / side).mkdir()
        for n in range(7):
            write_runs(tmp_path / side / f"{n}.pm", [(factor * (1e6 + 100 * n), 500)] * 3)
    assert run(tmp_path / "one", tmp_path / "two", "--metrics", "goodput_mean", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (row,) = told["metrics"]
    assert told["unit"] == "run" and (row["a"]["n"], row["b"]["n"]) == (7, 7)
    assert row["result"] == DIFFERS and row["change"] == pytest.approx(0.5, rel=0.01)
    assert row["p"] == pytest.approx(2 / comb(14, 7))
    words = (tmp_path / "one", tmp_path / "two", "--unit", "connection", "--json")
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out)["metrics"][0]["a"]["n"] == 21


def test_wrong_arguments(
    captures: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, _ = captures
    there = tmp_path / "there.png"
    there.write_bytes(b"")
    for words, told in (
        ((a,), "has two sides"), ((), "here are 0"),
        ((a, b, "--metrics", "goodput"), "no metric goodput"),
        ((a, b, "-o", "x.txt"), "unknown kind of picture"),
        ((a, b, "-o", there), "is there already"), ((a, tmp_path / "none.pm"), "none.pm"),
        ((a, b, "-o", tmp_path / "none" / "x.png"), "there is no folder"),
        ((a, "x="), "'x=' names no capture"),
        ((a, b, "--fail-if", "x", "--where", "y"), "no column 'y'"),
    ):  # fmt: skip
        assert run(*words) in (1, 2)
        said = capsys.readouterr()
        assert told in said.err and not said.out and "Traceback" not in said.err
    assert "no metric 'x'" in said.err
    words = (a, "--fail-if", "x", "--where", "y", "--metrics", "goodput", "-o", there)
    assert run(*words) == 2
    said = capsys.readouterr()
    for told in ("no metric 'x'", "no column 'y'", "no metric goodput ", "there already", "are 1"):
        assert told in said.err


def test_without_scipy_it_says_so(
    captures: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(__import__("sys").modules, "scipy.stats", None)
    assert run(*captures[:2]) == 2
    assert "comparisons need scipy" in capsys.readouterr().err


def test_courses_hold_all_bytes(tmp_path: Path) -> None:
    wanted = [(1e6, 500), (2e6, 700), (3e6, 900)]
    one = read_run(write_runs(tmp_path / "a.pm", wanted, both_ends=True))
    found = courses_of(one)
    assert found is not None and one.connections is not None
    by_time, by_age = found
    acked = float(one.connections["bytes_acked"].sum())
    assert by_time.goodput.sum() * by_time.bin_ns / 1e9 == pytest.approx(acked)
    assert by_time.times_s[-1] == pytest.approx(12 * 14480 * (1 + 1 / 2 + 1 / 3) / 1e6, abs=0.02)
    # All three connections are in the first bin of age, and it has the mean of their rates.
    assert by_age.goodput[0] == pytest.approx(2e6, rel=0.5)
    assert 500 < by_age.srtt_us[0] < 900
    assert by_age.times_s[-1] < by_time.times_s[-1]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures(captures: tuple[Path, Path, Path], tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    a, _, c = captures
    out = tmp_path / f"diff.{ending}"
    assert run(f"old={a}", f"<new>&={c}", "-o", out) == 0
    data = out.read_bytes()
    assert data.startswith(b"\x89PNG" if ending == "png" else b"<?xml") and len(data) > 10_000
    if ending == "svg":
        assert b"goodput_mean" in data and b"&lt;new&gt;&amp;" in data
