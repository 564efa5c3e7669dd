# SPDX-License-Identifier: Apache-2.0
"""Captures in which records were taken out or doubled, and all but one place rewritten to fit."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.formats.base import cli
from tcpkmon.formats.commands import why
from tcpkmon.formats.registry import format_of
from tests.full import first
from tests.kept.make import unpack
from tests.unit.forging import PLACES, PscFile
from tests.unit.forging_logs import LOG_PLACES, LogFile


def forge(path: Path, seed: int, leave: set[str]) -> None:
    """Change a file in place."""
    chance, file = random.Random(seed), PscFile(path.read_bytes())
    count = chance.choice([1, 2, 20, 70])
    which = chance.sample(range(len(file.snapshots)), count)
    (file.drop if seed % 2 else file.double)(which)
    path.write_bytes(file.encode(leave))


def verdicts(path: Path) -> list[int]:
    return [report.exit_code for report in format_of(path).verify(path)]


@pytest.mark.parametrize("seed", range(2))
def test_what_is_forged_as_a_whole_adds_up(seed: int, tmp_path: Path) -> None:
    """docs/verify.md says so; without it the next test would show nothing."""
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    forge(path, seed, set())
    assert verdicts(path) == [0]


@pytest.mark.parametrize("seed", first(2, range(6)))
@pytest.mark.parametrize("left", PLACES)
def test_one_place_that_was_left_tells_it(left: str, seed: int, tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    forge(path, seed, {left})
    assert verdicts(path) == [5]


@pytest.mark.parametrize("name, at", [("psc-rotated", 0), ("psc-recorded", 0)])
def test_an_index_that_was_left_tells_it(name: str, at: int, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    path = sorted(tmp_path.rglob("*.pm"))[at]
    for seed in range(2):
        forge(path, seed, set())
        assert 5 in verdicts(path.parent)


KINDS = {"klogger-plain": (LogFile, LOG_PLACES)}


def forge_log(name: str, folder: Path, seed: int, leave: set[str]) -> Path:
    """A kept log, changed: its largest file."""
    unpack(name, folder)
    files = [one for one in folder.rglob("*") if one.is_file()]
    path = max(files, key=lambda one: one.stat().st_size)
    chance, file = random.Random(seed), KINDS[name][0](path.read_bytes())
    assert file.encode() == path.read_bytes(), "nothing was changed yet"
    which = chance.sample(range(len(file.records)), chance.choice([1, 2, 20, 70]))
    (file.drop if seed % 2 else file.double)(which)
    path.write_bytes(file.encode(leave))
    return path


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", KINDS)
def test_logs_that_are_forged_as_a_whole_add_up(name: str, seed: int, tmp_path: Path) -> None:
    assert verdicts(forge_log(name, tmp_path, seed, set())) == [0]


@pytest.mark.parametrize("seed", first(2, range(6)))
@pytest.mark.parametrize("name, left", [(name, left) for name in KINDS for left in KINDS[name][1]])
def test_one_place_of_a_log_that_was_left_tells_it(
    name: str, left: str, seed: int, tmp_path: Path
) -> None:
    assert verdicts(forge_log(name, tmp_path, seed, {left})) == [5]


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
