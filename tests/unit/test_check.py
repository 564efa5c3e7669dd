# SPDX-License-Identifier: Apache-2.0
"""tcpkmon check: the language against plain numpy, its mistakes, its outputs, its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tcpkmon
from tcpkmon.formats.analysis.check import Capture, check, measure
from tcpkmon.formats.analysis.why import connections, intervals
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.expressions import (
    ExpressionError,
    Mistake,
    parse_assertion,
)
from tcpkmon.formats.commands.check import command
from tests.unit.psc_files import write_capture


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("check") / "run.pm", 2000, 4)


@pytest.fixture(scope="module")
def capture(path: Path) -> Capture:
    return Capture(path)


def formats_lost(path: str) -> int:
    with tcpkmon.open(path) as reader:
        return reader.lost


def records(path: Path, name: str) -> np.ndarray:
    with tcpkmon.open(path) as reader:
        rows = reader.columns([name, "conn_id"], 0, 10**9)
    return rows[name][rows["conn_id"] > 0].astype(np.float64)


@pytest.mark.parametrize("name", ["srtt_us", "snd_wnd", "snd_cwnd_segs"])
def test_summaries_are_numpys(capture: Capture, path: Path, name: str) -> None:
    values = records(path, name)
    for how, right in {
        "min": values.min(), "max": values.max(), "mean": values.mean(), "sum": values.sum(),
        "p50": np.percentile(values, 50), "p99": np.percentile(values, 99),
    }.items():  # fmt: skip
        text = f"{how}({name}) >= {right - 1e-4:.9f} and {how}({name}) <= {right + 1e-4:.9f}"
        other = f"{how}({name}) > {right + 1e-4:.9f} where time_ns >= 0"
        # conn_id and srtt_us alone could be of connections: time_ns is of records.
        one, two = check(capture, [f"{text} where time_ns >= 0", other])
        assert one.ok and not two.ok, (one, two)
        assert one.rows == len(values)


def test_each_connection_must_hold(capture: Capture, path: Path) -> None:
    table = connections(path)
    bound = float(np.sort(table["lport"])[1])
    (found,) = check(capture, [f"lport <= {bound:.0f}"])
    broken = np.flatnonzero(table["lport"] > bound)
    assert not found.ok and found.failed == len(broken) and found.rows == 4
    first = table["conn_id"][broken[np.argmax(table["lport"][broken])]]
    assert found.worst[0].startswith(f"connection {first},")
    (chosen,) = check(capture, [f"lport <= {bound:.0f} where lport <= {bound:.0f}"])
    assert chosen.ok and chosen.rows == 4 - len(broken)


def test_units_and_names_of_tcp_info(capture: Capture, path: Path) -> None:
    most = records(path, "srtt_us").max()
    texts = [f"rtt <= {most:.0f}us", f"rtt < {most:.0f}", f"max(rtt) == {most / 1000:.3f}ms",
             "p50(rtt) / max(rtt) <= 100%", "unacked == packets_out"]  # fmt: skip
    assert [one.ok for one in check(capture, texts)] == [True, False, True, True, True]


def test_shares_of_limits_add_up(capture: Capture) -> None:
    texts = ['limit_share("rwnd") >= limit_share("zero_window")',
             'all(limit_share("app") + limit_share("rwnd") <= 1.000001)',
             'max(limit_share("rwnd")) < 0']  # fmt: skip
    assert [one.ok for one in check(capture, texts)] == [True, True, False]


def test_intervals_are_those_of_the_table(capture: Capture, path: Path) -> None:
    table, ends = intervals(path), connections(path)
    lasted = (table["end_ns"] - table["start_ns"]) / 1e3
    cwnd = table["limit"] == "cwnd"
    assert cwnd.any() and not cwnd.all()
    port = int(ends["lport"][0])
    mine = table["conn_id"] == ends["conn_id"][0]
    longest, summed = lasted[cwnd].max(), lasted[cwnd & mine].sum()
    texts = {
        f'interval.duration_us <= {longest}us where interval.limit == "cwnd"': True,
        f'interval.duration_us < {longest} where interval.limit == "cwnd"': False,
        f'sum(interval.duration_us) == {summed} where interval.limit == "cwnd" and lport == {port}':
            True,
        f"count() == {len(lasted)} where interval.family != main_limit or bytes_sent >= 0": True,
        f"count() == {int(table['certain'].sum())} where interval.certain": True,
        "interval.lost_records == 0 and not any(interval.cwnd_end < 1)": True,
    }  # fmt: skip
    found = check(capture, [*texts])
    assert [one.ok for one in found] == [*texts.values()], found
    assert found[0].what == "interval" and found[0].rows == cwnd.sum()
    assert ", cwnd for " in found[1].worst[0]


def test_mistakes_about_intervals(capture: Capture) -> None:
    places = {
        'interval.limt == "cwnd"': 0, 'interval.limit == "rto"': 18, "interval.mss > rtt": 15,
        'interval.mss > 1 and limit_share("rwnd") < 1': 21, 'main_limit != "x"': 14,
        "interval. mss > 1": 8, "interval.a.b > 1": 10,
    }  # fmt: skip
    for text, at in places.items():
        with pytest.raises(ExpressionError) as caught:
            check(capture, [text])
        assert [mistake.at for _, mistake in caught.value.mistakes] == [at], text


def test_measured_values_are_numbers(capture: Capture, path: Path) -> None:
    table = connections(path)
    texts = ["sum(bytes_sent)", "max(rtt) / 2", "count()", "lost()", "max(pid)",
             "p50(interval.mss) where interval.mss < 0"]  # fmt: skip
    assert measure(capture, texts) == [
        table["bytes_sent"].sum(), records(path, "srtt_us").max() / 2, 4, capture.lost, None, None,
    ]  # fmt: skip
    with pytest.raises(ExpressionError) as caught:
        measure(capture, ["mss", "no_loss", "max(mss)"])
    assert [text for text, _ in caught.value.mistakes] == ["mss", "no_loss"]


def test_the_examples_of_the_page(capture: Capture) -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    shown = re.findall(r"^    (.*)$", page, re.MULTILINE)
    texts = [text for line in shown for text in re.findall(r"'([^']+)'", line)]
    assert len(texts) > 8 and any("interval." in text for text in texts)
    check(capture, texts)


@pytest.mark.parametrize(
    "text",
    ["bytes_sent >= 0 where lport == 1",
     "all(mss > 0) where lport == 1", "rtt > 0 where lport == 1",
     "max(rtt) >= 0 where lport == 1", "sum(rcv_ooopack) == 0", "pid != 1", "not (pid == 1)"],
)  # fmt: skip
def test_no_data_is_a_failure(capture: Capture, text: str) -> None:
    (found,) = check(capture, [text])
    assert not found.ok


def test_all_mistakes_at_once(capture: Capture) -> None:
    with pytest.raises(ExpressionError) as caught:
        check(capture, ["mss > 0", "mss > ", 'mzz > 1 and limit_share("rw") < 1', "mss",
                        "rtt > max",
                        "retrans_ratio < 1ms", 'laddr < "a"', "max(3) < 2", "nope(1) < 2",
                        "1 < 2", "no_loss where 1 < 2", "lost(1) == 0"])  # fmt: skip
    told = [(text, mistake.at) for text, mistake in caught.value.mistakes]
    assert ("mzz > 1 and limit_share(\"rw\") < 1", 0) in told
    assert ("mzz > 1 and limit_share(\"rw\") < 1", 24) in told
    assert {text for text, _ in told} == {
        "mss > ", 'mzz > 1 and limit_share("rw") < 1', "mss", "rtt > max", "retrans_ratio < 1ms",
        'laddr < "a"', "max(3) < 2", "nope(1) < 2", "1 < 2", "no_loss where 1 < 2", "lost(1) == 0",
    }  # fmt: skip
    assert caught.value.lines()[2].strip() == "^"


def test_exit_codes_and_outputs(path: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    good = runner.invoke(command, [str(path), "count() == 4"], standalone_mode=False)
    report = tmp_path / "check.xml"
    bad = runner.invoke(
        command, [str(path), "count() == 5", "count() == 4", "--junit", str(report), "--github"],
        standalone_mode=False,
    )  # fmt: skip
    assert "FAILED count() == 5: is 4" in bad.output and bad.return_value == 6
    assert f"::error title=tcpkmon check::{path}: count() == 5: is 4" in bad.output
    suite = ElementTree.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert suite[0][0].get("message") == "is 4" and not len(suite[1])
    listed = runner.invoke(command, [str(path), "count() == 4", "--json"], standalone_mode=False)
    told = json.loads(listed.output[listed.output.index("{") :])
    assert told["files"][0]["assertions"][0]["ok"] and told["exit_code"] == listed.return_value
    assert good.return_value == (0 if told["files"][0]["proven"] else 5)


def test_the_report_goes_through_no_link(path: Path, tmp_path: Path) -> None:
    """Nor a pipe or a device: a user may put them there for root."""
    kept, link = tmp_path / "kept", tmp_path / "check.xml"
    kept.write_text("kept")
    link.symlink_to(kept)
    assert run(command, [str(path), "count() == 4", "--junit", str(link)], prog="check") in (0, 5)
    assert kept.read_text() == "kept" and not link.is_symlink()
    assert ElementTree.parse(link).getroot().tag == "testsuites"


def test_a_loss_is_not_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_capture(tmp_path / "lossy.pm", 500, 2, {100}))
    assert run(command, [path, "count() == 2"], prog="check") == 5
    said = capsys.readouterr().err
    assert "not proven" in said and said.endswith("; --unproven-ok takes it all the same\n")
    assert run(command, [path, "count() == 2", "--unproven-ok"], prog="check") == 0
    assert "all the same" not in capsys.readouterr().err
    assert run(command, [path, "no_loss", "--unproven-ok"], prog="check") == 6
    lost = f"lost() == {formats_lost(path)}"
    assert run(command, [path, lost, "--unproven-ok"], prog="check") == 0
    assert run(command, ["no_loss"], prog="check") == 2
    capsys.readouterr()
    assert run(command, ["out/*/a.pm", path, "no_loss", "b.klog"], prog="check") == 1
    said = capsys.readouterr()
    assert not said.out and "no such file: out/*/a.pm, b.klog" in said.err


@given(st.text("maxmss()<>=!+-*/,\"%1e.5 where", max_size=40))
def test_the_parser_refuses_with_a_place(text: str) -> None:
    try:
        parse_assertion(text)
    except Mistake as mistake:
        assert 0 <= mistake.at <= len(text)
