# SPDX-License-Identifier: Apache-2.0
"""verify and repair of MAGNeT files: whatever is missing, there twice or changed is found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.limits import MOST_CONTROL_BYTES
from tcpkmon.formats.magnet.control import Block, encode
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import CONTROL, FIRST_EVENT, LOST
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk
from tcpkmon.formats.verify import repair_magnet, verify_magnet
from tests.unit.magnet_builder import MagnetBuilder, clean_file, in_layout, lossy_file
from tests.unit.test_magnet_stream import rows_of

SIZE = 24


def test_a_clean_file(tmp_path: Path) -> None:
    report = verify_magnet(clean_file(tmp_path / "a").write())
    assert (report.exit_code, report.verdict) == (0, "adds up: nothing lost")
    assert (report.checkpoints, report.clock_pairs, report.clock_steps) == (2, 1, 0)
    assert report.end_reason == "asked" and report.proven_end and not report.unchecked
    assert report.totals.in_file == report.totals.attempts == 182


def test_losses_add_up(tmp_path: Path) -> None:
    report = verify_magnet(lossy_file(tmp_path / "a").write())
    assert report.exit_code == 3 and not report.problems
    assert report.verdict == "adds up: 9 lost, all accounted for"
    assert report.ring_lost == report.seq_lost == 9 and report.seq_gaps == 3


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_every_layout(tmp_path: Path, order: str, bits: int) -> None:
    path = lossy_file(tmp_path / "a").write()
    report = verify_magnet(in_layout(path, tmp_path / "b", order, bits))
    assert report.verdict == "adds up: 9 lost, all accounted for"
    assert report.totals == verify_magnet(path).totals


def test_a_capture_that_was_killed(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a").write(None)
    report = verify_magnet(path)
    assert report.exit_code == 3 and report.tail_unknown and not report.problems
    assert report.after_checkpoint == 82 and "last 83 records" in report.unchecked[0]
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    assert verify_magnet(path).exit_code == 3 and verify_magnet(path).notes
    with tcpkmon.open(path) as reader:
        assert not reader.complete


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a", count=2).write()
    data = path.read_bytes()
    with MagnetFile(path) as file:
        start = file.first * SIZE
    for size in range(start, len(data), 31):
        path.write_bytes(data[:size])
        report = verify_magnet(path)
        # As for all formats, what is cut off belongs to the unknown tail.
        assert (report.exit_code, report.tail_unknown) == (3, True), (size, report.problems)
    path.write_bytes(data[: start - 1])
    assert "header" in str(verify_magnet(path).error)


@pytest.mark.parametrize("data", [False, True])
def test_every_changed_byte_is_found(tmp_path: Path, data: bool) -> None:
    path = clean_file(tmp_path / "a", data, count=1).write()
    whole = path.read_bytes()
    with MagnetFile(path) as file:
        first = file.first * file.layout.size
    some = range(0, first, 41) if not data else ()
    for at in (*range(200), *some, *range(first, len(whole), 7 if data else 2)):
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
    for at in (*range(first, count, 5), *range(count - 30, count)):
        row = whole[at * SIZE : (at + 1) * SIZE]
        path.write_bytes(whole[: at * SIZE] + whole[(at + 1) * SIZE :])
        report = verify_magnet(path)
        if at == count - 1:  # as if the file had been cut off there
            assert report.exit_code == 3 and report.tail_unknown
        else:
            assert report.exit_code == 5, f"without {at}"
        path.write_bytes(whole[: at * SIZE] + row + whole[at * SIZE :])
        assert verify_magnet(path).exit_code == 5, f"{at} twice"


def blocks_of(path: Path) -> Iterator[tuple[int, int]]:
    """Where each block with its control entry begins and ends, in records."""
    with MagnetFile(path) as file:
        start = file.first
        for piece in Walk(file):
            if isinstance(piece, Entry):
                yield start, piece.start + piece.count
                start = piece.start + piece.count


def test_missing_and_doubled_blocks_are_found(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a").write()
    whole = path.read_bytes()
    blocks = list(blocks_of(path))
    assert len(blocks) == 3
    for number, (start, stop) in enumerate(blocks):
        block = whole[start * SIZE : stop * SIZE]
        path.write_bytes(whole.replace(block, b""))
        report = verify_magnet(path)
        assert report.exit_code == (3 if number == 2 else 5)  # without END: the tail is unknown
        path.write_bytes(whole.replace(block, block * 2))
        assert verify_magnet(path).exit_code == 5
    first, second = (whole[a * SIZE : b * SIZE] for a, b in blocks[:2])
    path.write_bytes(whole.replace(first + second, second + first))
    assert verify_magnet(path).exit_code == 5


Edit = Callable[[dict[str, Any]], Any]


def edited(path: Path, kind: str, edit: Edit, number: int = -1) -> Path:
    """Change the values of a control entry of a kind, with its checksum made right again."""
    with MagnetFile(path) as file:
        out = file.read(0, file.first).tobytes()
        found = [p if isinstance(p, Entry) else Piece(p.start, p.rows.copy()) for p in Walk(file)]
        chosen = [one for one in found if isinstance(one, Entry) and one.kind == kind][number]
        for one in found:
            if isinstance(one, Piece):
                out += one.rows.tobytes()
                continue
            if one is chosen:
                edit(one.values)
            out += encode(one.values, file.layout)
    path.write_bytes(out)
    return path


def put(name: str, value: Any) -> Edit:
    return lambda values: values.update({name: value})


def add(table: str, column: int, step: int) -> Edit:
    def edit(values: dict[str, Any]) -> None:
        values[table][0][column] += step

    return edit


@pytest.mark.parametrize(
    ("kind", "number", "edit", "what"),
    [
        ("LEDGER", -1, add("points", 2, 1), "21 attempts, but what became of them adds up to 20"),
        ("LEDGER", -1, add("points", -1, 1), "20 records in the file before ledger 1"),
        ("LEDGER", -1, add("cpus", 1, 1), "serials given out, but its events add up to"),
        ("LEDGER", -1, add("cpus", 2, 1), "records read"),
        ("LEDGER", 0, add("points", 2, 1000), "attempts"),
        ("LEDGER", -1, put("final", 0), "END without a final ledger"),
        ("LEDGER", -1, put("final", 2), "a LEDGER has no number"),
        ("LEDGER", -1, put("checkpoint", 0), "ledger 0 where 1 is due"),
        ("LEDGER", -1, put("points", []), "0 records in the file|MAGNET_SOCK_SEND"),
        ("LEDGER", -1, put("points", [[0, 3]]), "no good points"),
        ("LEDGER", -1, put("points", [[0, 200, *[0] * 15]]), "a CPU or an event that there is not"),
        ("LEDGER", -1, put("cpus", [[0, 0, 0, 0, 0, 0]] * 2), "a row twice"),
        ("LEDGER", -1, put("cpus", [[5000, 0, 0, 0, 0, 0]]), "a CPU that there cannot be"),
        ("LEDGER", -1, put("programs", {"x": [1]}), "no good programs"),
        ("LEDGER", 0, put("programs", {"on_send": [5, 0]}), "falls from 5 to 0"),
        ("END", -1, put("reason", 77), "END has no known reason"),
        ("END", -1, put("reason", 5), "END has no known reason"),
        ("END", -1, put("kind", "OTHER"), "unknown kind 'OTHER'"),
        ("LEDGER", -1, put("number", 7), "control entry 7 where 1 is due"),
        ("LEDGER", -1, put("records", 7), "7 records before a control entry are"),
        ("LEDGER", -1, put("sums", []), "lacks what each has"),
        ("LEDGER", -1, lambda v: v["sums"].__setitem__(0, 1), "checksum of records is wrong"),
        ("LEDGER", -1, put("time_ns", -1), ""),
    ],
)  # fmt: skip
def test_a_ledger_that_does_not_add_up(
    tmp_path: Path, kind: str, number: int, edit: Edit, what: str
) -> None:
    import re

    path = clean_file(tmp_path / "a").write()
    if not what:
        with pytest.raises(OverflowError):  # no such file can be made
            edited(path, kind, edit, number)
        return
    report = verify_magnet(edited(path, kind, edit, number))
    assert report.exit_code == 5
    assert any(re.search(what, problem.what) for problem in report.problems), report.problems
    assert json.dumps(report.as_json())


def test_lost_and_the_ledger_disagree(tmp_path: Path) -> None:
    path = lossy_file(tmp_path / "a").write()
    whole = path.read_bytes()
    with MagnetFile(path) as file:
        out, block = file.read(0, file.first).tobytes(), Block(SIZE)
        for piece in Walk(file):
            if isinstance(piece, Piece):
                rows = piece.rows.copy()
                rows["size"][rows["event"] == LOST] += 1
                block.add(rows.tobytes())
                out += rows.tobytes()
            else:
                out += encode(piece.values | block.values(), file.layout)
                block = Block(SIZE)
    path.write_bytes(out)
    report = verify_magnet(path)
    assert report.exit_code == 5 and "more than the 9 that are missing" in report.problems[0].what
    path.write_bytes(whole)
    path = edited(path, "LEDGER", lambda values: values["cpus"][1].__setitem__(1, 95))
    assert verify_magnet(path).exit_code == 5


def test_switches(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a").log("IP_SEND", 0, 4)
    point = made.places["IP_SEND"][0]
    made.change(0, point, 100, 200, 1, 0, 0).change(0, point, 300, 400, 0, 1, 0)
    report = verify_magnet(made.write())
    assert report.exit_code == 0 and "while it was switched on" in report.verdict
    assert len(report.off) == 1 and report.off[0].startswith("MAGNET_IP_SEND was off from")
    broken = edited(
        tmp_path / "a", "CHANGE", lambda values: values["change"].__setitem__("old", 1)
    )
    assert "but 0 was in force" in verify_magnet(broken).problems[0].what
    edited(tmp_path / "a", "CHANGE", lambda values: values["change"].pop("kind"))
    assert "no good values" in verify_magnet(tmp_path / "a").problems[0].what


def test_what_the_kernel_does_not_count_is_not_proven(tmp_path: Path) -> None:
    made = MagnetBuilder(tmp_path / "a", unproven={"IP_SEND": "kprobe:ip_queue_xmit"})
    report = verify_magnet(made.log("IP_SEND").write())
    assert (report.exit_code, report.problems) == (3, [])
    assert "not proven for 1 event(s)" in report.verdict


@pytest.mark.parametrize("size", [10, MOST_CONTROL_BYTES])
def test_beginnings_of_entries_take_no_more_than_linear_time(tmp_path: Path, size: int) -> None:
    path = clean_file(tmp_path / "a", count=1).write(None)
    with MagnetFile(path) as file:
        rows = np.zeros(60_000, file.layout.dtype)
    rows["event"], rows["size"] = CONTROL, size
    with path.open("ab") as out:
        out.write(rows.tobytes())
    before = time.process_time()
    assert verify_magnet(path).problems_total == len(rows)
    assert time.process_time() - before < 5, "each read on to the end"


# Repair.


def test_repair_of_what_is_whole_changes_nothing(tmp_path: Path) -> None:
    for name, made in (("a", clean_file(tmp_path / "a")), ("b", lossy_file(tmp_path / "b"))):
        path = made.write()
        done = repair_magnet(path, tmp_path / f"{name}.new")
        assert (tmp_path / f"{name}.new").read_bytes() == path.read_bytes()
        assert (done.missing, done.cut_bytes) == (0, 0)


def test_repair_of_a_capture_that_was_killed(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a").write(None)
    path.write_bytes(path.read_bytes()[:-5])
    done = repair_magnet(path, tmp_path / "new")
    assert (done.kept, done.missing, done.cut_bytes) == (182, 0, SIZE - 5)
    assert done.report.exit_code == 3 and not done.report.problems
    assert done.report.end_reason == "error" and done.report.tail_unknown
    with tcpkmon.open(tmp_path / "new") as reader:
        assert reader.complete and not reader.damaged
    assert rows_of(tmp_path / "new").tobytes() == rows_of(path).tobytes()


def big_file(path: Path) -> MagnetBuilder:
    """Several chunks in one block."""
    made = MagnetBuilder(path)
    for number in range(10):
        made.log("IP_SEND", 0, 500, connection=number).log("DEV_SEND", 1, 500).release()
    return made


def test_repair_leaves_out_one_chunk(tmp_path: Path) -> None:
    path = big_file(tmp_path / "a").write()
    rows, whole = rows_of(path), path.read_bytes()
    with MagnetFile(path) as file:
        first = file.first
    for how in ("changed", "missing", "doubled"):
        at = (first + 5000) * SIZE
        data = {
            "changed": whole[:at] + b"\xff" + whole[at + 1 :],
            "missing": whole[:at] + whole[at + SIZE :],
            "doubled": whole[:at] + whole[at : at + SIZE] + whole[at:],
        }[how]
        path.write_bytes(data)
        assert verify_magnet(path).exit_code == 5
        done = repair_magnet(path, tmp_path / how)
        assert (done.kept, done.missing) == (10_001 - 1024, 1024)
        assert not done.report.problems and done.report.exit_code == 3, done.report.problems
        found = rows_of(tmp_path / how)
        lost = np.flatnonzero(found["event"] == LOST)
        assert found["size"][lost].tolist() == [1024] and lost.tolist() == [4096]
        kept = np.delete(found, lost)
        assert (kept == np.concatenate((rows[:4096], rows[5120:]))).all()
        with tcpkmon.open(tmp_path / how) as reader:
            assert reader.lost == 1024 and not reader.damaged


def test_repair_without_a_control_entry(tmp_path: Path) -> None:
    made = clean_file(tmp_path / "a")
    made.checkpoint()
    path = made.log("IP_SEND", 0, 5).write()
    whole = path.read_bytes()
    with MagnetFile(path) as file:
        entries = [piece for piece in Walk(file) if isinstance(piece, Entry)]
    for number, entry in enumerate(entries):
        at = entry.start * SIZE + 3
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        done = repair_magnet(path, tmp_path / f"{number}")
        assert not done.report.problems, (number, entry.kind, done.report.problems)
        # The final ledger proves the end without END.
        assert done.report.exit_code == (0 if entry.kind == "END" else 3)
        if entry.kind == "LEDGER":
            assert done.missing == entry.values["block"]


def test_repair_of_doubled_blocks(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a").write()
    whole = path.read_bytes()
    for number, (start, stop) in enumerate(blocks_of(path)):
        block = whole[start * SIZE : stop * SIZE]
        path.write_bytes(whole.replace(block, block * 2))
        done = repair_magnet(path, tmp_path / f"{number}")
        assert (tmp_path / f"{number}").read_bytes() == whole
        assert done.missing == 0
        path.write_bytes(whole)


def test_repair_leaves_out_ledgers_that_do_not_add_up(tmp_path: Path) -> None:
    path = edited(clean_file(tmp_path / "a").write(), "LEDGER", add("points", 2, 1))
    done = repair_magnet(path, tmp_path / "new")
    assert not done.report.problems and done.report.exit_code == 3
    assert done.report.tail_unknown and done.report.end_reason == "error"


def test_an_error_of_the_collector(tmp_path: Path) -> None:
    report = verify_magnet(clean_file(tmp_path / "a").write(EndReason.ERROR))
    assert report.end_reason == "error" and report.exit_code == 0


def test_unknown_events_are_left_out(tmp_path: Path) -> None:
    path = clean_file(tmp_path / "a").write(None)
    with MagnetFile(path) as file:
        row = np.zeros(3, file.layout.dtype)
        row["event"] = FIRST_EVENT, 250, 70_000
    with path.open("ab") as out:
        out.write(row.tobytes())
    report = verify_magnet(path)
    assert "2 record(s) of unknown events, the first 250" in report.problems[0].what
    with tcpkmon.open(path) as reader:
        assert reader.damaged and sum(len(t) for p in reader.tables() for t in p.values()) == 184
    done = repair_magnet(path, tmp_path / "new")
    assert not done.report.problems and done.kept == 184
