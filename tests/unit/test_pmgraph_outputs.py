# SPDX-License-Identifier: Apache-2.0
"""pmgraph's other outputs: xgraph files and the plot in the terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from pmgraph_capture import Builder, merge, sawtooth

import formats
from formats import cli
from formats.commands.pmgraph import command
from formats.pmgraph import terminal
from formats.pmgraph.options import Selection
from formats.pmgraph.pages import build_pages

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
    with formats.open(path) as capture:
        mine = capture.column("conn_id") == 2
        cwnd = capture.column("snd_cwnd")[mine].tolist()
        location = capture.column("location")[mine].tolist()
        times = (capture.time_ns()[mine] - capture.time_ns(0, 1)[0]) / 1e9
    assert [value for _, value in sets["snd_cwnd"]] == cwnd
    assert [time for time, _ in sets["snd_cwnd"]] == pytest.approx(times.tolist())
    assert [value for _, value in sets["location \u00d7 1000"]] == [1000 * x for x in location]
    assert sets["snd_max"][0][1] == 0


def test_xgraph_per_parameter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    assert draw(path, "-xPcH", "-p", "1055.5050") == 0
    settings, sets = read_xgraph(path.parent / "na.snd_cwnd.xg")
    assert settings["YUnitText"] == "bytes"
    assert len(sets) == 1  # both have the same name; xgraph draws each set by itself
    assert (path.parent / "na.snd_cwnd.xg").read_text().count('"1055.5050') == 2
    assert (path.parent / "na.sb_hiwat.xg").exists()


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


def lines_of(path: Path, width: int, **more: bool) -> list[str]:
    with formats.open(path) as capture:
        pages, _ = build_pages(capture, Selection(("snd_cwnd", "snd_max")), terminal.BINS)
    return list(terminal.draw_text(pages, width, **more))


@pytest.mark.parametrize("width", [40, 80, 133])
def test_terminal_plot(path: Path, width: int) -> None:
    lines = lines_of(path, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.count("snd_cwnd (kB)") == 3
    assert text.count("relative sequence") == 3
    assert sum(0x2800 < ord(letter) <= 0x28FF for letter in text) > 100
    assert "retransmit" in text
    assert "\x1b" not in text


def test_terminal_plot_in_ascii(path: Path) -> None:
    text = "\n".join(lines_of(path, 80, ascii_only=True))
    assert text.isascii()
    assert text.count("*") > 100


def test_terminal_plot_in_colour(path: Path) -> None:
    lines = lines_of(path, 80, coloured=True)
    assert any("\x1b[34m" in line for line in lines)
    assert all(line.count("\x1b[3") == line.count("\x1b[0m") for line in lines)


def test_draws_on_a_terminal(path: Path) -> None:
    """Without a display and with a terminal on stdout, the plot goes there."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    main, side = pty.openpty()
    program = "from formats.commands.pmgraph import main; main()"
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path), "-c", "-p", "1056.5051"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=side, stderr=subprocess.PIPE,
            env={**keep, "PYTHONUTF8": "1", "NO_COLOR": "1", "COLUMNS": "70", "LINES": "24"},
        )  # fmt: skip
        os.close(side)
        data = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            data += part
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait() == 0, err
        process.stderr.close()
    finally:
        os.close(main)
    lines = data.decode().splitlines()
    assert err == b""
    assert "1056" in lines[0]
    assert max(map(len, lines)) <= 70
