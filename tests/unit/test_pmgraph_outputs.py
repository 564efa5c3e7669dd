# SPDX-License-Identifier: Apache-2.0
"""pmgraph's other outputs: xgraph files and the plot in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.pmgraph import command
from tcpkmon.formats.pmgraph import terminal
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import build_pages
from tests.unit.psc_files import Builder, merge, sawtooth

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1, rounds=100)
    sawtooth(builder, 1056, 5051, 2, rounds=100, start_s=0.7)
    sawtooth(builder, 1055, 5050, 3, rounds=50, start_s=9.0)
    merge(builder)
    builder.seq = len(builder.rows)
    builder.end(20)
    return builder.write(tmp_path / "na.pm")


def draw(path: Path, *args: str) -> int:
    return cli.run(command, [str(path), *args], prog="pmgraph")


def read_xgraph(path: Path) -> tuple[dict[str, str], dict[str, list[tuple[float, float]]]]:
    """The settings and the sets of points of an xgraph file, by xgraph's own rules."""
    settings: dict[str, str] = {}
    sets: dict[str, list[tuple[float, float]]] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line.startswith('"'):
            name = line[1:]
            sets[name] = []
        elif ":" in line and not name:
            key, _, value = line.partition(": ")
            settings[key] = value
        elif line:
            left, right = line.split(" ")
            sets[name].append((float(left), float(right)))
    return settings, sets


def test_xgraph_per_connection(
    path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    assert draw(path, "-x", "-cs", "-S", "1000l") == 0
    names = ["na.1055.5050.xg", "na.1056.5051.xg", "na.1055.5050.2.xg"]
    assert capfd.readouterr().out.split() == names
    settings, sets = read_xgraph(path.parent / names[1])
    assert settings["TitleText"] == "1056.5051"
    assert settings["XUnitText"] == "seconds"
    assert list(sets) == ["snd_cwnd", "snd_max", "location \u00d7 1000"]
    with tcpkmon.open(path) as capture:
        mine = capture.column("conn_id") == 2
        cwnd = capture.column("snd_cwnd")[mine].tolist()
        location = capture.column("location")[mine].tolist()
        times = (capture.time_ns()[mine] - capture.time_ns(0, 1)[0]) / 1e9
    assert [value for _, value in sets["snd_cwnd"]] == cwnd
    assert [time for time, _ in sets["snd_cwnd"]] == pytest.approx(times.tolist())
    assert [value for _, value in sets["location \u00d7 1000"]] == [1000 * x for x in location]
    assert sets["snd_max"][0][1] == 0


def test_xgraph_overwrites_only_when_forced(
    path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    there = path.parent / "na.1056.5051.xg"
    there.write_text("mine")
    assert draw(path, "-xc") == 1
    assert "--force" in capfd.readouterr().err
    assert there.read_text() == "mine"
    assert not (path.parent / "na.1055.5050.xg").exists()
    assert draw(path, "-xc", "--force") == 0
    assert there.read_text().startswith("TitleText")


def lines_of(
    path: Path, width: int, *columns: str, by_parameter: bool = False, **more: bool
) -> list[str]:
    selection = Selection(columns or ("snd_cwnd", "snd_max"), by_parameter=by_parameter)
    with tcpkmon.open(path) as capture:
        pages, _ = build_pages(capture, selection, terminal.BINS)
    return list(terminal.draw_text(pages, width, **more))


def dots(text: str) -> int:
    return sum(0x2800 < ord(letter) <= 0x28FF for letter in text)


def cells(lines: list[str]) -> list[str]:
    """What is right of the vertical axis."""
    return [line[9:] for line in lines if line[8:9] in ("\u2502", "\u2524")]


@pytest.mark.parametrize("width", [40, 80, 133])
def test_terminal_plot(path: Path, width: int) -> None:
    lines = lines_of(path, width)
    assert max(map(len, lines)) == width
    text = "\n".join(lines)
    assert text.count("snd_cwnd (kB)") == 3
    assert text.count("relative sequence") == 3
    assert text.count("time since the first record (s)") == 3
    assert lines[0].startswith("10.0.0.1:1055")
    assert dots(text) > 100
    assert "\u25bc retransmit" in text
    assert "\x1b" not in text


def test_terminal_plot_in_ascii(path: Path) -> None:
    text = "\n".join(lines_of(path, 80, by_parameter=True, ascii_only=True))
    assert text.isascii()
    assert min(text.count(sign) for sign in "*+=") > 10
    assert "r retransmit" in text


def test_terminal_plot_has_steps_events_and_losses(tmp_path: Path) -> None:
    builder = Builder(tcpkmon=True)
    builder.add(0.0, conn_id=1, snd_cwnd=0)
    builder.add(2.0, conn_id=1, snd_cwnd=9000)
    builder.add(4.0, conn_id=1, location=14, snd_cwnd=9000)
    builder.add(6.0, conn_id=1, snd_cwnd=9000)
    builder.lose(7, 6.9)
    builder.add(7.0, conn_id=1, snd_cwnd=9000)
    builder.add(8.0, conn_id=1, location=2, snd_cwnd=4000)
    builder.end(8.5)
    lines = lines_of(builder.write(tmp_path / "a.pm"), 90, "snd_cwnd")
    rows = [f"{row:80}" for row in cells(lines)]
    assert len(rows) == 16
    # Up at a quarter, along the top, down at the end: no slopes.
    assert [bool(row[20].strip()) for row in rows] == [True] * 16
    assert [bool(row[15].strip()) for row in rows] == [False] * 15 + [True]
    assert [bool(row[30].strip()) for row in rows] == [True] + [False] * 15
    assert rows[0][40] == "\u2716"
    assert "\u25bc" in rows[8] and "\u25bc" not in rows[0]
    shaded = [place for place in range(80) if rows[12][place] == "\u2591"]
    assert shaded == list(range(60, 70))
    assert {"\u2716 RTO", "\u25bc retransmit", "\u2591 7 records lost"} <= set(
        lines[-1].split("  ")
    )
    labels = [line[:8].strip() for line in lines if line[8:9] == "\u2524"]
    assert labels == ["9", "6", "3", "0"]


def test_frequent_events_stand_above_the_curve_in_the_terminal(tmp_path: Path) -> None:
    builder = Builder(tcpkmon=True)
    for step in range(40):
        builder.add(step, conn_id=1, location=2, snd_cwnd=5000)
    top, *rows = cells(lines_of(builder.write(tmp_path / "a.pm"), 60, "snd_cwnd"))
    assert top.count("\u25bc") == 40
    assert "\u25bc" not in "".join(rows)
    assert dots(rows[0]) == 51


@pytest.mark.parametrize("values", [[5], [5, 5], [2**32 - 1] * 3, [0, 0]])
def test_terminal_plot_of_next_to_nothing(tmp_path: Path, values: list[int]) -> None:
    builder = Builder(tcpkmon=True)
    for value in values:
        builder.add(1, conn_id=1, min_rtt_us=value)
    path = builder.write(tmp_path / "a.pm")
    lines = lines_of(path, 60, "min_rtt_us")
    assert len(cells(lines)) == 16
    assert (dots("".join(cells(lines))) > 0) == (values[0] < 2**32 - 1)
