# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon decode` as people call it: outputs, exit codes, what it says of losses and damage."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.commands.tcpkmon import command as tcpkmon
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.export import table_folder
from tcpkmon.formats.klogger.encode import encode_preamble
from tests.unit.log_files import CLOCK, ROOT, LogMaker

parquet = pytest.importorskip("pyarrow.parquet")


def decode(*args: str | Path) -> int:
    return run(tcpkmon, ["decode", *map(str, args)], prog="tcpkmon")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    maker = LogMaker().add("KLOGGER_START")
    maker.add("SCHEDOUT", {"pid": 1}).add("EVERY", {"how": "RR", "text": "hi", "raw": b"\1"})
    return maker.add("KLOGGER_FINISH").write(tmp_path / "kernlog.dump.cpu0")


def test_filters_and_formats(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert decode(log, "--format", "json", "--event", "SCHEDOUT,EVERY", "--where", "pid=1") == 0
    [line] = capfd.readouterr().out.splitlines()
    assert json.loads(line) == {
        "header": {"type": "SCHEDOUT", "serial": 3, "timestamp": CLOCK[0] + 3000, "cpu": 0},
        "pid": 1,
    }
    assert decode(log, "--format=csv", "--time=iso", "--since=2024-11-21T14:40:00.000004") == 0
    rows = list(csv.DictReader(capfd.readouterr().out.splitlines()))
    assert [row["timestamp"] for row in rows] == [
        f"2024-11-21T14:40:00.00000{n}000Z" for n in (4, 5, 6)
    ]


def test_losses_and_an_unknown_end_are_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lossy = LogMaker().skip(4).add("EMPTY").add("KLOGGER_FINISH").write(tmp_path / "lossy")
    assert decode(lossy, "--event", "EMPTY") == 3
    assert "4 events lost; 4 serials missing in 1 gaps" in capfd.readouterr().err
    crashed = LogMaker().add("EMPTY").write(tmp_path / "crashed")
    assert decode(crashed) == 3
    told = capfd.readouterr()
    assert told.err.count("\n") == 1
    assert "tail unknown: the file does not end with KLOGGER_FINISH" in told.err
    assert '"EMPTY"' in told.out


def test_damage_is_told_and_the_good_part_decoded(
    log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    maker = LogMaker().add("EMPTY").end_dump().add("EMPTY").add("KLOGGER_FINISH")
    cut = tmp_path / "cut\x1b[31m"
    cut.write_bytes(maker.data()[:-9])
    assert decode(log, cut, "--format", "json") == 5
    told = capfd.readouterr()
    assert "\x1b" not in told.err
    assert "cut\\x1b[31m: at offset" in told.err and "dump 1 is cut off" in told.err
    assert told.out.count('"EMPTY"') == 1 and '"SCHEDOUT"' in told.out


def test_output_files(log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert decode(log, "--format", "json", "-o", out) == 0
    assert len(out.read_text().splitlines()) == 6
    assert decode(log, "-o", out) == 1
    assert "is there already" in capfd.readouterr().err
    assert decode(log, "-o", out, "--force") == 0
    assert out.read_text().startswith("[\n{")
    assert decode(log, "-o", log, "--force") == 2
    (tmp_path / "link").symlink_to(out)
    assert decode(log, "-o", tmp_path / "link") == 1
    assert sorted(os.listdir(tmp_path)) == ["kernlog.dump.cpu0", "link", "out.json"]


def test_parquet_has_a_file_for_each_event(
    log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tables"
    assert decode(log, "--format", "parquet", "-o", folder) == 0
    names = ["DUMP_BEGIN", "DUMP_FINISH", "EVERY", "KLOGGER_FINISH", "KLOGGER_START", "SCHEDOUT"]
    assert sorted(path.stem for path in folder.iterdir()) == names
    table = parquet.read_table(folder / "EVERY.parquet")
    [row] = table.to_pylist()
    head = {"timestamp": CLOCK[0] + 4000, "serial": 4, "cpu": 0}
    assert {key: row[key] for key in head} == head
    assert (row["how"], row["text"], row["raw"]) == ("RR", "hi", b"\1\0\0\0")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["timestamp"], kinds["serial"], kinds["a"], kinds["h"]) == (
        "int64", "uint64", "int16", "uint64",
    )  # fmt: skip
    header = json.loads(table.schema.metadata[b"klogger.header"])
    assert header["kernel"] == "6.18.0" and "event EVERY" in header["schema"]
    assert decode(log, "--format", "parquet", "-o", folder) == 1
    assert "is there already" in capfd.readouterr().err
    assert decode(log, "--format", "parquet", "-o", folder, "--force") == 0


def test_parquet_follows_no_link_and_stays_in_its_folder(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns the folder, or the one above, may swap it while files are written."""
    folder, victim, gone = (tmp_path / name for name in ("tables", "victim", "gone"))
    victim.mkdir()
    folder.symlink_to(victim)
    assert decode(log, "--format", "parquet", "-o", folder) == 1
    folder.unlink()
    folder.mkdir()
    real = table_folder.create_file

    def swap(*args: Any, **named: Any) -> Any:
        if not folder.is_symlink():
            folder.rename(gone)
            folder.symlink_to(victim)
        return real(*args, **named)

    monkeypatch.setattr(table_folder, "create_file", swap)
    assert decode(log, "--format", "parquet", "-o", folder) == 0
    assert os.listdir(victim) == []
    assert len(os.listdir(gone)) == 6


def test_a_long_log_is_decoded_in_little_memory(tmp_path: Path) -> None:
    """The log is larger than all the memory that the decoder ever has, libraries and all."""
    maker = LogMaker("event BIG { string1000 text }")
    number, size = maker.format.event("BIG").number, maker.format.event("BIG").size
    rows = np.zeros(10_000, f"V{24 + size}")
    numbers = np.full(len(rows), number)
    path = tmp_path / "long"
    with path.open("wb") as out:
        out.write(encode_preamble(maker.header))
        for place in range(24):
            times = np.arange(len(rows), dtype=np.uint64) + np.uint64(place * len(rows))
            maker.add_rows(numbers, rows, times)
            if place == 23:
                maker.add("KLOGGER_FINISH")
            out.write(maker.end_dump().dumps[-1])
            maker.dumps[-1] = b""
    script = (
        "import re, sys; from tcpkmon.formats.base.cli import run; "
        "from tcpkmon.formats.commands.decode import command; "
        "code = run(command, sys.argv[1:]); "
        # Not getrusage(): its peak is that of this process, from before the child's exec.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]; "
        "print(peak, file=sys.stderr); "
        "sys.exit(code)"
    )
    args = [sys.executable, "-c", script, str(path), "--format", "json", "--event", "BIG"]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, check=True, timeout=200)
    assert done.stdout.count(b"\n") == 240_000
    assert path.stat().st_size > 230 << 20
    assert int(done.stderr) * 1024 < 230 << 20
