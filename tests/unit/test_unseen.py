# SPDX-License-Identifier: Apache-2.0
"""How long no program ran, as process 1 had a CPU: in each format, and in parts of a capture."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.linux.first_process import find_cpu_clock
from tcpkmon.collector.writer.dump import Hit
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.formats.anonymise.rows import DEFAULT
from tcpkmon.formats.anonymise.run import anonymise
from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.commands.verify import command as verify
from tcpkmon.formats.registry import format_of
from tests.unit.makers import LogMaker, Maker
from tests.unit.test_recorder import Recording
from tests.unit.test_takeover import Killed

MS, S = 10**6, 10**9
SENTENCE = "this kernel runs no program while process 1 has the CPU"


class Telling:
    """Of a maker: its kernel runs no program while process 1 has a CPU."""

    stream: Any
    unseen = Unseen(50 * S, 7 * S)

    def books(self) -> Books:
        made: Books = super().books()  # type: ignore[misc]
        return replace(made, unseen=self.unseen)

    def pass_by(self, seconds: int, cpu_ms: int) -> None:
        """So much time passes, in which process 1 has a CPU for so long."""
        old = self.unseen
        self.unseen = Unseen(old.mono_ns + seconds * S, old.cpu_ns + cpu_ms * MS)


class Psc(Telling, Maker):
    pass


class Log(Telling, LogMaker):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, settings={"unseen": SENTENCE})


KINDS: list[Any] = [Psc, Log]


def counts(reports: Any) -> list[tuple[int | None, int]]:
    return [(report.unseen_cpu_ns, report.unseen_span_ns) for report in reports]


def make(kind: Any, folder: Path) -> None:
    """Two segments."""
    maker = kind(folder)
    maker.stream.tell([maker.unseen])  # as a session begins
    maker.records(5)
    maker.pass_by(2, 30)
    maker.checkpoint()
    maker.pass_by(1, 5)
    maker.rotate()
    maker.records(5)
    maker.pass_by(4, 500)
    maker.close()


@pytest.mark.parametrize("kind", KINDS)
def test_each_segment_has_its_part_and_all_have_the_sum(kind: Any, tmp_path: Path) -> None:
    make(kind, tmp_path / "f")
    reports = format_of(tmp_path / "f").verify(tmp_path / "f")
    assert [report.problems for report in reports] == [[]] * 3
    assert counts(reports) == [(35 * MS, 3 * S), (500 * MS, 4 * S), (535 * MS, 7 * S)]
    first, _, chain = (report.notes for report in reports)
    assert "process 1 had a CPU for 35.0 ms of the segment's 3.0 s" in first
    said = "process 1 had a CPU for 535.0 ms of the capture's 7.0 s"
    assert said in chain
    if kind is Log:  # this maker has settings
        assert chain[chain.index(said) - 1] == f"not seen: {SENTENCE}"


@pytest.mark.parametrize("kind", KINDS)
def test_it_stays_when_names_are_replaced(kind: Any, tmp_path: Path) -> None:
    make(kind, tmp_path / "f")
    anonymise(tmp_path / "f", tmp_path / "new", Who(bytes(32), DEFAULT))
    new, old = (format_of(tmp_path / name).verify(tmp_path / name) for name in ("new", "f"))
    assert counts(new) == counts(old) and counts(new)[-1] == (535 * MS, 7 * S)


class Taken(Telling, Killed):
    pass


def gone_on(maker: Taken, folder: Path, released: int) -> list[tuple[int | None, int]]:
    """The counts of all files, when another process went on after the first `released` records."""
    maker.go_on(folder, maker.notes(), released)
    maker.rotate()
    maker.close()
    *_, chain = format_of(folder).verify(folder)
    assert not chain.problems
    return counts([chain])


def test_what_passed_between_two_collectors_is_counted(tmp_path: Path) -> None:
    maker = Taken(tmp_path / "f")
    maker.stream.tell([maker.unseen])
    maker.records(20)
    maker.pass_by(1, 10)
    maker.checkpoint()
    maker.wait()
    (hidden,) = find_segments(tmp_path / "f")
    shutil.copytree(tmp_path / "f", tmp_path / "g")
    path = hidden.path(tmp_path / "g")
    (killed,) = counts(format_of(path).verify(path))
    assert killed == (10 * MS, S), "without an end: up to the last ledger"
    maker.pass_by(3, 100)  # nobody reads the rings; the programs go on
    assert gone_on(maker, tmp_path / "g", 20) == [(110 * MS, 4 * S)]


class Dumping(Telling, Recording):
    pass


def test_a_dump_tells_of_its_window(tmp_path: Path) -> None:
    maker = Dumping(tmp_path / "d")
    for _ in range(30):
        maker.pass_by(1, 10)
        maker.second()
    maker.watch.due.append(Hit(1, maker.now_ns, 7, 1))
    maker.stream.release(0)
    maker.pass_by(1, 70)
    maker.advance()
    (path,) = maker.end()
    (report,) = format_of(path).verify(path)
    assert not report.problems
    (found,) = counts([report])
    seconds = found[1] // S
    assert 10 <= seconds <= 15 and found == ((seconds - 1) * 10 * MS + 70 * MS, seconds * S)
    (line,) = [note for note in report.notes if note.startswith("process 1")]
    assert line.endswith(f" of the dump's {seconds}.0 s")


def test_the_line_follows_the_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maker = Log(tmp_path / "f")
    maker.stream.tell([maker.unseen])
    maker.unseen = Unseen(maker.unseen.mono_ns + 20_100 * MS, maker.unseen.cpu_ns + 12_345_678)
    maker.close()
    (segment,) = find_segments(tmp_path / "f")
    path = str(segment.path(tmp_path / "f"))
    assert run(verify, [path, "--verbose"], prog="verify") == 0
    printed = " ".join(capsys.readouterr().out.split())
    line = "process 1 had a CPU for 12.3 ms of the segment's 20.1 s"
    assert f"not seen: {SENTENCE} {line}" in printed
    assert run(verify, [path], prog="verify") == 0
    printed = capsys.readouterr().out
    assert "not seen" not in printed and "process 1" not in printed  # less than a thousandth
    assert run(verify, [path, "--json"], prog="verify") == 0
    *_, file = json.loads(capsys.readouterr().out)["files"]
    assert (file["unseen_cpu_ns"], file["unseen_span_ns"]) == (12_345_678, 20_100 * MS)


@pytest.mark.parametrize("back", [Unseen(49 * S, 8 * S), Unseen(51 * S, 6 * S)])
@pytest.mark.parametrize("kind", KINDS)
def test_it_does_not_run_back(kind: Any, back: Unseen, tmp_path: Path) -> None:
    maker = kind(tmp_path / "f")
    maker.stream.tell([maker.unseen])
    maker.unseen = back
    maker.close()
    (segment,) = find_segments(tmp_path / "f")
    path = segment.path(tmp_path / "f")
    told = [one.what for report in format_of(path).verify(path) for one in report.problems]
    assert told.count("the CPU time of process 1 runs back") == 1


def test_the_clock_is_that_of_all_threads_of_process_1() -> None:
    clock = find_cpu_clock()
    assert (clock is None) == (os.readlink("/proc/self/ns/pid") != "pid:[4026531836]")
    if clock is None:
        pytest.skip("process 1 here is not the machine's")
    ticks = os.sysconf("SC_CLK_TCK")

    def by_proc() -> float:
        """Of all its threads, those that ended too, in s, at most two ticks too low."""
        fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    before_s, found_s, after_s = by_proc(), time.clock_gettime(clock), by_proc()
    assert before_s - 1 / ticks <= found_s <= after_s + 3 / ticks
