# SPDX-License-Identifier: Apache-2.0
"""A command that reads captures ends with 0 only where nothing in them contradicts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tcpkmon.formats.base import cli
from tcpkmon.formats.commands import connections, decode, export, pmgraph, requests, why
from tests.full import first
from tests.kept.make import unpack
from tests.unit.forging import PLACES, PscFile

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
