# SPDX-License-Identifier: Apache-2.0
"""The tables of why: against a plain reference, record by record; as files; by others' names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tcpkmon
from tcpkmon.collector.plan.columns import EVENT, load_schema
from tcpkmon.formats.analysis.why import (
    CONNECTIONS,
    LIMITS,
    NAMES,
    Snapshots,
    as_arrow,
    assemble,
    by_owner,
    choose,
    connections,
    intervals,
    tables,
    tell_wholes,
    wholes,
    write,
)
from tcpkmon.formats.analysis.why.counts import BIN_NS, percentiles
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.expressions import ExpressionError
from tcpkmon.formats.commands import connections as command
from tcpkmon.formats.commands import why
from tests.full import IS_FULL
from tests.unit.psc_files import write_capture
from tests.unit.test_why import columns, table_of

MS = 1_000_000
ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE, CLOSE_WAIT = 1, 2, 3, 4, 5, 7, 8


def value_of(column: Any) -> Any:
    return None if column is None or column != column else column  # noqa: PLR0124


@settings(max_examples=60 if IS_FULL else 15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**12)), max_size=300),
       st.sampled_from([1, 50, 95, 99, 100]), st.booleans())  # fmt: skip
def test_percentiles(pairs: list[tuple[int, int]], share: int, apart: bool) -> None:
    """apart: zeros are counted, not listed."""
    some = [pair for pair in pairs if pair[1] or not apart]
    of, values = (np.array([pair[n] for pair in some], np.int64) for n in (0, 1))
    zeros = np.array([sum(p == n and not v for p, v in pairs) for n in range(6)])
    (got,) = percentiles(of, values, 6, [share], zeros if apart else None)
    for place in range(6):
        mine = sorted(value for p, value in pairs if p == place)
        if not mine:
            assert np.isnan(got[place])
            continue
        assert got[place] == mine[int(np.ceil(share * len(mine) / 100)) - 1]


def test_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "MOST_CONNECTIONS", 3)
    table_of(snapshots([0, 1, 2, 3], conn_id=[1, 2, 3, 1], location=[1] * 4))
    with pytest.raises(UsageError, match="more than 3 connections"):
        table_of(snapshots([0, 1, 2, 3], conn_id=[1, 2, 3, 4], location=[1] * 4))


def snapshots(times_ms: list[int], **values: Any) -> Snapshots:
    times = np.array(times_ms, np.int64) * MS
    return Snapshots(columns(seg_seq=[0] * len(times), **values), times, np.zeros_like(times))


def row_of(whole: Snapshots) -> dict[str, Any]:
    table = table_of(whole)
    assert len(table["conn_id"]) == 1
    return {name: value_of(values[0]) for name, values in table.items()}


def test_sequence_numbers_before_the_handshake_are_no_bytes() -> None:
    """They are not chosen yet: 0. The FINs of both sides are none either."""
    told = row_of(snapshots(
        [0, 1, 2, 3, 4, 5, 6],
        location=[4, 4, 1, 4, 4, 4, 11], state=[7, 2, 1, 1, 4, 5, 7],
        callvalue=[2, 1, 0, 4, 5, 7, 0],
        snd_una=[0, 500_001, 500_001, 500_101, 500_102, 500_102, 500_102],
        snd_max=[0, 500_001, 500_101, 500_101, 500_102, 500_102, 500_102],
        snd_sb_cc=[0, 0, 100, 0, 0, 0, 0],
        rcv_nxt=[0, 900_001, 900_001, 900_011, 900_011, 900_012, 900_012],
    ))  # fmt: skip
    assert (told["bytes_sent"], told["bytes_acked"], told["bytes_received"]) == (100, 100, 10)
    assert (told["role"], told["end_reason"]) == ("active", "fin_local")
    assert told["handshake_us"] == 1000


def test_a_state_that_is_set_twice_ends_the_data_once() -> None:
    """MPTCP's subflows: the FIN has a number when the state is set again."""
    told = row_of(snapshots(
        [0, 1, 2, 3, 4, 5],
        location=[4, 1, 4, 4, 4, 4], state=[3, 1, 1, 8, 9, 9], callvalue=[1, 0, 8, 9, 9, 7],
        snd_una=[501, 501, 501, 501, 501, 502], snd_max=[501, 501, 501, 501, 502, 502],
        snd_sb_cc=[0, 0, 0, 0, 1, 0],
        rcv_nxt=[901, 911, 912, 912, 912, 912],
    ))  # fmt: skip
    assert (told["bytes_sent"], told["bytes_acked"], told["bytes_received"]) == (0, 0, 10)


def test_an_owner_that_nobody_knows_is_null(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    whole = snapshots([0, 1], location=[1, 1], state=[1, 1], pid=[0, 0])
    whole.columns["comm"] = np.zeros(2, "S16")
    told = row_of(whole)
    assert (told["pid"], told["comm"]) == (None, None)
    table = choose(table_of(whole), ["pid", "comm"])
    write("connections", table, "csv", None)
    write("connections", table, "table", None)
    assert capsysbinary.readouterr().out.split(b"\n") == [
        b"pid,comm", b",", b"pid  comm", b"  -  -", b""
    ]  # fmt: skip


def test_namespaces_have_the_names_that_the_header_has() -> None:
    whole = snapshots([0, 1], location=[1, 1], state=[1, 1], netns=[7, 7])
    for names, told in (({"7": "web"}, "web"), ({"8": "web"}, None), ({}, None)):
        table = table_of(whole, {"netns_name": names})
        assert (table["netns"].tolist(), table["netns_name"].tolist()) == ([7], [told])
    bare = snapshots([0, 1], state=[1, 1])
    without = table_of(bare, {"netns_name": {"0": "a"}})
    assert without["netns_name"].tolist() == [None]


def test_all_columns_that_others_need_exist() -> None:
    known = {field.name for field in load_schema().event(EVENT).fields}
    assert {column.needs for column in CONNECTIONS if column.needs} <= known


def test_goodput_is_that_of_100_ms() -> None:
    """1 MB in the first 100 ms, nothing for 200 ms, 3 MB in the fourth."""
    step = BIN_NS // MS
    told = row_of(snapshots(
        [0, 50, 99, 3 * step + 5, 4 * step],
        snd_una=[1000, 501_000, 1_001_000, 4_001_000, 4_001_000],
        snd_max=[1_001_000] * 2 + [4_001_000] * 3,
    ))  # fmt: skip
    assert told["goodput_max"] == 30_000_000
    assert told["goodput_mean"] == 10_000_000
    assert told["goodput_p50"] == 0
    assert told["goodput_p99"] == 30_000_000


@pytest.mark.parametrize("srtt_us", [10_000, 10_400, 10_900])
def test_percentiles_are_not_beyond_what_was_measured(srtt_us: int) -> None:
    """All values are equal, at each place in a class of 9 %: so are the percentiles. The path takes
    10 ms, so 400 us are queue; a difference of both would be anything from 0 to 850 us."""
    told = row_of(snapshots(list(range(0, 500, 10)), srtt_us=srtt_us, min_rtt_us=10_000,
                            snd_una=[10 * 130_000 * (n // 10) for n in range(50)],
                            snd_max=[10 * 130_000 * (n // 10) for n in range(50)]))  # fmt: skip
    assert [told[f"srtt_p{share}_us"] for share in (50, 95, 99)] == [srtt_us] * 3
    assert told["queue_p95_us"] == srtt_us - 10_000
    assert told["goodput_p50"] == told["goodput_max"] == 13_000_000


@pytest.mark.parametrize("first_us, p95", [(1_003_000, 3000), (300_000, 230_000)])
def test_round_trips_of_a_handshake_that_was_lost_are_none(first_us: int, p95: int) -> None:
    """A SYN-ACK that was sent again after a second, on a path of 3 ms."""
    srtt = [first_us * 7**n // 8**n for n in range(40)] + [2900, 3000] * 5
    whole = snapshots(list(range(len(srtt))), srtt_us=srtt, min_rtt_us=2900)
    told = row_of(whole)
    assert told["srtt_p95_us"] == pytest.approx(p95, rel=0.2)
    assert told["bloat"] == (p95 > 3000)


def test_a_capture_without_the_columns_has_null() -> None:
    told = row_of(snapshots([0, 10]))
    assert told["pid"] is told["comm"] is told["busy_us"] is told["delivered_ce_ratio"] is None


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """300 records of 3 connections; two records of the second are missing."""
    return write_capture(tmp_path / "a.pm", records=300, flows=3, lose={100, 101})


def test_a_loss_gives_bounds(capture: Path) -> None:
    table, runs = tables(capture)
    assert table["lost_records"].tolist() == [2, 2, 2]
    assert not table["proven"].any()
    for n in range(3):
        bounds = [(table[f"us_{name}_min"][n], table[f"us_{name}_max"][n]) for name in LIMITS]
        assert table["uncertain_us"][n] > 0
        assert sum(low for low, _ in bounds) < table["duration_us"][n]
        assert all(high - low == pytest.approx(table["uncertain_us"][n]) for low, high in bounds)
    assert sum(~runs["certain"]) == 3
    assert (runs["certain_us"] <= (runs["end_ns"] - runs["start_ns"]) / 1000 + 1e-6).all()
    whole = connections(write_capture(capture.with_name("b.pm"), records=300, flows=3))
    assert whole["proven"].all() and not whole["uncertain_us"].any()


def run(*options: str | Path) -> Any:
    return CliRunner().invoke(
        command.command, [str(option) for option in options], standalone_mode=False
    )


def test_the_command(capture: Path) -> None:
    done = run(capture, "--format", "json", "--sort=-lport")
    rows = json.loads(done.stdout)["connections"]
    assert done.return_value == 3  # records were lost
    assert [row["lport"] for row in rows] == [5003, 5002, 5001]
    assert list(rows[0]) == [column.name for column in CONNECTIONS]
    lines = run(capture, "--columns", "c_ip,c_port,bytes_sent", "--names", "tstat",
                "--format", "csv").stdout.splitlines()  # fmt: skip
    assert lines[0] == "c_ip,c_port,c_bytes_uniq"
    assert lines[1].startswith("10.0.0.1,5001,")
    assert run(capture, capture).stdout.split()[0] == "file"
    assert "main_limit" in run("--columns", "help", capture).stdout
    with pytest.raises(UsageError, match="no column 'nonsense'"):
        raise run(capture, "--sort", "nonsense").exception
    with pytest.raises(UsageError, match=r"no column 'bytes_snt' \(did you mean 'bytes_sent'\?\)"):
        raise run(capture, "--sort", "-bytes_snt").exception


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_files(capture: Path, tmp_path: Path, ending: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    read = parquet.read_table if ending == "parquet" else feather.read_table
    out = tmp_path / f"out.{ending}"
    assert run(capture, "-o", out).return_value == 3
    told = read(out)
    table = connections(capture)
    assert told.schema.field("pid").type == pyarrow.int64()
    assert told["pid"].null_count == 3
    assert told["bytes_acked"].to_pylist() == table["bytes_acked"].tolist()
    runs = tmp_path / f"runs.{ending}"
    CliRunner().invoke(why.command, [str(capture), "--intervals", "-o", str(runs)])
    assert read(runs).equals(as_arrow(intervals(capture)))


def test_a_loss_gives_bounds_in_text_and_json(capture: Path) -> None:
    said = CliRunner().invoke(why.command, [str(capture)], standalone_mode=False)
    assert said.return_value == 3
    assert "of the time is not certain: 2 records of the capture are missing there" in said.output
    first = re.search(r"(\d+) % \((\d+) to (\d+) %\) of the time", said.output)
    assert first and int(first[2]) <= int(first[1]) <= int(first[3]) and first[2] != first[3]
    told = json.loads(CliRunner().invoke(why.command, [str(capture), "--json"]).stdout)
    for row in told["connections"]:
        assert row["certain_ns"] < sum(row["limit_ns"].values())
        assert sum(row["least_ns"].values()) == row["certain_ns"]
        assert all(row[f"us_{name}_min"] <= row[f"us_{name}"] <= row[f"us_{name}_max"]
                   for name in LIMITS)  # fmt: skip


def test_p_where_and_sort_choose_in_all_forms(capture: Path) -> None:
    def ports(*options: str) -> list[int]:
        done = run(capture, "--format", "json", *options)
        return [row["lport"] for row in json.loads(done.stdout)["connections"]]

    table = connections(capture)
    pair = [f"{table['lport'][at]}.{table['rport'][at]}" for at in (1, 2)]
    assert ports("-p", pair[0]) == [5002] and ports("-p", pair[0], "-p", pair[1]) == [5002, 5003]
    assert ports("--where", "lport != 5002 and bytes_acked > 0") == [5001, 5003]
    assert ports("--where", "lport > 5001", "-p", pair[1]) == [5003]
    with pytest.raises(ExpressionError, match="no column 'port'"):
        raise run(capture, "--where", "port > 1").exception
    said = CliRunner().invoke(why.command, [str(capture), "--sort=-lport", "-n", "2", "-v"]).output
    heads = [line for line in said.splitlines() if " since 20" in line]
    assert [":5003" in heads[0], ":5002" in heads[1], len(heads)] == [True, True, 2]
    told = CliRunner().invoke(why.command, [str(capture), "--json", "--where", "lport == 5002"])
    (row,) = json.loads(told.stdout)["connections"]
    assert row["lport"] == 5002
    runs = CliRunner().invoke(why.command, [str(capture), "--intervals", "--json", "-p", pair[1]])
    assert {one["conn_id"] for one in json.loads(runs.stdout)["intervals"]} == {3}
    began = np.datetime64(row["start"].removesuffix("Z"), "us").astype(int)
    with tcpkmon.open(capture) as reader:
        clock = reader.clock
    assert began == (row["start_ns"] + clock[1] - clock[0]) // 1000


def test_choose_sorts_null_last() -> None:
    table = {"laddr": np.array(["b", None, "a"], object), "min_rtt_us": np.array([2, np.nan, 1.0])}
    assert choose(table, sort="laddr")["laddr"].tolist() == ["a", "b", None]
    assert choose(table, sort="-min_rtt_us")["laddr"].tolist() == ["b", "a", None]


def test_names_are_unique() -> None:
    for names in NAMES:
        told = [getattr(column, names) for column in CONNECTIONS if getattr(column, names)]
        assert len(set(told)) == len(told) > 10


def test_mptcp_connections_above_their_subflows() -> None:
    """Two subflows of a token, one of another: sums, the kernel's counts, and what went twice."""
    ids, sizes = [1, 1, 2, 2, 3, 3], [0, 700, 0, 400, 0, 50]
    whole = snapshots(
        [0, 10 * MS, 2 * MS, 8 * MS, 3 * MS, 4 * MS], conn_id=ids, location=[1] * 6, state=[1] * 6,
        snd_max=sizes, snd_una=[0, 700, 0, 300, 0, 50], lport=[10, 10, 20, 20, 30, 30],
        mptcp_token=[0, 77, 77, 77, 88, 88], protocols=[0, 1, 1, 1, 1, 5], uid=[0, 5, 5, 5, 6, 6],
        mptcp_sent=[0, 0, 0, 1000, 50, 50], mptcp_received=[0] * 6,
        mptcp_retrans=[0, 60, 0, 0, 0, 0],
    )  # fmt: skip
    order = np.argsort(whole.times_ns, kind="stable")
    table = table_of(whole.take(order))
    assert table["protocols"].tolist() == ["mptcp", "mptcp", "mptcp tcp-md5"]
    found = wholes(table)
    assert found["token"].tolist() == [77, 88] and found["subflows"].tolist() == [2, 1]
    assert found["conn_ids"].tolist() == ["1 2", "3"]
    assert found["carried_sent"].tolist() == [1100, 50] and found["acked"].tolist() == [1000, 50]
    assert found["bytes_sent"].tolist() == [1000, 50] and found["reinjected"].tolist() == [100, 0]
    assert found["timer_retrans"].tolist() == [60, 0] and found["bytes_received"].tolist() == [0, 0]
    (_, first), (_, second) = tell_wholes(table)
    assert "64 % went by" in first[1] and "36 % went by" in first[2], first
    assert "100 B was never acknowledged there" in first[2] and "100 B (9.1 %) went on" in first[3]
    assert len(second) == 2
    sums = {row["uid"]: row["connections"] for row in by_owner(table, "uid")}
    assert sums == {5: 2, 6: 1}
    bare = table_of(snapshots([0, 1], location=[1, 1], state=[1, 1]))
    assert len(wholes(bare)["token"]) == 0
    with pytest.raises(UsageError):
        by_owner(bare, "uid")
