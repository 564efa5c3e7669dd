# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon report`: the document, from built captures of each format."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tcpkmon
from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.thinning import thin
from tcpkmon.formats.commands import report as report_command
from tcpkmon.formats.report.data import NONE, VALUES, Rates, Report, collect, merge
from tcpkmon.formats.report.host import read_host
from tcpkmon.formats.report.page import make_page
from tests.full import first
from tests.kept.make import unpack
from tests.unit.log_files import write_bulk
from tests.unit.psc_files import write_capture
from tests.unit.test_timeline import write_host

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\x1b]0;x\x07\u202e"


def run(*words: Any) -> Any:
    found = CliRunner().invoke(
        report_command.command, [str(word) for word in words], standalone_mode=False
    )
    if found.exception is not None:
        raise found.exception
    return found.return_value


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def unpacked(graph: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Times in us, and the values by name's number."""
    times = np.frombuffer(base64.b64decode(graph["times"]), "<f8")
    values = [np.frombuffer(base64.b64decode(one), "<i4") for one in graph["values"]]
    return times, np.stack(values)


@pytest.mark.full
def test_ten_connections_of_100000_records_are_small(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "big.pm", 1_000_000, 10)
    assert run(path, "-o", tmp_path / "big.html") == 0
    page = (tmp_path / "big.html").read_bytes()
    assert len(page) <= 5_000_000
    graphs = data_of(page.decode())["graphs"]
    assert len(graphs) == 10
    for graph in graphs.values():
        assert graph["records"] == 100_000
        assert 1000 < graph["points"] <= 6000


def test_thinned_points_have_the_extremes(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.pm", 100_000, 1)
    with tcpkmon.open(path) as reader:
        found = data_of(make_page(collect([path], reader)))["graphs"]["1"]
        with why.Source(reader) as source:
            read = np.concatenate([piece["srtt_us"] for piece in source.read()])
    times, values = unpacked(found)
    assert (np.diff(times) >= 0).all()
    srtt = values[[name for name, _ in VALUES].index("srtt")]
    known = srtt[srtt != NONE]
    assert (known.min(), known.max()) == (read[read > 0].min(), read.max())


def test_a_loss_is_a_break_and_a_band(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.pm", 2000, 1, lose=set(range(1000, 1100)))
    assert run(path, "-o", tmp_path / "a.html") == 3
    data = data_of((tmp_path / "a.html").read_text())
    begin, end, missing = data["lost"]
    assert missing == [100]
    times, values = unpacked(data["graphs"]["1"])
    breaks = np.flatnonzero((values == NONE).all(axis=0))
    assert len(breaks) == 1
    assert begin[0] <= times[breaks[0]] <= end[0]
    assert not ((times > begin[0] + 0.01) & (times < end[0])).any()


def test_between_breaks_of_a_bin_nothing_stays() -> None:
    values = np.array([[1, 2, NONE, 3, NONE, 4, 5, 6]])
    for bins, kept in (([0, 0, 0, 0, 0, 0, 1, 1], [0, 2, 5, 6, 7]),
                       ([0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 7])):  # fmt: skip
        assert thin(np.array(bins), values, values == NONE).tolist() == kept


def test_gaps_that_are_near_become_one() -> None:
    lost = why.Losses(np.array([0, 100, 110, 500]), np.array([1, 101, 111, 501]),
                      np.array([1, 2, 3, 4]))  # fmt: skip
    found = merge(lost, 3)
    assert found.begin_ns.tolist() == [0, 100, 500]
    assert found.end_ns.tolist() == [1, 111, 501]
    assert found.missing.tolist() == [1, 5, 4]
    assert merge(lost, 10).missing.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", first(4, [
    "psc-lossy", "klogger-plain", "events-plain", "magnet-plain", "psc-plain", "psc-rotated",
    "klogger-lossy",
]))
def test_each_format_has_its_page(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    path = next(one for one in tmp_path.iterdir() if one.name.startswith(name))
    assert run(path, "-o", tmp_path / "out.html") == (3 if "lossy" in name else 0)
    page = (tmp_path / "out.html").read_text()
    with tcpkmon.open(path) as reader:
        proof = reader.table("proof").to_pylist()[-1]
    assert proof["verdict"] in page
    assert f"{proof['entries']:,} entries" in page
    has_graphs = not name.startswith(("events", "magnet"))
    assert ("no graphs: " in page) is not has_graphs
    assert bool(data_of(page).get("graphs")) is has_graphs


def hostile() -> Report:
    columns = [{"name": "conn_id", "unit": "", "text": ""},
               {"name": "comm", "unit": "", "text": HOSTILE}]  # fmt: skip
    return Report(
        HOSTILE,
        [{"path": HOSTILE, "verdict": HOSTILE, "exit_code": 5, "format": "psc", "entries": 1,
          "size_bytes": 1, "lost": 0, "end_reason": HOSTILE, "checkpoints": 0, "problems": 1}],
        [{"event": HOSTILE, "lost": None}], {HOSTILE: [HOSTILE]}, [HOSTILE],
        [(1, HOSTILE, [HOSTILE])],
        [{"cause": HOSTILE}],
        {"connections": {"columns": columns, "rows": [[1, HOSTILE]]}, "count": 1}, 1,
    )  # fmt: skip


def test_names_stay_text() -> None:
    page = make_page(hostile())
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "<td>\u2013</td>" in page, "what is not known is no empty cell"
    assert data_of(page)["connections"]["rows"] == [[1, HOSTILE]]
    assert page.count("</script>") == 3


def test_the_policy_allows_what_is_there_and_no_more() -> None:
    page = make_page(hostile())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#x27;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        there = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        sums = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in there]
        assert rules[rule].split() == [f"'sha256-{one}'" for one in sums]
        assert len(sums) == 2
    assert not re.search(r'(src|href|action)="', page)


def test_the_host_of_a_log(tmp_path: Path) -> None:
    """Page-ins and calls of a host's log, the way of bytes of magnet's; nothing of others."""
    host = {one.title: one.rows for one in read_host([write_host(tmp_path / "host")], 3)}
    calls, faults = host["System calls"], host["Page-ins, by thread"]
    assert [(row["call"], row["count"], row["total"], row["share"]) for row in calls] == [
        ("write", 1, "200 ns", 1.0)
    ]
    assert [(row["tid"], row["total"]) for row in faults] == [("8", "100 ns")]
    folder = write_bulk(tmp_path / "bulk", 400, connections=2)
    sections = read_host([folder], 1)
    assert [one.title.split(":")[0] for one in sections] == ["Where the time of the bytes went"]
    parts = {row["part"]: row["share"] for row in sections[0].rows}
    assert parts.pop("whole") == 1.0 and sum(parts.values()) == pytest.approx(1.0)
    with tcpkmon.open(folder) as reader:
        page = make_page(collect([folder], reader, 1))
    assert page.count("<meter") == len(parts) + 1 and "style=" not in page.split("<main>")[1][:9000]


def test_rows_of_the_host(tmp_path: Path) -> None:
    folder = write_host(tmp_path / "host", lose=3)
    with tcpkmon.open(folder) as reader:
        found = collect([folder], reader).plots
    tracks = found["tracks"]
    told = {
        row["name"]: [tracks["items"][n]
                      for n in np.frombuffer(base64.b64decode(row["item"]), "<u2")]
        for row in tracks["rows"]
    }  # fmt: skip
    # What ran on CPU 0 has a loss in it: it is not known.
    assert told == {"CPU 0": [], "CPU 1": ["woken (8)"], "page-ins": ["woken"]}
    begin, end, missing = tracks["gaps"]["CPU 0"]
    assert (begin, missing) == ([0.0], [3]) and end[0] == pytest.approx(0.1, abs=0.06)


def test_goodput_has_what_was_sacked() -> None:
    """A segment is lost: 20 ms of SACKs, then one ACK of everything. No time has all of it."""
    count, mss = 40, 1000
    acked = np.r_[np.arange(10) * mss, np.full(20, 9 * mss), (30 + np.arange(10)) * mss]
    piece = why.Snapshots(
        {"snd_max": acked + 10 * mss, "snd_una": acked, "rcv_nxt": np.ones(count, np.int64),
         "sacked_out": np.r_[np.zeros(10, np.int64), np.arange(20), np.zeros(10, np.int64)],
         "mss": np.full(count, mss), "location": np.zeros(count, np.int64),
         "callvalue": np.zeros(count, np.int64), "state": np.ones(count, np.int64),
         "seg_len": np.zeros(count, np.int64)},
        np.arange(count) * 1_000_000, np.zeros(count, np.int64),
    )  # fmt: skip
    rates = Rates(0, count * 1_000_000)
    rates.add(piece, np.empty(0, np.int64), np.empty(0, np.int64))
    goodput = np.array(rates.megabits()[1], float)
    assert goodput.sum() == pytest.approx(39 * mss * 8 / 1000, rel=1e-3)
    assert goodput.max() <= 3 * mss * 8 / 1000  # 21 segments come in one ACK


def test_rates_are_of_the_bytes(tmp_path: Path) -> None:
    """1448 bytes each 3 us, 30 records missing: not known there, not zero."""
    path = write_capture(tmp_path / "a.pm", 9000, 3, lose=set(range(4000, 4030)))
    with tcpkmon.open(path) as reader:
        graph = collect([path], reader, 1).plots["graphs"]["1"]
    assert graph["rates_ms"] == pytest.approx(1.0, abs=0.2)
    for row in graph["rates"]:
        known = [one for one in row if one is not None]
        assert len(row) - len(known) == 1
        assert sum(known) / len(known) == pytest.approx(1448 * 8 / 3, rel=0.02)
