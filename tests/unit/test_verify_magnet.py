# SPDX-License-Identifier: Apache-2.0
"""verify of MAGNeT files: whatever is missing, there twice or changed is found, and what it says of
the log's proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_CONTROL_BYTES
from tcpkmon.formats.magnet.control import Block, encode, encode_header
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import CONTROL, LOST
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, verify_folder, verify_magnet
from tcpkmon.formats.verify.magnet import digest_of
from tests.full import IS_FULL
from tests.kept.make import unpack
from tests.unit.log_files import MagnetBuilder, clean_file, in_layout, lossy_file

SIZE = 24


def test_a_clean_file(tmp_path: Path) -> None:
    report = verify_magnet(clean_file(tmp_path / "a").write())
    assert (report.exit_code, report.verdict) == (0, "adds up: nothing lost")
    assert report.end_reason == "asked" and report.proven_end and not report.unchecked
    assert report.totals.in_file == report.totals.attempts == 182
    assert report.notes[-1].startswith("the proof is that of the log")


def test_it_says_what_verify_says_of_the_log(tmp_path: Path) -> None:
    made = lossy_file(tmp_path / "a")
    made.lose("IP_SEND", 1, 2).logs[0].programs["one"] = (3, 0)
    report = verify_magnet(made.write())
    log = verify_folder(tmp_path / "a.klog")[-1]
    assert report.exit_code == log.exit_code == 3 and not report.problems
    assert report.verdict == log.verdict
    assert report.ring_lost == report.seq_lost == 11 and report.seq_gaps == 3
    assert report.missed_total == 3 and report.lost_total == log.lost_total == 14
    for name in ("attempts", "written", "in_file", "lost_total"):
        assert getattr(report.totals, name) == getattr(log.totals, name)
    with tcpkmon.open(tmp_path / "a") as reader:
        assert reader.lost == 14


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_every_layout(tmp_path: Path, order: str, bits: int) -> None:
    path = lossy_file(tmp_path / "a").write()
    report = verify_magnet(in_layout(path, tmp_path / "b", order, bits))
    assert report.verdict == "adds up: 9 lost, all accounted for"
    assert report.totals == verify_magnet(path).totals


def test_what_the_kernel_does_not_count_is_not_proven(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a", unproven={"IP_SEND": "kprobe:ip_queue_xmit"})
    report = verify_magnet(made.log("IP_SEND").write())
    assert (report.exit_code, report.problems) == (3, [])
    assert "not proven for 1 event(s)" in report.verdict
    assert report.unproven == {"MAGNET_IP_SEND": "kprobe:ip_queue_xmit"}


@pytest.mark.parametrize("data", [False, True])
def test_every_changed_byte_is_found(tmp_path: Path, data: bool) -> None:
    path = clean_file(tmp_path / "a", data, count=1).write()
    whole = path.read_bytes()
    with MagnetFile(path) as file:
        first = file.first * file.layout.size
    step = 1 if IS_FULL else 3
    some = range(0, first, 61 if IS_FULL else 997) if not data else ()
    for at in (*range(0, 200, step), *some, *range(first, len(whole), 7 * step)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        if whole[:8] == changed[:8]:
            assert verify_magnet(path).exit_code == 5, at
            continue
        assert "not a MAGNeT file" in str(verify_magnet(path).error)


def test_missing_and_doubled_records_are_found(tmp_path: Path) -> None:
    path = lossy_file(tmp_path / "a").write()
    whole = path.read_bytes()
    with MagnetFile(path) as file:
        first, count = file.first, file.count
    for at in (*range(first, count, 5 if IS_FULL else 25), *range(count - 30, count, 5)):
        row = whole[at * SIZE : (at + 1) * SIZE]
        path.write_bytes(whole[: at * SIZE] + whole[(at + 1) * SIZE :])
        assert verify_magnet(path).exit_code == 5, f"without {at}"
        path.write_bytes(whole[: at * SIZE] + row + whole[at * SIZE :])
        assert verify_magnet(path).exit_code == 5, f"{at} twice"


Edit = Callable[[dict[str, Any]], Any]
Change = Callable[[np.ndarray], np.ndarray]


def forged(
    path: Path, rows: Change = lambda rows: rows, proof: Edit | None = None, digest: bool = True
) -> Report:
    """verify of the file with other records, and their checksums, or another proof in its header.

    digest: that of the proof is made right, too.
    """
    with MagnetFile(path) as file:
        header, layout = file.header, file.layout
        if proof is not None:
            proof(header["proof"])
            if digest:
                header["proof"]["digest"] = digest_of(header["proof"])
        out, block, records = encode_header(header, layout), Block(layout.size), 0
        for found in Walk(file):
            if isinstance(found, Piece):
                data = rows(found.rows.copy()).tobytes()
                block.add(data)
                records += len(data) // layout.size
                out += data
            else:
                out += encode(found.values | block.values() | {"records": records}, layout)
                block = Block(layout.size)
    path.write_bytes(out)
    return verify_magnet(path)


def more_lost(rows: np.ndarray) -> np.ndarray:
    rows["size"][rows["event"] == LOST] += 1
    return rows


def other_event(rows: np.ndarray) -> np.ndarray:
    rows["event"][1] = rows["event"][2]
    return rows


def put(name: str, value: Any) -> Edit:
    return lambda proof: proof.update({name: value})


def in_event(name: str, step: int) -> Edit:
    def edit(proof: dict[str, Any]) -> None:
        proof["events"]["MAGNET_IP_SEND"][name] += step

    return edit


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"rows": more_lost}, "LOST counts 12, the proof 9"),
        ({"rows": other_event}, "records of MAGNET_SOCK_SEND, but the proof counts 20"),
        ({"rows": lambda rows: rows[:-3]}, "LOST counts 5, the proof 9"),
        ({"proof": put("seq_lost", 8)}, "LOST counts 9, the proof 8"),
        ({"proof": in_event("in_file", 1)}, "21 records of MAGNET_IP_SEND, but the proof"),
        ({"proof": put("problems_total", 2)}, "the log does not add up: 2 problem(s)"),
        ({"proof": in_event("attempts", 1), "digest": False}, "digest of the proof in the header"),
        ({"proof": put("digest", 5), "digest": False}, "digest of the proof in the header"),
        ({"proof": put("events", [])}, "the proof in the header cannot be read"),
        ({"proof": put("events", {"X": {}})}, "the proof in the header cannot be read"),
        ({"proof": put("missed", [{}])}, "the proof in the header cannot be read"),
        ({"proof": put("notes", 5)}, "the proof in the header cannot be read"),
        ({"proof": put("seq_lost", True)}, "the proof in the header cannot be read"),
        ({"proof": put("unproven", {"a": 1})}, "the proof in the header cannot be read"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_its_proof(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    path = lossy_file(tmp_path / "a").write()
    assert forged(path).exit_code == 3, "nothing changed"
    report = forged(path, **change)
    assert report.exit_code == 5
    assert any(what in problem.what for problem in report.problems), report.problems
    assert report.as_json()["exit_code"] == 5
    with tcpkmon.open(path) as reader:  # whatever is forged
        assert reader.lost >= 0


@pytest.mark.parametrize("size", [10, MOST_CONTROL_BYTES])
def test_beginnings_of_entries_take_no_more_than_linear_time(tmp_path: Path, size: int) -> None:
    path = clean_file(tmp_path / "a", count=1).write()
    with MagnetFile(path) as file:
        rows = np.zeros(20_000, file.layout.dtype)
    rows["event"], rows["size"] = CONTROL, size
    with path.open("ab") as out:
        out.write(rows.tobytes())
    before = time.process_time()
    assert verify_magnet(path).problems_total >= len(rows)
    assert time.process_time() - before < 5, "each read on to the end"


def blocks_of(path: Path) -> Iterator[tuple[int, int]]:
    """Where each block with its control entry begins and ends, in records."""
    with MagnetFile(path) as file:
        start = file.first
        for piece in Walk(file):
            if isinstance(piece, Entry):
                yield start, piece.start + piece.count
                start = piece.start + piece.count


def test_missing_and_doubled_blocks_are_found(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a")
    for _ in range(40):
        made.log("IP_SEND", 0, 500).log("DEV_SEND", 1, 500)
    path = made.write()
    whole = path.read_bytes()
    blocks = list(blocks_of(path))
    assert len(blocks) == 3
    for start, stop in blocks:
        block = whole[start * SIZE : stop * SIZE]
        path.write_bytes(whole.replace(block, b""))
        assert verify_magnet(path).exit_code == 5
        path.write_bytes(whole.replace(block, block * 2))
        assert verify_magnet(path).exit_code == 5
    first, second = (whole[a * SIZE : b * SIZE] for a, b in blocks[:2])
    path.write_bytes(whole.replace(first + second, second + first))
    assert verify_magnet(path).exit_code == 5


# Files of before.


@pytest.mark.parametrize(("name", "code"), [("plain", 0), ("lossy", 3), ("killed", 3), ("cut", 3)])
def test_a_file_of_before(tmp_path: Path, name: str, code: int) -> None:
    unpack(f"magnet-{name}", tmp_path)
    (path,) = tmp_path.iterdir()
    report = verify_magnet(path)
    assert report.exit_code == code and not report.problems
    assert "its ledgers, which tcpkmon until commit a475560f adds up" in report.unchecked
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert verify_magnet(path).exit_code == 5


def test_no_repair_and_no_anonymising(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = clean_file(tmp_path / "a", count=1).write()
    for words, told in (
        (["repair", str(path)], "repair the log, then export it"),
        (["anonymise", str(path)], "anonymise the log, then export it"),
    ):
        assert cli.run(command, [*words, "-o", str(tmp_path / "new")], prog="tcpkmon") == 2
        output = capfd.readouterr().err
        assert told in output and output.count("\n") == 1
    unpack("magnet-rotated", tmp_path)
    words = ["anonymise", str(tmp_path / "magnet-rotated"), "-o", str(tmp_path / "new")]
    assert cli.run(command, words, prog="tcpkmon") == 2
    with pytest.raises(UsageError):
        format_of(path).repair(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
