# SPDX-License-Identifier: Apache-2.0
"""Several captures in one picture: whose line is whose, and when; and where a folder begins."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.commands.pmgraph import command
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import Page, build_pages
from tcpkmon.formats.pmgraph.together import OWN, build_together, labels_of
from tests.unit.psc_files import EPOCH_S, Builder, sawtooth

EXISTING = 226
LATER_S = 40
GOOD = (0, 5)
"""These captures have no ledger that adds up."""


class At(Builder):
    """A capture of a host, which began so many seconds later."""

    later = 0
    host = ""

    def header(self) -> bytes:
        found = super().header()
        name = self.host.encode()
        record = struct.pack(">HH", 0x100, 4 + len(name)) + name
        return found[:-4] + record + found[-4:] if name else found

    def entry(self, row: dict[str, Any]) -> bytes:
        data = bytearray(super().entry(row))
        seconds, micros = struct.unpack_from("<II", data, 4)
        struct.pack_into("<II", data, 4, seconds + self.later, micros)
        return bytes(data)


def make(path: Path, host: str = "", later: int = 0, lose: int = 0, port: int = 1055) -> Path:
    builder = At(tcpkmon=True)
    builder.host, builder.later = host, later
    sawtooth(builder, port, 5050, 1)
    sawtooth(builder, port + 1, 5050, 2)
    if lose:
        builder.lose(lose, 20.0)
    builder.end(20.0)
    return builder.write(path)


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [
        make(tmp_path / "one.pm", "alpha", 0, lose=3),
        make(tmp_path / "two.pm", "beta", LATER_S),
    ]


def run(*words: object) -> int:
    return cli.run(command, [str(word) for word in words], prog="pmgraph")


def pages_of(paths: list[Path], by_clock: bool = False, **more: Any) -> tuple[list[Page], Any]:
    with tcpkmon.open(paths[0]) as one, tcpkmon.open(paths[1]) as other:
        selection = Selection(("snd_cwnd",), **more)
        return build_together([one, other], selection, 500, by_clock)  # type: ignore[list-item]


def test_each_from_its_own_begin(two: list[Path]) -> None:
    ((page,), notes) = pages_of(two, connections=((1055, 5050),))
    assert not notes and page.since == OWN
    lines = page.panels[0].lines
    assert [line.label for line in lines] == [
        f"{host}: 10.0.0.1:1055 \u2192 10.0.0.2:5050, reno" for host in ("alpha", "beta")
    ]
    assert np.array_equal(lines[0].times, lines[1].times)
    assert np.array_equal(lines[0].values, lines[1].values)
    assert {connection for connection, *_ in page.events} == {0, 1}
    assert page.spans.text == "alpha: 3 records lost"


def test_by_the_time_of_day(two: list[Path]) -> None:
    ((page,), _) = pages_of(list(reversed(two)), True, connections=((5050, 1055),))
    later, first = page.panels[0].lines
    assert np.allclose(later.times, first.times + LATER_S)
    assert page.limits[0] <= first.times[0] and page.limits[1] >= later.times[-1]
    second = np.datetime64(EPOCH_S, "s")
    assert page.since.startswith(str(second)) and page.since.endswith("Z")


def test_each_capture_gets_its_share(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        builder = Builder(tcpkmon=True)
        for port in range(20):
            for _ in range(port + 1):
                builder.add(1.0 + port, 2000 + port, 80, conn_id=port + 1, snd_cwnd=port)
        paths.append(builder.write(tmp_path / f"{name}.pm"))
    ((page,), notes) = pages_of(paths)
    labels = [line.label for line in page.panels[0].lines]
    assert len(labels) == 12 and sum(label.startswith("a: ") for label in labels) == 6
    assert "28 of 40 connections left out" in notes[0]


def test_what_is_in_one_of_them(two: list[Path], tmp_path: Path) -> None:
    two[1] = make(tmp_path / "third.pm", "beta", port=3000)
    ((page,), notes) = pages_of(two, connections=((1055, 5050), (7, 8)))
    assert [line.label.split(":")[0] for line in page.panels[0].lines] == ["alpha"]
    assert "no connection 7.8" in notes[0] and "1055" not in notes[0]
    with pytest.raises(UsageError, match=r"no connection 7\.8"):
        pages_of(two, connections=((7, 8),))


def test_labels(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    named = {
        ("alpha", "x/a.pm", "beta", "x/b.pm"): ["alpha", "beta"],
        ("alpha", "x/a.pm", "alpha", "x/b.pm"): ["a", "b"],
        ("", "x/a.pm", "beta", "x/b.pm"): ["a", "b"],
        ("alpha", "x/a.pm", "alpha", "y/a.pm"): [f"{tmp_path}/x/a.pm", f"{tmp_path}/y/a.pm"],
        ("alp\x1bha", "x/a.pm", "beta", "x/b.pm"): ["alp\\x1bha", "beta"],
    }
    for (host, path, other_host, other), labels in named.items():
        first = make(tmp_path / path, host)
        second = make(tmp_path / other, other_host)
        with tcpkmon.open(first) as one, tcpkmon.open(second) as another:
            assert labels_of([one, another]) == labels  # type: ignore[list-item]


def test_pictures_terminal_and_xgraph(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*two, "-c", "-p", "1055.5050", "-o", "x.svg") in GOOD
    svg = Path("x.svg").read_text()
    assert "alpha: 10.0.0.1:1055" in svg and "beta: 10.0.0.1:1055" in svg and OWN in svg
    assert run(*two, "-x", "-c", "-p", "1055.5050", "--axis", "clock") in GOOD
    (name,) = capfd.readouterr().out.split()
    assert name == "one+two.snd_cwnd.xg"
    text = Path(name).read_text()
    assert text.count('"alpha: 1055.5050') == text.count('"beta: 1055.5050') == 1
    curves = [part.splitlines() for part in text.split('"')[1:]]
    starts = [float(lines[1].split()[0]) for lines in curves]
    assert starts[1] - starts[0] == LATER_S
    assert run(*two, "-x", "-c", "-p", "1055.5050") == FileError.exit_code
    for letter in ("-T", "-D", "-M"):
        assert run(*two, letter) == UsageError.exit_code
        assert "takes one capture" in capfd.readouterr().err


@pytest.mark.parametrize("aged_s", [0.065, 4.0])
def test_a_later_segment_begins_at_0(tmp_path: Path, aged_s: float) -> None:
    """What it repeats of earlier ones is older than itself."""
    builder = Builder(tcpkmon=True)
    builder.add(-aged_s, location=EXISTING, conn_id=1, snd_cwnd=7000)
    sawtooth(builder, 1055, 5050, 1)
    path = builder.write(tmp_path / "later.pm")
    with tcpkmon.open(path) as capture:
        ((page,), _) = build_pages(capture, Selection(("snd_cwnd",)), 500)  # type: ignore[arg-type]
    (line,) = page.panels[0].lines
    assert page.limits[0] == 0.0 and line.times[0] == 0.0 and line.values[0] == 7.0
    assert line.times[-1] < 100
