# SPDX-License-Identifier: Apache-2.0
"""pmgraph's pictures: matplotlib's figure counted, and the pixels and markup of what it wrote."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.commands.pmgraph import command
from tcpkmon.formats.drawing import fit_numbers, new_figure, styled
from tcpkmon.formats.pmgraph import figure as figures
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import Page, build_pages
from tests.unit.psc_files import REPORT_COLUMNS, RETRANSMIT, Builder, mapped, merge, sawtooth

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def one(tmp_path: Path) -> Path:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1)
    for row in builder.rows:
        row["seq_no"] += 37 if row["at"] > 5 else 0
    builder.seq += 37
    builder.end(9)
    return builder.write(tmp_path / "one.pm")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1)
    sawtooth(builder, 1056, 5051, 2, start_s=0.7, laddr=mapped("fd00::1"), raddr=mapped("fd00::2"))
    sawtooth(builder, 1055, 5050, 3, start_s=9.0)  # the ports came back
    merge(builder)
    builder.seq = len(builder.rows)
    builder.end(20)
    return builder.write(tmp_path / "three.pm")


def pages_of(path: Path, *columns: str, **more: Any) -> tuple[list[Page], list[str]]:
    with tcpkmon.open(path) as capture:
        return build_pages(capture, Selection(columns, **more), figures.BINS)


def curves(axes: Any) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_gid() == "curve"]


def draw(path: Path, *args: object) -> int:
    return cli.run(command, [str(path), *map(str, args)], prog="pmgraph")


def test_one_graph_per_connection(three: Path) -> None:
    pages, notes = pages_of(three, "snd_cwnd", "sb_hiwat")
    assert notes == []
    assert [page.title for page in pages] == [
        "10.0.0.1:1055 \u2192 10.0.0.2:5050 #1",
        "[fd00::1]:1056 \u2192 [fd00::2]:5051",
        "10.0.0.1:1055 \u2192 10.0.0.2:5050 #2",
    ]
    figure = figures.draw(pages)
    assert len(figure.axes) == 3
    for axes in figure.axes:
        assert [line.get_label() for line in curves(axes)] == ["snd_cwnd", "sb_hiwat"]
        assert all(line.get_drawstyle() == "steps-post" for line in curves(axes))
        assert axes.get_ylabel() == "size (kB)"
        assert "(s)" in axes.get_xlabel()


def test_chosen_connections_and_values(three: Path) -> None:
    pages, _ = pages_of(three, "snd_cwnd", connections=((1056, 5051),))
    (page,) = pages
    (line,) = page.panels[0].lines
    with tcpkmon.open(three) as capture:
        mine = capture.column("conn_id") == 2
        expected = capture.column("snd_cwnd")[mine] / 1000
        times = (capture.time_ns()[mine] - capture.time_ns(0, 1)[0]) / 1e9
    np.testing.assert_allclose(line.values, expected)
    np.testing.assert_allclose(line.times, times)


def test_declared_missing_values_are_left_out(tmp_path: Path) -> None:
    builder = Builder(tcpkmon=True)
    for at, rtt in ((1, 2**32 - 1), (2, 20000), (3, 2**32 - 1), (4, 30000)):
        builder.add(at, conn_id=1, min_rtt_us=rtt)
    pages, _ = pages_of(builder.write(tmp_path / "a.pm"), "min_rtt_us")
    np.testing.assert_allclose(pages[0].panels[0].lines[0].values, [20, 30])


def test_events_and_losses_are_marked(one: Path, tmp_path: Path) -> None:
    pages, _ = pages_of(one, "snd_cwnd")
    kinds = {"RETRANSMIT", "RTO", "LOSS_PROBE", "CONG_STATE", "STATE_CHANGE"}
    assert {name for _, name, _ in pages[0].events} == kinds
    assert pages[0].spans.missing == 37
    axes = figures.draw(pages).axes[0]
    marked = [line for line in axes.get_lines() if str(line.get_gid()).startswith("event")]
    assert {line.get_gid() for line in marked} == {f"event {name}" for name in kinds}
    assert len({line.get_marker() for line in marked}) == len(kinds)
    shaded = [patch for patch in axes.patches if patch.get_gid() == "loss"]
    assert len(shaded) == 1
    assert 4.9 < shaded[0].get_x() < 5.1
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"37 records lost", "retransmit", "RTO", "loss probe", "congestion state"} < set(legend)


def test_svg_and_pdf(three: Path, tmp_path: Path) -> None:
    svg, pdf = tmp_path / "x.svg", tmp_path / "x.pdf"
    assert draw(three, "-c", "-o", svg) == 0
    groups = [node.get("id") for node in ElementTree.parse(svg).iter()]
    assert sum(name is not None and name.startswith("curve") for name in groups) == 3
    assert draw(three, "-c", "-o", pdf) == 0
    data = pdf.read_bytes()
    assert data.startswith(b"%PDF") and b"/Count 3" in data
    first = svg.read_bytes()
    assert draw(three, "-c", "-o", svg) == 1  # it is there
    assert svg.read_bytes() == first
    assert draw(three, "-c", "-o", svg, "--force") == 0  # and draws the same again
    assert svg.read_bytes() == first


def test_size(three: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.png"
    assert draw(three, "-c", "--size", "1600x900", "-o", target) == 0
    assert struct.unpack(">2I", target.read_bytes()[16:24]) == (1600, 900)
    for words in (("--size", "1600x900"), ("--size", "10x10", "-o", target), ("--size", "big")):
        assert draw(three, "-c", *words) == 2


def test_zoom(tmp_path: Path) -> None:
    """Only what is in that time is drawn; a curve is there from begin to end."""
    builder = Builder(tcpkmon=True)
    for step in range(100):
        builder.add(step / 10, conn_id=1, snd_cwnd=1000 * (1 + step % 2))
        builder.add(step / 100, lport=1056, conn_id=2, snd_cwnd=7)
    builder.add(3.25, conn_id=1, snd_cwnd=5000, location=RETRANSMIT)
    builder.add(9.0, conn_id=1, snd_cwnd=9000, location=RETRANSMIT)
    merge(builder)
    builder.end(11)
    path = builder.write(tmp_path / "a.pm")
    [page], _ = pages_of(path, "snd_cwnd", zoom=(3.205, 3.42))
    assert page.limits == (3.205, 3.42)
    [line] = page.panels[0].lines
    values = line.values / line.values.max() * 5000  # in the panel's unit
    assert dict(zip(line.times.round(3).tolist(), values.round().tolist(), strict=True)) == {
        3.205: 1000, 3.25: 5000, 3.3: 2000, 3.4: 1000, 3.42: 1000,
    }  # fmt: skip
    [(_, name, times)] = page.events
    assert (name, times.tolist()) == ("RETRANSMIT", pytest.approx([3.25]))
    [page], _ = pages_of(path, "snd_cwnd", zoom=(3.31, 3.32))  # between two records
    [line] = page.panels[0].lines
    assert line.times.tolist() == [3.31, 3.32] and len(set(line.values.tolist())) == 1
    with pytest.raises(FileError, match="no records of these connections from 20 s to 30 s"):
        pages_of(path, "snd_cwnd", zoom=(20, 30))
    target = tmp_path / "x.png"
    assert draw(path, "-c", "--zoom", "3.2s..3.4s", "-o", target) == 0
    for words in (("--zoom", "3..2"), ("--zoom", "x"), ("--zoom", "1..2", "-T")):
        assert draw(path, "-c", *words) == 2


def test_hostile_names_in_svg(tmp_path: Path) -> None:
    name = b'<script>$\\x&"--'
    builder = Builder(tcpkmon=True)
    builder.columns = (*builder.columns, (name, 144, 4, 0))
    for step in range(5):
        builder.add(step, conn_id=1, ca_name=b"<b>\x1b[31m\xff--", **{name.decode(): step})
    path = builder.write(tmp_path / "a.pm")
    target = tmp_path / "x.svg"
    assert draw(path, "--show", name.decode(), "-o", target) == 0
    text = target.read_text()
    assert "<script" not in text and "<b>" not in text and "\x1b" not in text
    ElementTree.fromstring(text)
    assert draw(path, "-P", "--show", name.decode(), "-o", tmp_path / "x.png") == 0


def test_most_twelve_connections(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    builder = Builder(tcpkmon=True)
    for number in range(20):
        for step in range(3 + number):
            builder.add(step, 2000 + number, 80, conn_id=number + 1, snd_cwnd=1000 + step)
    builder.add(5, 80, 0, conn_id=99)  # a listener
    builder.end(30)
    path = builder.write(tmp_path / "a.pm")
    pages, notes = pages_of(path, "snd_cwnd", by_parameter=True)
    labels = [line.label for line in pages[0].panels[0].lines]
    assert labels == [f"{2000 + number}.80" for number in range(8, 20)]
    assert notes[0].startswith("8 of 20 connections left out")
    assert draw(path, "-Pc", "-o", tmp_path / "x.png") == 0
    assert "8 of 20 connections left out" in capfd.readouterr().err
    chosen = tuple((2000 + number, 80) for number in range(20))
    assert len(pages_of(path, "snd_cwnd", connections=chosen)[0]) == 20


def test_records_of_unknown_sockets_join_no_connection(tmp_path: Path) -> None:
    builder = Builder(tcpkmon=True)
    builder.add(0, 1055, 5050, conn_id=0, snd_cwnd=7)
    for step in range(4):
        builder.add(step, 1055, 5050, conn_id=6, snd_cwnd=9000)
    builder.add(5, 1056, 5050, conn_id=0, snd_cwnd=8)
    pages, _ = pages_of(builder.write(tmp_path / "a.pm"), "snd_cwnd")
    assert [(page.title, len(page.panels[0].lines[0].times)) for page in pages] == [
        ("1055.5050", 4), ("1056.5050", 1),
    ]  # fmt: skip


def test_port_chosen_later_is_the_same_connection(tmp_path: Path) -> None:
    builder = Builder(tcpkmon=True)
    builder.add(0, 0, 5050, conn_id=4, snd_cwnd=1000)
    builder.add(1, 1055, 5050, conn_id=4, snd_cwnd=2000)
    path = builder.write(tmp_path / "a.pm")
    for chosen in ((), ((1055, 5050),)):
        pages, _ = pages_of(path, "snd_cwnd", connections=chosen)
        assert [page.title for page in pages] == ["1055.5050"]
        assert pages[0].panels[0].lines[0].values[-1] == 2.0


@pytest.mark.parametrize("kind", ["empty", "control", "no ports", "no time"])
def test_nothing_to_draw(tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str) -> None:
    builder = Builder(tcpkmon=kind == "control")
    if kind.startswith("no "):
        lacking = {"no ports": "rport", "no time": "time"}[kind]
        builder.columns = tuple(column for column in REPORT_COLUMNS if column[0] != lacking)
        builder.add(1)
    path = builder.write(tmp_path / "a.pm")
    with pytest.raises(FileError):
        pages_of(path)
    assert draw(path, "-o", tmp_path / "x.png") == 1
    assert "nothing to graph" in capfd.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_picture_goes_through_no_link(one: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep")
    target = tmp_path / "x.png"
    target.symlink_to(victim)
    assert draw(one, "-c", "-o", target, "--force") == 0
    assert victim.read_text() == "keep"
    assert not target.is_symlink()
    assert draw(one, "-c", "-o", tmp_path / "nowhere" / "x.png") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.pm", "victim", "x.png"]


@pytest.mark.parametrize("low, high", [
    (2.62665, 2.6289), (2.9382, 2.9388), (0, 8.5), (1e6, 1e6 + 0.001), (-8, 0),
])  # fmt: skip
def test_numbers_do_not_run_into_each_other(low: float, high: float) -> None:
    with styled():
        figure = new_figure()
        figure.set_size_inches(5.0, 2.7)
        axes = figure.subplots()
        axes.set_xlim(low, high)
        fit_numbers(axes, low, high, 50)
        figure.canvas.draw()
        labels = [one for one in axes.get_xticklabels() if one.get_text()]
        boxes = [one.get_window_extent() for one in labels]
        left, right = axes.bbox.x0 - 1, axes.bbox.x1 + 1
        inside = [box for box in boxes if left <= (box.x0 + box.x1) / 2 <= right]
        assert len(inside) >= 2
        for one, other in itertools.pairwise(inside):
            assert other.x0 > one.x1 + 3, [label.get_text() for label in labels]
