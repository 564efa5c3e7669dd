# SPDX-License-Identifier: Apache-2.0
"""pmgraph's options: the letters of the report, how they combine, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.pmgraph import command
from tcpkmon.formats.pmgraph.options import parse_connection, parse_scale
from tests.unit.psc_files import REPORT_COLUMNS, Builder, merge, sawtooth

REPORT = {
    "b": "snd_sb_cc", "c": "snd_cwnd", "f": "snd_fack", "F": "hiwat_fair_share", "H": "sb_hiwat",
    "l": "location", "m": "m_clused_bytes", "n": "sb_net_target", "r": "rcv_sb_cc",
    "s": "snd_max", "t": "sb_target_hiwat", "v": "callvalue",
}  # fmt: skip
"""What the letters of CMU-PSC-TR-2000-0001 show."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    builder = Builder()
    sawtooth(builder, 1055, 5050, 1, rounds=10)
    sawtooth(builder, 1056, 5051, 2, rounds=10)
    merge(builder)
    return builder.write(tmp_path / "na.pm")


def heading(capfd: pytest.CaptureFixture[str], *args: object) -> str:
    assert cli.run(command, [str(arg) for arg in args], prog="pmgraph") == 0
    return capfd.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("letter", REPORT)
def test_letters(path: Path, capfd: pytest.CaptureFixture[str], letter: str) -> None:
    assert heading(capfd, path, "-T", f"-{letter}") == f"# time\tlport\trport\t{REPORT[letter]}"


def test_clusters_of_letters(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert heading(capfd, "-TcHp1055.5050", path) == "# time\tlport\trport\tsnd_cwnd\tsb_hiwat"
    assert heading(capfd, path, "-PTHc", "-S", "1000l").split("\t")[3:] == [
        "sb_hiwat", "snd_cwnd", "location",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "65536", "1055:5050", "1055.", "65536.1", "1.2.3", "1055.-1"])
def test_bad_connections(text: str) -> None:
    with pytest.raises(UsageError):
        parse_connection(text)


@pytest.mark.parametrize("text", ["", "l", "1000", "1000d", "xl", "0l", "1e999l", "infl", "nanl"])
def test_bad_scales(text: str) -> None:
    with pytest.raises(UsageError):
        parse_scale(text)


@pytest.mark.parametrize(
    "args",
    [
        ("-q",), ("-p", "x"), ("-S", "l"), ("-T", "-x"), ("-T", "-o", "x.png"), ("-o", "x.gif"),
        ("--show", ","), ("--time", "utc"), ("--axis", "day"),
    ],
)  # fmt: skip
def test_wrong_usage(path: Path, capfd: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    assert cli.run(command, [str(path), *args], prog="pmgraph") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("pmgraph: ") and err.count("\n") == 1


def test_nowhere_to_draw(
    path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert cli.run(command, [str(path), "-c"], prog="pmgraph") == 2
    assert "-o FILE" in capfd.readouterr().err


def test_picture_never_replaces_the_capture(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    builder = Builder(columns=REPORT_COLUMNS)
    builder.add(1)
    path = builder.write(tmp_path / "odd.png")
    before = path.read_bytes()
    assert cli.run(command, [str(path), "-c", "-o", str(path)], prog="pmgraph") == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["docs/pmgraph.md", "docs/man/pmgraph.1"])
def test_documents_name_every_option(name: str) -> None:
    text = (Path(__file__).parents[2] / name).read_text().replace("\\-", "-")
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("-") and parameter.param_type_name == "option":
                is_named = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
                assert is_named or (name.endswith(".md") and len(option) > 2), option
