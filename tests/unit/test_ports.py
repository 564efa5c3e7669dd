# SPDX-License-Identifier: Apache-2.0
"""-p has one meaning in all commands: both ends of a connection, by its ports in any order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.commands.tcpkmon import command as tcpkmon
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tcpkmon.formats.psc.reader import open_capture
from tests.unit.makers import Maker
from tests.unit.request_capture import Socket, client, server, write_requests

BOTH = {(40000, 80), (80, 40000)}
Ends = set[tuple[int, int]]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Both ends of a connection, and one end of another."""
    other = Socket(conn_id=9, lport=40001, rport=443).open(2, active=True)
    other.send(5, 100)
    other.segment(9, 200)
    other.receive(10, 200)
    other.close(20)
    return write_requests(tmp_path / "run.pm", client(), server(), other)


@pytest.fixture
def cuttable(tmp_path: Path) -> Path:
    maker = Maker(tmp_path / "cuttable.pm", rotates=False)
    maker.columns = {
        "conn_id": [1, 2, 9], "lport": [40000, 80, 40001], "rport": [80, 40000, 443]
    }  # fmt: skip
    maker.records(3)
    maker.close()
    return maker.folder


def ends_of_rows(text: str, name: str | None) -> Ends:
    rows = json.loads(text)[name] if name else [json.loads(line) for line in text.splitlines()]
    return {(row["lport"], row["rport"]) for row in rows}


def shown(command: str, capture: Path, ports: list[str], capfd: Any) -> tuple[int, Ends, str]:
    """Exit code, the ends of connections that a command shows, and what it says on stderr."""
    words = [word for text in ports for word in ("-p", text)]
    if command == "pmgraph":
        code = run(pmgraph, ["-T", "-c", *words, str(capture)], prog="pmgraph")
        out, err = capfd.readouterr()
        lines = [line.split("\t") for line in out.splitlines() if not line.startswith("#")]
        return code, {(int(line[1]), int(line[2])) for line in lines}, err
    if command == "cut":
        cut = capture.with_name("cut.pm")
        words += ["-o", str(cut), "--force"]
        code = run(tcpkmon, ["cut", str(capture), *words], prog="tcpkmon")
        err = capfd.readouterr().err
        if code:
            return code, set(), err
        with open_capture(cut) as found:
            kept = ~found.control()
            pairs = zip(found.column("lport")[kept], found.column("rport")[kept], strict=True)
            return code, {(int(one), int(other)) for one, other in pairs} - {(1, 2)}, err
    words += ["--format", "json"] if command == "connections" else ["--json"]
    code = run(tcpkmon, [command, str(capture), *words], prog="tcpkmon")
    out, err = capfd.readouterr()
    return code, ends_of_rows(out, "connections" if out and command != "requests" else None), err


GOOD = (0, 3, 5)
"""Of the readers: the first number of this capture is missing, and nothing in it adds up."""
COMMANDS = ["pmgraph", "why", "connections", "requests", "cut"]


@pytest.mark.parametrize("command", COMMANDS)
def test_both_ends_in_any_order(command: str, capture: Path, cuttable: Path, capfd: Any) -> None:
    path = cuttable if command == "cut" else capture
    for ports in (["40000.80"], ["80.40000"]):
        code, ends, _ = shown(command, path, ports, capfd)
        assert code in GOOD and ends == BOTH, ports
    assert shown(command, path, ["443.40001"], capfd)[1] == {(40001, 443)}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_there(command: str, capture: Path, cuttable: Path, capfd: Any) -> None:
    path = cuttable if command == "cut" else capture
    code, ends, said = shown(command, path, ["40000.81", "7.8"], capfd)
    assert code == UsageError.exit_code and not ends
    assert f"{path}: no connection 40000.81, 7.8" in said
    code, ends, said = shown(command, path, ["80.40000", "7.8"], capfd)
    assert code in GOOD and ends == BOTH and f"{path}: no connection 7.8" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_one_port_is_that_of_either_end(
    command: str, capture: Path, cuttable: Path, capfd: Any
) -> None:
    path = cuttable if command == "cut" else capture
    assert shown(command, path, ["40000"], capfd)[1] == BOTH
    assert shown(command, path, ["443"], capfd)[1] == {(40001, 443)}
    assert f"{path}: no connection 7;" in shown(command, path, ["7"], capfd)[2]
