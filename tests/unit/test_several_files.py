# SPDX-License-Identifier: Apache-2.0
"""Segments of a capture that are named one by one are one capture; others are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.connections import command as connections
from tcpkmon.formats.commands.export import command as export
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tcpkmon.formats.commands.why import command as why
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import group
from tests.kept.make import unpack
from tests.unit.makers import Maker, make, make_logs


def psc(folder: Path, segments: int = 3) -> list[Path]:
    """Segments with records of one connection."""
    maker = Maker(folder)
    address = np.frombuffer(b"\0" * 10 + b"\xff\xff\x0a\0\0\x01", "V16")[0]
    maker.columns = {"conn_id": 7, "laddr": address, "raddr": address, "family": 2}
    for number in range(segments):
        if number:
            maker.rotate()
        maker.records(20)
        maker.checkpoint()
    maker.close()
    return maker.paths


def test_psc_segments_are_read_in_their_order(tmp_path: Path) -> None:
    paths = make(tmp_path / "out", segments=4, count=20)
    with tcpkmon.open(tmp_path / "out") as whole, tcpkmon.open(*paths[::-1]) as named:
        assert isinstance(whole, Capture) and isinstance(named, Capture)
        assert (whole.rows() == named.rows()).all() and named.complete and not named.warnings
    with open_capture(paths[0], paths[2]) as capture:
        assert any("segment 2 is missing" in text for text in capture.warnings)


def test_files_of_several_captures_are_refused(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one", segments=2), make(tmp_path / "other", segments=2)
    log = make_logs(tmp_path / "log", 2)
    shutil.copy(one[0], tmp_path / "plain.pm")
    for paths in ([one[0], other[1]], [one[0], log[0]]):
        with pytest.raises(UsageError):
            tcpkmon.open(*paths)
    for command in (pmgraph, export):
        assert run(command, [str(one[0]), str(other[1])], prog="test") == 2
    more = make_logs(tmp_path / "log2", 2)
    with pytest.raises(UsageError, match="are not segments of one capture"):
        tcpkmon.open(log[0], more[1])
    assert [len(each) for each in group([*one, *other, *log, tmp_path / "one"])] == [2, 2, 2, 1]


def test_export_takes_several(tmp_path: Path, capsysbinary: pytest.CaptureFixture) -> None:
    unpack("magnet-rotated", tmp_path)  # of before: nobody writes segments of it any more
    magnet = sorted((tmp_path / "magnet-rotated").glob("*.magnet"))
    for paths in (psc(tmp_path / "psc"), make_logs(tmp_path / "log"), magnet):
        folder = str(paths[0].parent)
        assert run(export, [folder, "--format", "json"], prog="export") == 0
        whole = capsysbinary.readouterr().out
        words = [str(path) for path in paths[::-1]]
        assert run(export, [*words, "--format", "json"], prog="export") == 0
        assert capsysbinary.readouterr().out == whole and whole
        code = run(export, [*words, "-o", words[1], "--format", "json", "--force"], prog="export")
        assert code == 2, "the output is one of the files"


@pytest.mark.parametrize("command", [why, connections])
def test_connections_of_segments_are_one(
    tmp_path: Path, command: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another capture beside them is read by itself."""
    paths = psc(tmp_path / "psc")
    words = ["--json"] if command is why else ["--format", "json"]
    assert run(command, [*map(str, paths), *words], prog="test") == 0  # type: ignore[arg-type]
    told = capsys.readouterr().out
    rows = json.loads(told)["connections"]
    assert len(rows) == 1
    other = psc(tmp_path / "other")
    words += [str(other[0]), *map(str, paths)]
    assert run(command, words, prog="test") in (0, 3)  # type: ignore[arg-type]
    told = capsys.readouterr().out
    rows = json.loads(told)["connections"]
    assert len(rows) == 2
