# SPDX-License-Identifier: Apache-2.0
"""pmgraph --sequence and --xplot: numbers that wrap, edges, bands, other people's xplot."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.plan.columns import load_schema
from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.pmgraph import command
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.sequence import (
    ACKED,
    AGAIN,
    CWND,
    SENT,
    WINDOW,
    around,
    build_sequence,
    read_sequences,
)
from tcpkmon.formats.schema import format_schema
from tests.unit.segment_maker import Maker
from tests.unit.why_capture import write_capture

COUNT, FIRST = 40, 2**32 - 10_500
RETRANSMIT, AGAIN_AT = 2, 25


class Named(Maker):
    """With the schema in the file: it names the locations."""

    schema_text = format_schema(load_schema())


@pytest.fixture
def wraps(tmp_path: Path) -> Path:
    """A connection whose numbers wrap; one segment is sent again."""
    maker = Named(tmp_path / "a.pm", rotates=False)
    una = (FIRST + 1000 * np.arange(COUNT)) % 2**32
    location = np.ones(COUNT, np.int64)
    location[AGAIN_AT] = RETRANSMIT
    maker.columns = {
        "conn_id": 7, "snd_una": una, "snd_max": (una + 3000) % 2**32, "snd_cwnd": 4000,
        "snd_wnd": 9000, "location": location, "seg_seq": (una + 1000) % 2**32, "seg_len": 500,
        "srtt_us": 2000, "min_rtt_us": 1000, "snd_sb_cc": 3000, "sacked_out": np.arange(COUNT) % 3,
        "mss": 1000, "state": 1, "snd_cwnd_segs": 4,
    }  # fmt: skip
    maker.records(COUNT)
    maker.close()
    return tmp_path / "a.pm"


def draw(*words: object) -> int:
    return cli.run(command, [*map(str, words)], prog="pmgraph")


def test_numbers_go_on_where_they_wrap(wraps: Path) -> None:
    with tcpkmon.open(wraps) as capture:
        (one,), _, _ = read_sequences(capture, Selection(), 2000)
    acked = np.arange(COUNT) * 1000.0
    for name, ahead in ((ACKED, 0), (SENT, 3000), (CWND, 4000), (WINDOW, 9000)):
        assert one.points(name)[1].tolist() == (acked + ahead).tolist(), name
    times, first, behind = one.sent_again()
    assert (first.tolist(), behind.tolist()) == ([26_000], [26_500])
    assert times[0] == pytest.approx(one.points(ACKED)[0][AGAIN_AT])


def test_panels_say_what_they_draw(wraps: Path) -> None:
    with tcpkmon.open(wraps) as capture:
        (page,), _ = build_sequence(capture, Selection(), 2000)
        low, high = around(capture, Selection(), "retransmit")
    labels = [panel.label for panel in page.panels]
    assert labels == ["sequence number (kB)", "rate (GB/s)", "in flight (kB)",
                      "RTT (ms)", "buffers (kB)", "segments"]  # fmt: skip
    edges = {line.label: line for line in page.panels[0].lines}
    assert {*edges} == {SENT, ACKED, CWND, WINDOW, AGAIN} and not edges[AGAIN].steps
    flight = {line.label: line.values.tolist() for line in page.panels[2].lines}
    assert set(flight["in flight"]) == {3.0} and set(flight[CWND]) == {4.0}
    at = edges[AGAIN].times[0]
    assert low == max(0.0, at - 3 * 0.002) and high == pytest.approx(at + 9 * 0.002)


def test_bands_are_the_limits_of_why(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "run.pm", 4000, 2, lose={1000, 1001})
    with tcpkmon.open(path) as capture:
        pages, _ = build_sequence(capture, Selection(), 2000)
        start_ns = int(capture.column("time_ns", 0, 1)[0])
    rows = tcpkmon.intervals(path)
    assert len(pages) == 2 and all(page.spans.missing == 2 for page in pages)
    for page, conn_id in zip(pages, np.unique(rows["conn_id"]).tolist(), strict=True):
        mine = rows["conn_id"] == conn_id
        for band in page.bands[:: max(1, len(page.bands) // 20)]:
            middle_ns = start_ns + (band.begin + band.end) / 2 * 1e9
            inside = mine & (rows["start_ns"] <= middle_ns) & (middle_ns < rows["end_ns"])
            assert band.limit in rows["limit"][inside].tolist()


def test_it_is_drawn(wraps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.png", "a.svg", "a.pdf"):
        assert draw(wraps, "--sequence", "-o", tmp_path / name) == 0
    run = write_capture(tmp_path / "run.pm", 400, 1)
    assert draw(run, "--sequence", "-o", tmp_path / "run.svg") == 0
    text = (tmp_path / "run.svg").read_text()
    assert text.count('id="curve') >= 10 and 'id="limit' in text
    assert draw(wraps, "--sequence", "--around", "rto", "-o", tmp_path / "b.png") == 1
    assert "no RTO of these connections" in capsys.readouterr().err
    for words in (["-T"], ["--around", "x", "-o", "c.png"], ["--xplot", "x", "-T"]):
        assert draw(wraps, "--sequence", *words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_million_records_are_thinned(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "run.pm", 200_000, 1)
    with tcpkmon.open(path) as capture:
        (one,), _, _ = read_sequences(capture, Selection(), 500)
        assert len(one.points(ACKED)[0]) <= 4 * 500


@pytest.mark.skipif(not shutil.which("xplot.org"), reason="xplot-xplot.org is not installed")
@pytest.mark.skipif(not shutil.which("Xvfb"), reason="xvfb is not installed")
def test_xplot_opens_it(wraps: Path, tmp_path: Path) -> None:
    path, broken = tmp_path / "a.xpl", tmp_path / "b.xpl"
    assert draw(wraps, "--xplot", path) == 0
    text = path.read_text().splitlines()
    assert text[:2] == ["timeval unsigned", "title"] and text[-1] == "go"
    assert len([line for line in text if line == "R"]) == 1
    broken.write_text("\n".join(text[:-3] + ["line nowhere", "go"]))
    display = f":{os.getpid() % 10_000 + 100}"
    with subprocess.Popen(["Xvfb", display], stderr=subprocess.DEVNULL) as screen:
        try:
            time.sleep(1.0)
            environment = os.environ | {"DISPLAY": display}
            done = subprocess.run(["xplot.org", broken], env=environment, timeout=30,
                                  capture_output=True, check=False)  # fmt: skip
            assert done.returncode and b"format error" in done.stdout + done.stderr
            with subprocess.Popen(["xplot.org", path], env=environment) as xplot:
                time.sleep(1.5)
                assert xplot.poll() is None, "it has read the file, and shows it"
                xplot.kill()
        finally:
            screen.terminate()
