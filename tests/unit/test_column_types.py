# SPDX-License-Identifier: Apache-2.0
"""Files whose columns are of other types than their names say: an error in words, no traceback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.commands import check, connections, export, pmgraph, verify, why
from tcpkmon.formats.psc.columns import FLAG_INT_HOST, FLAG_INT_NET, FLAG_STRING
from tcpkmon.formats.psc.header import encode_header
from tcpkmon.formats.psc.reader import open_capture
from tests.full import first
from tests.unit.why_capture import DEFAULT, write_capture

COMMANDS: dict[str, tuple[Any, list[str]]] = {
    "verify": (verify.command, []),
    "why": (why.command, ["-v"]),
    "intervals": (why.command, ["--intervals"]),
    "connections": (connections.command, ["--columns", "all"]),
    "check": (check.command, ["srtt_max_us < 5", "--unproven-ok"]),
    "export": (export.command, ["--format", "csv"]),
    "pmgraph": (pmgraph.command, ["-T"]),
}


@pytest.mark.parametrize("name", first(10, ["lport", "location", "snd_max", *DEFAULT]))
def test_a_column_of_another_type(tmp_path: Path, name: str) -> None:
    whole = write_capture(tmp_path / "whole.pm", 60, 2)
    with open_capture(whole) as capture:
        header = capture.header
    body = whole.read_bytes()[len(encode_header(header)) :]
    (column,) = (one for one in header.columns if one.name == name)
    others = [replace(column, flags=flags)
              for flags in (FLAG_INT_HOST, FLAG_INT_NET, FLAG_STRING, FLAG_STRING | FLAG_INT_NET)
              if flags != column.flags]  # fmt: skip
    others += [replace(column, length=length) for length in (1, 3) if length < column.length]
    for other in others:
        columns = tuple(other if one is column else one for one in header.columns)
        path = tmp_path / "changed.pm"
        try:
            path.write_bytes(encode_header(replace(header, columns=columns)) + body)
        except TcpkmonError:  # the format has no such column
            continue
        for what, (command, options) in COMMANDS.items():
            ended = CliRunner().invoke(command, [str(path), *options]).exception
            assert ended is None or isinstance(ended, (SystemExit, TcpkmonError)), (what, other)
