# SPDX-License-Identifier: Apache-2.0
"""Captures in which records were taken out or doubled, and all but one place rewritten to fit."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.formats.base import cli
from tcpkmon.formats.commands import connections, decode, export, pmgraph, requests, why
from tcpkmon.formats.registry import format_of
from tests.full import IS_FULL, first
from tests.fuzz.forgeries import check
from tests.kept.make import unpack
from tests.unit.forging import LOG_PLACES, PLACES, LogFile, PscFile

KINDS = {"psc-plain": (PscFile, PLACES), "klogger-plain": (LogFile, LOG_PLACES)}


def forge(name: str, path: Path, seed: int, leave: set[str]) -> None:
    """Change a file of a kept capture in place."""
    chance, file = random.Random(seed), KINDS[name][0](path.read_bytes())
    assert file.encode() == path.read_bytes(), "nothing was changed yet"
    which = chance.sample(range(len(file.records)), chance.choice([1, 2, 20, 70]))
    (file.drop if seed % 2 else file.double)(which)
    path.write_bytes(file.encode(leave))


def verdicts(path: Path) -> list[int]:
    return [report.exit_code for report in format_of(path).verify(path)]


@pytest.fixture
def kept(name: str, tmp_path: Path) -> Path:
    """A kept capture: its largest file."""
    unpack(name, tmp_path)
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    return max(files, key=lambda one: one.stat().st_size)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", KINDS)
def test_what_is_forged_as_a_whole_adds_up(name: str, kept: Path, seed: int) -> None:
    """docs/verify.md says so; without it the next test would show nothing."""
    forge(name, kept, seed, set())
    assert verdicts(kept) == [0]


@pytest.mark.parametrize("seed", first(2, range(6)))
@pytest.mark.parametrize("name, left", [(name, left) for name in KINDS for left in KINDS[name][1]])
def test_one_place_that_was_left_tells_it(name: str, kept: Path, left: str, seed: int) -> None:
    forge(name, kept, seed, {left})
    assert verdicts(kept) == [5]


@pytest.mark.parametrize("name", ["psc-rotated", "psc-recorded"])
def test_an_index_that_was_left_tells_it(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    path = min(tmp_path.rglob("*.pm"))
    for seed in range(2):
        forge("psc-plain", path, seed, set())
        assert 5 in verdicts(path.parent)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("time_ns", [0, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_times_of_any_size_are_told(time_ns: int, tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    file = PscFile(path.read_bytes())
    times = file.column("time_ns").astype(np.uint64)
    times[file.snapshots[::7]] = time_ns
    file.put("time_ns", times)
    path.write_bytes(file.encode())
    assert cli.run(why.command, ["-v", str(path)]) == 5


PART, PARTS = (60, 16) if IS_FULL else (10, 1)


@pytest.mark.parametrize("part", range(PARTS))
def test_what_something_contradicts_passes_nowhere(part: int, tmp_path: Path) -> None:
    for number in range(part * PART, (part + 1) * PART):
        try:
            check(struct.pack("<Q", number), tmp_path / "forged")
        except Exception as error:
            raise AssertionError(f"forgery {number}: {error!r}") from error


READERS = {
    "why": why.command, "connections": connections.command, "requests": requests.command,
    "export": export.command, "pmgraph": pmgraph.command,
}  # fmt: skip
WORDS = {"export": ["--format", "csv"], "pmgraph": ["-T"]}


@pytest.mark.parametrize("name", READERS)
def test_records_that_the_ledger_counts_were_taken_out(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is left is numbered anew, so that no gap tells it."""
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    words = [*WORDS.get(name, []), str(path)]
    assert cli.run(READERS[name], words) == 0
    file = PscFile(path.read_bytes())
    file.drop(range(40, 50))
    path.write_bytes(file.encode(leave={"in_file", "written"}))
    capfd.readouterr()
    assert cli.run(READERS[name], words) == 5
    assert f"{path}: does not add up: " in capfd.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("name", ["klogger-rotated", "klogger-recorded"])
def test_events_that_the_index_counts_were_taken_out(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    folder = tmp_path / name
    assert cli.run(decode.command, [str(folder)]) == 0
    index = folder / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    lines[-1]["records"] += 1
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli.run(decode.command, [str(folder)]) == 5


@pytest.mark.parametrize("name", READERS)
def test_all_was_taken_out_but_the_end_counts_its_ledgers(name: str, tmp_path: Path) -> None:
    unpack("psc-recorded", tmp_path)
    for path in tmp_path.rglob("*.pm"):
        file = PscFile(path.read_bytes())
        file.keep([0, len(file.rows) - 1])
        path.write_bytes(file.encode(leave={*PLACES} - {"seq"}))
    words = [*WORDS.get(name, []), str(path)]
    assert cli.run(READERS[name], words) == 5
    assert cli.run(READERS[name], [*words[:-1], str(path.parent)]) == 5


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_header_that_hides_the_ledger(name: str, tmp_path: Path) -> None:
    unpack("psc-lossy", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    path.write_bytes(path.read_bytes().replace(b"callvalue\0", b"callvalue\4", 1))
    assert cli.run(READERS[name], [*WORDS.get(name, []), str(path)]) != 0


@pytest.mark.parametrize("name, suffix", first(3, [
    ("psc-rotated", "pm"), ("psc-rotated", "klog"), ("klogger-rotated", "magnet"),
    ("psc-rotated", "magnet"), ("klogger-rotated", "pm"), ("klogger-rotated", "klog"),
]))
def test_a_stray_segment_is_told(name: str, suffix: str, tmp_path: Path) -> None:
    """By its name it is one of the capture's, of this kind or another."""
    unpack(name, tmp_path)
    folder = tmp_path / name
    stray = next(folder.glob("*-000001.*")).with_suffix(f".{suffix}")
    stray = stray.with_name(stray.name.replace("-000001", "-000077"))
    stray.mkdir() if suffix == "klog" else stray.write_text("x")
    for command in (why.command, connections.command, requests.command, export.command):
        words = WORDS["export"] if command is export.command else []
        assert cli.run(command, [*words, str(folder)]) in (1, 5)
