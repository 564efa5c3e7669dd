# SPDX-License-Identifier: Apache-2.0
"""Every command says the same of a folder in which a segment is missing or is not what it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tcpkmon.collector.commands.tcpkmon import command as tcpkmon
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.segments import INDEX
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tests.full import first
from tests.unit.makers import make, make_logs
from tests.unit.test_retention import archive


def _swap(paths: list[Path]) -> None:
    paths[1].rename(paths[1].parent / "other")
    paths[2].rename(paths[1])
    (paths[1].parent / "other").rename(paths[2])


def _foreign(paths: list[Path]) -> None:
    other = make(paths[0].parent.parent / "other", 3)[1]
    shutil.copy(other, paths[1])


def _cut(paths: list[Path]) -> None:
    paths[1].write_bytes(paths[1].read_bytes()[:100])


def _delete(paths: list[Path]) -> None:
    """As retention does: the index says so."""
    index = paths[0].with_name(INDEX)
    told = json.loads(index.read_text().splitlines()[0])
    with index.open("a") as lines:
        lines.write(json.dumps({**told, "what": "deleted"}) + "\n")
    paths[0].unlink()


def _rename(paths: list[Path]) -> None:
    """Nothing is lost, but the index calls it otherwise."""
    paths[-1].rename(paths[-1].with_name(f"other-{paths[-1].name}"))


CASES: dict[str, tuple[Callable[[list[Path]], object], int]] = {
    # what is done; the exit code of verify, and of all who read
    "whole": (lambda paths: None, 0),
    "first missing": (lambda paths: paths[0].unlink(), 5),
    "first is the last": (lambda paths: shutil.copy(paths[-1], paths[0]), 5),
    "first deleted": (_delete, 0),
    "last renamed": (_rename, 5),
    "middle missing": (lambda paths: paths[1].unlink(), 5),
    "last missing": (lambda paths: paths[-1].unlink(), 5),
    "unreadable": (_cut, 5),
    "empty": (lambda paths: paths[1].write_bytes(b""), 5),
    "doubled": (lambda paths: shutil.copy(
        paths[1], paths[1].with_name(paths[1].name.replace("000002", "000009"))), 5),
    "swapped": (_swap, 5),
    "foreign": (_foreign, 5),
}  # fmt: skip
READERS = ("connections", "why", "export", "pmgraph")


def _codes(folder: Path, out: Path) -> dict[str, int]:
    found = {}
    for name in READERS:
        if name == "pmgraph":
            found[name] = run(pmgraph, ["-T", str(folder)], prog="pmgraph")
            continue
        more = ["--format", "csv"] if name == "export" else []
        found[name] = run(tcpkmon, [name, str(folder), *more], prog="tcpkmon")
    return found


@pytest.mark.parametrize(
    ("form", "case"), first(15, [(form, case) for form in ("", "zst") for case in CASES])
)
def test_all_readers_give_one_answer(tmp_path: Path, case: str, form: str) -> None:
    change, code = CASES[case]
    folder = tmp_path / "out"
    paths = make(folder, 4, 20)
    if form:
        archive(folder)
        paths = [Path(f"{path}.{form}") for path in paths]
    if case == "foreign" and form:
        pytest.skip("of another run: see test_retention.py")
    change(paths)
    assert run(tcpkmon, ["verify", str(folder)], prog="tcpkmon") == code
    assert _codes(folder, tmp_path) == dict.fromkeys(READERS, code)


def test_readers_of_events_too(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    paths = make_logs(folder)
    commands = ["decode", "export"]
    for code, removed in ((0, paths[0]), (5, paths[1]), (5, paths[1])):
        found = {name: run(tcpkmon, [name, str(folder)], prog="tcpkmon") for name in commands}
        assert found == dict.fromkeys(commands, code)
        shutil.rmtree(removed) if removed.is_dir() else removed.unlink(missing_ok=True)
    assert run(tcpkmon, ["verify", str(folder)], prog="tcpkmon") == 5
