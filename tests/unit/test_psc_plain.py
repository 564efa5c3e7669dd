# SPDX-License-Identifier: Apache-2.0
"""`export --format psc1`: read by a reader that was written from the report of 2000 alone."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.base import cli
from tcpkmon.formats.commands import export
from tcpkmon.formats.psc.reader import open_capture
from tests.kept.make import unpack
from tests.unit.forging import PLACES, PscFile

END, MODS, VERSION, ENTRY_SIZE, DEFINITION, ENDIAN, MCLSIZE = range(7)


def read_report(path: Path) -> tuple[dict[str, tuple[int, int, int]], list[dict[str, Any]]]:
    """Columns by name (offset, length, flags) and entries. ValueError for what the report lacks."""
    data, at, size, order = path.read_bytes(), 0, 0, "<"
    columns: dict[str, tuple[int, int, int]] = {}
    while True:
        kind, length = struct.unpack_from(">HH", data, at)
        body = data[at + 4 : at + length]
        if kind == ENTRY_SIZE:
            (size,) = struct.unpack_from(">H", body)
        elif kind == DEFINITION:
            name, offset, count, _, _, flags = struct.unpack(">24sHBBHH", body)
            if count:
                columns[name.rstrip(b"\0").decode()] = offset, count, flags
        elif kind == ENDIAN:
            order = "<" if struct.unpack(">I", body)[0] == 0 else ">"
        elif kind not in (END, MODS, VERSION, MCLSIZE):
            raise ValueError(f"kind {kind}")
        at += length
        if kind == END:
            break
    entries = []
    for start in range(at, len(data), size):
        row: dict[str, Any] = {}
        for name, (offset, count, flags) in columns.items():
            raw = data[start + offset : start + offset + count]
            sign = "little" if order == "<" and flags == 0 else "big"
            row[name] = raw if flags == 2 else int.from_bytes(raw, sign)  # type: ignore[arg-type]
        row["time"] = struct.unpack(f"{order}II", data[start + columns["time"][0] :][:8])
        entries.append(row)
    return columns, entries


@pytest.mark.parametrize("name", ["psc-plain", "psc-lossy", "psc-rotated", "psc-killed"])
def test_a_reader_of_the_report_reads_it(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    paths = sorted(tmp_path.rglob("*.pm"))
    path = paths[0] if len(paths) == 1 else paths[0].parent
    plain = tmp_path / "plain"
    lost = {"psc-lossy": 734}.get(name, 0)
    code = cli.run(export.command, ["--format", "psc1", "-o", str(plain), str(path)])
    assert code == (3 if lost or name == "psc-killed" else 0)
    columns, entries = read_report(plain)
    names = ("lport", "rport", "snd_cwnd")
    with open_capture(path) as capture:
        assert set(columns) == set(capture.names)
        snapshots = ~capture.control()
        found = [capture.column(one)[snapshots].tolist() for one in names]
    assert [tuple(one[name] for name in names) for one in entries] == [*zip(*found, strict=True)]
    assert all(one["lport"] or one["rport"] for one in entries)
    assert [one["seq_no"] for one in entries] == [*range(1, len(entries) + 1)]  # lost at the end
    with open_capture(plain) as again:
        assert not again.damaged


def test_a_gap_in_the_numbers_is_a_loss(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    file = PscFile(path.read_bytes())
    file.drop(range(100, 111))
    path.write_bytes(file.encode(leave=PLACES))
    words = ["--format", "psc1", "-o", str(tmp_path / "p"), str(path)]
    assert cli.run(export.command, words) in (3, 5)
    numbers = [one["seq_no"] for one in read_report(tmp_path / "p")[1]]
    assert numbers == [*range(1, 101), *range(112, len(numbers) + 12)]


def test_chosen_columns(tmp_path: Path) -> None:
    unpack("psc-plain", tmp_path)
    (path,) = tmp_path.rglob("*.pm")
    words = ["--format", "psc1", "--columns", "srtt_us", "-o", str(tmp_path / "p"), str(path)]
    assert cli.run(export.command, words) == 0
    columns, entries = read_report(tmp_path / "p")
    assert set(columns) == {"seq_no", "time", "lport", "rport", "srtt_us"} and entries
    unpack("klogger-plain", tmp_path)
    words[-1] = str(tmp_path / "klogger-plain")
    assert cli.run(export.command, [*words[:2], *words[-1:]]) == 2
