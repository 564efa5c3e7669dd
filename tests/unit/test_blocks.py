# SPDX-License-Identifier: Apache-2.0
"""One pass over whole connections: the same records as the file, those of each together."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.analysis.why import Block, Source, connections
from tcpkmon.formats.base.analysed import Analysed
from tcpkmon.formats.base.errors import UsageError
from tests.kept.make import unpack
from tests.unit.psc_files import write_capture
from tests.unit.test_several_files import psc

KEPT = ("psc-plain", "psc-killed", "psc-rotated", "psc-zst", "psc-lossy", "psc-taken-over",
        "klogger-plain", "klogger-rotated", "klogger-lossy", "klogger-killed")  # fmt: skip
RECORD_BYTES = 4 * 300
"""A little more than what the memory has for a record."""


def is_read_whole(path: Path, memory: int | None = None) -> list[Block]:
    """Each block has whole connections, and together they are the file's records, sorted."""
    with Source(path) as source:
        pieces = list(source.read())
        found = list(source.blocks(memory))
    ids = np.concatenate([piece["conn_id"] for piece in pieces])
    at = np.concatenate([block.at for block in found])
    assert sorted(at.tolist()) == list(range(len(ids)))
    mine = np.concatenate([block["conn_id"][block.groups] for block in found])
    assert sorted(mine.tolist()) == np.unique(ids).tolist()
    for block in found:
        steps = np.diff(block.at)
        assert (steps[~block.is_first[1:]] > 0).all()  # in the order of the file
        assert (block["conn_id"][block.groups][block.of_row] == block["conn_id"]).all()
    for name in found[0].rows:
        whole = np.concatenate([piece[name] for piece in pieces])
        got = np.concatenate([block[name] for block in found])
        assert got.dtype == whole.dtype and (got == whole[at]).all(), name
    for name in ("times_ns", "lost", "seq"):
        if name != "seq" or pieces[0].seq is not None:
            whole = np.concatenate([getattr(piece, name) for piece in pieces])
            assert (np.concatenate([getattr(one, name) for one in found]) == whole[at]).all()
    return found


@pytest.mark.parametrize("name", KEPT)
def test_each_kind_of_capture(name: str, tmp_path: Path) -> None:
    """Also where the memory is far too small, and all is spread over files."""
    unpack(name, tmp_path)
    path = next(one for one in tmp_path.iterdir() if one.name.startswith(name))
    assert len(is_read_whole(path)) == 1
    for records in (1, 40):
        assert len(is_read_whole(path, records * RECORD_BYTES)) > 1


def test_a_connection_crosses_fifty_segments(tmp_path: Path) -> None:
    psc(tmp_path / "out", segments=50)
    (block,) = is_read_whole(tmp_path / "out")
    assert len(block) == 1000 and block["conn_id"][block.groups].tolist() == [7]


@pytest.mark.parametrize("records, flows", [(30_000, 20_000), (30_000, 1), (200_000, 3)])
def test_a_connection_is_never_cut(tmp_path: Path, records: int, flows: int) -> None:
    path = write_capture(tmp_path / "a.pm", records, flows)
    for memory in (None, records // 5 * RECORD_BYTES):
        found = is_read_whole(path, memory)
        assert sum(len(block.groups) for block in found) == flows


@pytest.mark.parametrize("lose", [{0}, {4, 5}, {19}, set(range(20, 30)), {28, 29}])
def test_losses_are_known_ahead_of_the_first_block(tmp_path: Path, lose: set[int]) -> None:
    """Before the first record, between them, behind the last one. Records come each us."""
    path = write_capture(tmp_path / "a.pm", 30, 3, lose=lose)
    for memory in (None, RECORD_BYTES):
        for block in is_read_whole(path, memory):
            losses = block.losses
            assert losses.missing.tolist() == [len(lose)]
            assert losses.begin_ns[0] <= 1000 * max(min(lose) - 1, 0)
            assert losses.end_ns[0] >= 1000 * min(max(lose) + 1, 29)
            kept = (block.times_ns // 1000).tolist()
            assert block.lost.tolist() == [sum(n < at for n in lose) for at in kept]
            gap = np.flatnonzero(block.lost > block.before(block.lost))
            before = block.before(block.times_ns)[gap]
            now = block.times_ns[gap]
            since = losses.since(block.before(block.lost)[gap], before, now)
            assert ((before <= since) & (since <= now)).all()


def test_the_answers_are_the_same_with_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_capture(tmp_path / "a.pm", 20_000, 500, lose=frozenset({777}))
    whole = connections(path)
    real = Source.blocks
    small = 900 * RECORD_BYTES
    monkeypatch.setattr(Source, "blocks", lambda self, **more: real(self, small, **more))
    few = connections(path)
    assert few["conn_id"].tolist() == list(range(1, 501))
    for name, values in whole.items():
        same = [*map(str, values.tolist())] == [*map(str, few[name].tolist())]
        assert same, name


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """Where the temporary files are, and what to do. Nothing of them is left, nor has a name."""
    path = write_capture(tmp_path / "a.pm", 30_000, 20)
    folder = tmp_path / "tmp"
    folder.mkdir()
    script = (
        "import sys, tcpkmon\n"
        "with tcpkmon.open(sys.argv[1]) as one:\n"
        "    try:\n"
        "        print(sum(map(len, one.connections(['mss'], memory='1M'))))\n"
        "    except tcpkmon.FileError as error: print(*error.lines())\n"
    )

    def run(limit: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True,
            env={**os.environ, "TMPDIR": str(folder)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )  # fmt: skip
        assert not list(folder.iterdir())
        return done.stdout

    assert run(resource.RLIM_INFINITY) == "30000\n"
    said = run(100_000)
    assert str(folder) in said and "File too large" in said and "set TMPDIR to" in said


def test_columns_are_those_that_were_asked_for(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.pm", 100, 3)
    with tcpkmon.open(path) as reader:
        assert isinstance(reader, Analysed)
        (block,) = reader.connections(["mss", "srtt_us"], memory="512M")
        assert list(block.rows) == ["mss", "srtt_us"] and len(block.groups) == 3
        for columns, memory in ((["nothing"], None), (["mss"], "much")):
            with pytest.raises(UsageError):
                reader.connections(columns, memory=memory)
