# SPDX-License-Identifier: Apache-2.0
"""docs/psc.md: each row's command says what the row says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.commands.collect import command as collect
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon
from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.pmgraph import PARAMETERS
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tests.kept.make import unpack
from tests.unit.log_files import ROOT
from tests.unit.psc_files import Builder, sawtooth

COMMANDS: dict[str, Any] = {"collect": collect, "tcpkmon": tcpkmon, "pmgraph": pmgraph}
REPORT = "bcdDfFhHlmMnpPrsStTvx"
"""The options of the report."""


def rows() -> list[tuple[str, str, str, str]]:
    lines = (ROOT / "docs" / "psc.md").read_text().splitlines()
    cells = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines
             if line.startswith("| ") and not line.startswith(("| then ", "| ---"))]  # fmt: skip
    assert all(len(one) == 4 for one in cells)
    return cells  # type: ignore[return-value]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("psc")
    for kept, name in (("psc-plain", "a.pm"), ("psc-lossy", "lossy.pm")):
        unpack(kept, made)
        (made / f"{kept}.pm").rename(made / name)
    reno = Builder(tcpkmon=True, mods=1, masks={"snd_fack": 4})
    sawtooth(reno, 1055, 5050, 1)
    reno.write(made / "reno.pm")
    shutil.copytree(ROOT / "docs" / "examples" / "wakeups", made / "wakeups")
    return made


@pytest.mark.parametrize("row", [
    pytest.param(row, marks=pytest.mark.full) if row[0].startswith("no option") else row
    for row in rows() if row[2] != "-"
], ids=lambda row: row[0])
def test_a_row(
    row: tuple[str, str, str, str], folder: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    name, *words = shlex.split(row[2].strip("`"))
    wanted = {"tcpkmon verify lossy.pm": 3, "pmgraph reno.pm -T -f": 2}.get(row[2].strip("`"), 0)
    code = cli.run(COMMANDS[name], words, prog=name)
    out, err = capfd.readouterr()
    assert code == wanted, err
    told = row[3].strip("`").replace("\\t", "\t")
    assert told in out + err
    if "-o" in words:
        assert (folder / words[words.index("-o") + 1]).stat().st_size > 100


def test_each_option_and_kind_has_a_row() -> None:
    text = [row[0] for row in rows()]
    for letter in REPORT:
        assert any(re.match(rf"`-{letter}[` ]", one) for one in text) or letter == "h", letter
    assert {one.letter for one in PARAMETERS} <= set(REPORT)
    named = " ".join(text)
    for number in range(7):
        assert re.search(rf"(KIND_)?[A-Z_]+ {number}\b", named), number


def test_what_has_no_meaning_says_so() -> None:
    assert all(row[1].startswith("Without meaning today: ") == (row[2] == "-") for row in rows())
