# SPDX-License-Identifier: Apache-2.0
"""The time-sequence graph: unwrapped edges, segments, losses, and files that xplot opens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.pmgraph import command
from tcpkmon.formats.pmgraph import terminal
from tcpkmon.formats.pmgraph.gaps import Spans
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.sequence import Reading
from tcpkmon.formats.pmgraph.sequence_pages import broken, build_sequence
from tcpkmon.formats.pmgraph.sequence_reading import open_source, read_drawn
from tcpkmon.formats.registry import open_files
from tests.kept.make import unpack
from tests.unit.psc_files import DRAWN_COLUMNS, REPORT_COLUMNS, RETRANSMIT, RTO, Builder

MSS = 1000
FIRST = 2**32 - 20 * MSS
NAMES = ("snd_una", "mss", "snd_wnd", "snd_cwnd_segs", "packets_out", "sacked_out", "lost_out",
         "retrans_out", "rcv_nxt", "rcv_wnd", "seg_seq", "seg_len", "ca_state")  # fmt: skip
MORE = tuple((name, 144 + 4 * place, 4, 0) for place, name in enumerate(NAMES))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """100 segments of which the 20th passes 2^32, in both directions; one is sent again at 0.5 s,
    after which 7 records are missing until 0.6 s."""
    builder = Builder(tcpkmon=True)
    builder.columns = (*REPORT_COLUMNS, *DRAWN_COLUMNS, *MORE)
    builder.rows[0].update(payload=b"")
    for step in range(101):
        una = (FIRST + step * MSS) % 2**32
        common = {
            "conn_id": 1, "family": 2, "state": 1, "srtt_us": 5000, "min_rtt_us": 4000,
            "snd_una": una, "snd_max": (una + 5 * MSS) % 2**32, "snd_fack": una, "mss": MSS,
            "snd_wnd": 50_000, "snd_cwnd_segs": 10, "packets_out": 5, "rcv_nxt": una,
            "rcv_wnd": 30_000, "seg_seq": una, "seg_len": 100,
        }  # fmt: skip
        if step == 50:
            builder.add(0.5, location=RTO, **common)
            builder.add(0.5, location=RETRANSMIT, **(common | {"seg_len": MSS}))
            builder.lose(7, 0.55)
        if not 50 <= step < 60:
            builder.add(step / 100, **common)
    builder.end(2)
    return builder.write(tmp_path / "wrap.pm")


def run(path: Path, *args: str) -> int:
    return cli.run(command, [str(path), *args], prog="pmgraph")


def test_numbers_are_unwrapped(path: Path) -> None:
    with open_files(path) as capture:
        [drawn], _ = read_drawn(open_source(capture), Selection(), 1000)
    curves = {name: curve.points()[1] for name, curve in drawn.found.curves.items()}
    for name, ahead in (("acked", 0), ("sent", 5), ("cwnd", 10), ("window", 50), ("rcv_nxt", 0),
                        ("rcv_window", 30)):  # fmt: skip
        assert curves[name].min() == ahead * MSS, name
        assert curves[name].max() == (100 + ahead) * MSS, name
        assert (np.diff(curves[name]) >= 0).all(), name
    assert [part.tolist() for part in drawn.found.bars["again"].all()] == [
        pytest.approx([0.5]), [50 * MSS], [51 * MSS]]  # fmt: skip
    times, begins, ends = drawn.found.bars["sent"].all()
    assert (begins[1:] == ends[:-1]).all() and ends[-1] == 105 * MSS and len(times) == 91


def test_no_line_joins_what_is_lost(path: Path) -> None:
    with open_files(path) as capture:
        [page], _ = build_sequence(open_source(capture), Selection(), 1000)
    assert page.spans.missing == 7
    lines = {line.label: line for panel in page.panels for line in panel.lines}
    assert np.nanmax(lines["smoothed RTT"].values) == 5, "ms"
    assert lines["in flight"].filled and not lines["congestion window"].filled, "it hides none"
    for panel in page.panels:
        for line in panel.lines:
            if line.steps and len(line.times) > 2:
                inside = (line.times >= page.spans.begin[0]) & (line.times < page.spans.end[0])
                assert np.isnan(line.values[inside][-1]), line.label


def test_around_an_event_and_the_terminal(path: Path) -> None:
    with open_files(path) as capture:
        [page], _ = build_sequence(open_source(capture), Selection(), 1000, "rto")
    assert page.limits == pytest.approx((0.4, 0.7))
    text = "\n".join(terminal.draw_text([page], 100, ascii_only=True))
    assert "sent again" in text and "records lost" in text


@pytest.mark.parametrize(
    ("name", "code"),
    [("psc-plain", 0), ("psc-rotated", 0), ("klogger-plain", 0), ("klogger-rotated", 0),
     ("klogger-lossy", 3), ("magnet-plain", 2), ("events-plain", 2)],
)  # fmt: skip
def test_any_capture(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    unpack(name, tmp_path)
    [capture] = tmp_path.iterdir()
    out = tmp_path / "x.xpl"
    assert run(capture, "--xplot", str(out)) == code
    if code == 2:
        assert "lacks what --sequence needs: conn_id" in capfd.readouterr().err
        assert not out.exists()
        return
    lines = out.read_text().splitlines()
    assert lines[-1] == "go" and sum(line.startswith("uarrow") for line in lines) > 2


def test_losses_of_a_log_are_bands(tmp_path: Path) -> None:
    """Where one CPU's records are missing nothing is joined, though the other's are there."""
    unpack("klogger-lossy", tmp_path)
    [path] = tmp_path.iterdir()
    with open_files(path) as capture:
        source = open_source(capture)
        [drawn], _ = read_drawn(source, Selection(zoom=(0.0, 3600.0)), 100_000)
        assert drawn.spans.missing == source.placed > 300
    assert len(drawn.spans.begin) and (drawn.spans.end > drawn.spans.begin).all()
    begin, end = drawn.spans.begin[0], drawn.spans.end[0]
    times = np.array([begin - 1, begin, (begin + end) / 2, end, end + 1])
    spans = Spans(drawn.spans.begin[:1], drawn.spans.end[:1], 1)
    at, values = broken(times, np.arange(5), spans)
    assert at.tolist() == [begin - 1, begin, begin, end, end + 1]
    assert np.isnan(values).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("has_transmit", [True, False])
def test_with_transmit_each_segment_is_a_bar(has_transmit: bool) -> None:
    """The second one is sent again; without the location bars are what a record has more."""
    told = {"RETRANSMIT": "", **({"TRANSMIT": ""} if has_transmit else {})}
    source = SimpleNamespace(location_codes=lambda: {"RETRANSMIT": 2, "TRANSMIT": 19},
                             locations=lambda: told)  # fmt: skip
    reading = Reading(cast(Source, source), (0.0, 1.0), 100, None)
    columns = {
        "location": [19, 19, 19, 2, 19], "callvalue": [0] * 5, "state": [1] * 5,
        "snd_una": [FIRST] * 5, "mss": [MSS] * 5, "seg_len": [MSS] * 5,
        "snd_max": [FIRST, FIRST + 1000, FIRST + 2000, FIRST + 2000, FIRST + 2000],
        "seg_seq": [FIRST, FIRST + 1000, FIRST + 1000, FIRST + 1000, FIRST + 2000],
    }  # fmt: skip
    reading.add({name: np.array(one) for name, one in columns.items()}, np.arange(5) / 10)
    bars = {name: [part.tolist() for part in one.all()] for name, one in
            reading.finish().bars.items()}  # fmt: skip
    assert bars["again"] == [[0.3], [1000], [2000]]
    if has_transmit:
        assert bars["sent"] == [[0.0, 0.1, 0.4], [0, 1000, 2000], [1000, 2000, 3000]]
    else:
        assert bars["sent"] == [[0.1, 0.2], [0, 1000], [1000, 2000]]


def test_a_picture(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    assert run(path, "--sequence", "-o", str(out)) == 0
    assert out.stat().st_size > 5000


@pytest.mark.parametrize(
    "args", [("--sequence", "-T"), ("--sequence", "-c"), ("--around", "rto"),
             ("--sequence", "--around", "nothing"), ("--sequence", "-x")]
)  # fmt: skip
def test_wrong_usage(path: Path, args: tuple[str, ...]) -> None:
    assert run(path, *args) == 2


def test_a_file_for_xplot(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.xpl"
    assert run(path, "--xplot", str(out)) == 0
    lines = out.read_text().splitlines()
    assert lines[:2] == ["timeval unsigned", "title"] and lines[-1] == "go"
    assert lines[lines.index("R") - 1] == "atext 0.500000 51000"
