# SPDX-License-Identifier: Apache-2.0
"""tcpkmon cut: what is left is proven, and all of it; what was cut is said and counted."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.base import cli, control, facts
from tcpkmon.formats.base.control import Checkpoint, End
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.commands.cut import command
from tcpkmon.formats.klogger.encode import Packed, finish_dump, pack_event
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import RECORD_HEAD_BYTES
from tcpkmon.formats.klogger.walk import list_bytes
from tcpkmon.formats.psc.header import KIND_SETTINGS, encode_header, text_data
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify.cut import cut_file
from tcpkmon.formats.verify.psc import verify_file
from tcpkmon.formats.verify.report import NOT_CLOSED
from tests.full import IS_FULL
from tests.fuzz.seeds import dumps
from tests.fuzz.seeds import dumps as psc_dumps
from tests.kept.make import unpack
from tests.unit.makers import LogMaker, Maker, make, make_logs
from tests.unit.psc_files import FURTHER, CaptureBuilder, clean_capture, full_capture
from tests.unit.test_recorder import last_second

_HEAD = np.dtype([("number", "=u4"), ("size", "=u4"), ("serial", "=u8"), ("time", "=u8")])


@dataclass(frozen=True)
class Cut:
    """Entries `start` to `stop` of a file are cut out; `records` of them are of events."""

    start: int
    stop: int
    records: int


def cut_psc(path: Path) -> Iterator[tuple[Cut, bytes]]:
    """Of a PSC file with the columns of the ledger."""
    with open_capture(path) as capture:
        rows = np.array(capture.array)
        order = rows.dtype["callvalue"].str[0]
        head = path.read_bytes()[: capture.array.offset]  # type: ignore[attr-defined]
        mask, seqs = capture.control(), capture.seq().astype(np.int64)
        numbered = [name for name in ("seq", "seq_no") if name in (rows.dtype.names or ())]
    marks = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    ledgers = np.flatnonzero(rows["location"] == Checkpoint.location)
    groups = [int(at) + 1 + _decode(rows, at, order).group for at in ledgers]
    places = sorted({1, *marks.tolist(), *ledgers.tolist(), *groups, len(rows) - 1})
    earlier = _decode(rows, ledgers[0], order).entries - int(ledgers[0])
    for start, stop in itertools.combinations(places, 2):
        rest = np.delete(rows, slice(start, stop))
        shift = int(seqs[stop] - seqs[start])
        left = np.delete(seqs, slice(start, stop))
        left[start:] -= shift
        for name in numbered:
            rest[name] = left.astype(np.uint64).astype(rest[name].dtype)
        gone = int((rows["location"][start:stop] == Checkpoint.location).sum())
        for at in range(start, len(rest)):
            if rest["location"][at] not in (Checkpoint.location, End.location):
                continue
            entry = _decode(rest, at, order)
            entries = earlier + at
            lost = int(left[at]) - 1 - entries
            if isinstance(entry, Checkpoint):
                entry = dataclasses.replace(
                    entry, number=entry.number - gone, entries=entries, lost=lost
                )
            else:
                entry = dataclasses.replace(
                    entry, entries=entries, lost=lost, checkpoints=entry.checkpoints - gone
                )
            rest["callvalue"][at] = entry.callvalue()
            control.words_view(rest, order)[at] = entry.words()
        yield Cut(start, stop, int((~mask[start:stop]).sum())), head + rest.tobytes()


def _decode(rows, at, order):  # type: ignore[no-untyped-def]
    words = control.words_view(rows, order)[at].tolist()
    return facts.decode(int(rows["callvalue"][at]), int(rows["location"][at]), words)


def cut_log(path: Path) -> Iterator[tuple[Cut, bytes]]:
    """Of a Klogger log: places are between its dumps, and in a dump between its events."""
    with LogReader(path) as reader:
        log, data = reader.format, path.read_bytes()
        list(reader.batches())
        dumps, begin = reader.walked.found, reader.walked.begin
        own = {log.event(name).number for name in ("DUMP_BEGIN", "DUMP_FINISH")}
        base = {event.number for event in log.events if event.name != "PING"}
    records: list[tuple[int, int, bytes]] = []  # dump, event, its bytes
    for dump in dumps:
        at = dump.body + list_bytes(dump.count)
        for _ in range(dump.count):
            head = np.frombuffer(data, _HEAD, 1, at)[0]
            size = RECORD_HEAD_BYTES + int(log.payload_sizes[int(head["number"])])
            if int(head["number"]) not in own:
                records.append((dump.index, int(head["number"]), data[at : at + size]))
            at += size
    heads = [record[:2] for record in records]
    places = [at for at in range(1, len(heads)) if heads[at] != heads[at - 1]]
    for start, stop in itertools.combinations([*places, len(heads)], 2):
        rest = records[:start] + records[stop:]
        if start and stop < len(records):  # what is cut within dumps joins them
            joined = records[start][0] != records[start - 1][0]
            if not joined:
                to, of = records[start - 1][0], records[stop][0]
                rest = [(to if dump == of else dump, *more) for dump, *more in rest]  # type: ignore
        events = sum(1 for _, number, _ in records[start:stop] if number not in base)
        yield Cut(start, stop, events), _pack_log(log, data[:begin], rest)


def _pack_log(log, head, records) -> bytes:  # type: ignore[no-untyped-def]
    out, serial = [head], 0
    for index, (_, found) in enumerate(itertools.groupby(records, lambda one: one[0])):
        group = list(found)
        time = int(np.frombuffer(group[-1][2], _HEAD, 1)[0]["time"])
        parts = [pack_event(log, "DUMP_BEGIN", {"index": index}, serial + 1, time)]
        body = bytearray()
        first = serial + 2
        serial += 1
        for _, _, raw in group:
            serial += 1
            one = np.frombuffer(raw, _HEAD, 1).copy()
            one["serial"] = serial
            body += one.tobytes() + raw[_HEAD.itemsize :]
        numbers = np.array([number for _, number, _ in group], np.uint16)
        parts.append(Packed(numbers, np.frombuffer(bytes(body), np.uint8), first))
        serial += 1
        out.append(finish_dump(log, index, parts, serial, time))
    return b"".join(out)


ASKED = {"where": "lport == 1"}


def pick(capture: Capture, share: float) -> Callable[[int, int], Any]:
    """Each record stays with this chance, the same in each call."""
    kept = np.random.default_rng(3).random(len(capture)) < share
    return lambda start, stop: kept[start:stop]


def records_of(capture: Capture, keep: Callable[[int, int], Any]) -> Any:
    """The raw snapshots that stay, without what a cut numbers anew."""
    rows = capture.rows()
    kept = ~capture.control_of(rows) & keep(0, len(rows))
    for name in ("seq", "seq_no", "serial"):
        if name in rows.dtype.names:
            rows[name] = 0
    return rows.view(f"V{rows.itemsize}")[kept].tobytes()


def check(path: Path, out: Path, share: float) -> None:
    before = verify_file(path)
    with Capture(path) as capture:
        keep = pick(capture, share)
        after = cut_file(capture, out, keep, ASKED)
        wanted = records_of(capture, keep)
    assert not after.problems and after.exit_code == before.exit_code, after.problems
    assert after.verdict == before.verdict
    old, new = before.totals, after.totals
    cut = old.in_file - new.in_file
    assert new.attempts == old.attempts and after.lost_total == before.lost_total
    assert new.filtered == old.filtered + cut
    with Capture(out) as capture:
        assert records_of(capture, lambda start, stop: np.ones(stop - start, bool)) == wanted
        assert capture.settings["cut"] == [{**ASKED, "records": cut}]
        assert cut > 0 or share == 1
    assert any(f"{cut:,} records were cut out" in note for note in after.notes)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("options", [
    {}, {"big_endian": True}, {"further": {n: s for n, s in FURTHER.items() if n != "seq"}},
], ids=["little", "big", "seq_no alone"])  # fmt: skip


def test_what_is_left_is_proven(
    tmp_path: Path, options: dict[str, Any], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tcpkmon.formats.verify.cut._BLOCK_ROWS", 37)  # groups cross the blocks
    for name, made in (("full", full_capture), ("clean", clean_capture)):
        path = made(**options).write(tmp_path / f"{name}.pm")
        check(path, tmp_path / f"{name}-cut.pm", share)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_segments_and_dumps(tmp_path: Path, share: float) -> None:
    paths = [*make(tmp_path / "made", 3, lose=5), *dumps(tmp_path / "dumps")]
    assert len(paths) > 4
    for number, path in enumerate(paths):
        check(path, tmp_path / f"{number}.pm", share)


def test_checkpoints_without_a_record_between_them_go(tmp_path: Path) -> None:
    build = CaptureBuilder()
    for _ in range(50):
        build.snapshots(0, 1, 3)
        build.checkpoint()
    build.end()
    path = build.write(tmp_path / "run.pm")
    with Capture(path) as capture:
        last = len(capture) - 1
        cut_file(capture, tmp_path / "cut.pm", lambda a, b: np.arange(a, b) > last, ASKED)
    assert verify_file(path).checkpoints == 51
    report = verify_file(tmp_path / "cut.pm")
    assert report.checkpoints == 2 and report.exit_code == 0, "the first and the final one"
    assert (tmp_path / "cut.pm").stat().st_size < path.stat().st_size / 5


def test_a_cut_is_cut_again_and_a_false_count_is_found(tmp_path: Path) -> None:
    check(full_capture().write(tmp_path / "run.pm"), tmp_path / "one.pm", 0.5)
    with Capture(tmp_path / "one.pm") as capture:
        cut_file(capture, tmp_path / "two.pm", pick(capture, 0.5), {"since": "1"})
    with Capture(tmp_path / "two.pm") as capture:
        header, rows = capture.header, capture.rows()
        assert [sorted(one) for one in capture.settings["cut"]] == [
            ["records", "where"], ["records", "since"]
        ]  # fmt: skip
    settings = json.loads(header.text(KIND_SETTINGS) or "")
    for false, what in ((10**6, "more records cut"), ("x", "cannot be read")):
        settings["cut"][0]["records"] = false
        extras = {**header.extras, KIND_SETTINGS: text_data(json.dumps(settings))}
        wrong = tmp_path / "wrong.pm"
        wrong.write_bytes(encode_header(replace(header, extras=extras)) + rows.tobytes())
        report = verify_file(wrong)
        assert report.exit_code == DamagedError.exit_code
        assert any(what in str(one) for one in report.problems)


def run(*arguments: object) -> int:
    return cli.run(command, [str(one) for one in arguments], "cut")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = full_capture().write(tmp_path / "run.pm"), tmp_path / "some.pm"
    with Capture(path) as capture:
        times = np.sort(capture.column("time_ns")[capture.column("location") < 32])
    middle = times[len(times) // 2]
    code = verify_file(path).exit_code
    assert run(path, "-o", out, "--since", middle) == code
    with Capture(out) as capture:
        left = capture.column("time_ns")[capture.column("location") < 32]
    assert np.array_equal(np.sort(left), times[times >= middle]) and 0 < len(left) < len(times)
    assert f"{len(left)} records left" in capsys.readouterr().err
    assert run(path, "-o", out, "--until", middle) == FileError.exit_code, "OUT is there"
    assert run(path, "-o", path, "--until", middle) == UsageError.exit_code


def test_of_a_folder_the_segment_that_has_the_time_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("psc-rotated", tmp_path)
    folder, out = next(tmp_path.rglob("index.jsonl")).parent, tmp_path / "some.pm"
    paths = [segment.path(folder) for segment in find_segments(folder)]
    for at, path in enumerate(paths):
        with Capture(path) as capture:
            times = np.sort(capture.column("time_ns")[capture.column("location") < 32])
        if at and len(times):
            break
    middle = times[len(times) // 2]
    assert run(folder, "-o", out, "--since", middle, "--until", middle) == 0
    assert f"of {path}" in capsys.readouterr().err and at < len(paths) - 1
    with Capture(out) as capture:
        assert middle in capture.column("time_ns")
    out.unlink()
    assert run(folder, "-o", out, "--since", middle) == UsageError.exit_code
    told = capsys.readouterr().err
    assert f"{len(paths) - at} have records of this time: {path.name}, " in told
    assert run(folder, "-o", out, "--until", 1) == UsageError.exit_code
    assert "0 have records" in capsys.readouterr().err and not out.exists()


Cuts = Callable[[Path], Iterator[tuple[Cut, bytes]]]


def _plain(path: Path) -> Path:
    maker = Maker(path, rotates=False)
    for _ in range(4):
        maker.records(5)
        maker.checkpoint()
    maker.close()
    return path


def _log(path: Path) -> Path:
    maker = LogMaker(path, rotates=False)
    for _ in range(4):
        maker.records(5)
        maker.checkpoint()
    maker.close()
    return path / "kernlog.dump.cpu0"


def _log_dump(path: Path) -> Path:
    made = last_second(path, after_s=2.0)
    for _ in range(4):
        made.second(4)
    made.stream.ask()
    for _ in range(4):
        made.second(4)
    made.close()
    return find_segments(path)[0].path(path) / "kernlog.dump.cpu0"


FILES: dict[str, tuple[Callable[[Path], Path], Cuts]] = {
    "psc": (_plain, cut_psc),
    "psc-segment": (lambda path: make(path, 3, 8)[0], cut_psc),
    "psc-later-segment": (lambda path: make(path, 3, 8)[1], cut_psc),
    "psc-dump": (lambda path: psc_dumps(path)[0], cut_psc),
    "log": (_log, cut_log),
    "log-segment": (lambda path: make_logs(path, 3, 8)[1] / "kernlog.dump.cpu0", cut_log),
    "log-dump": (_log_dump, cut_log),
}


@pytest.mark.parametrize("kind", FILES)
def test_no_cut_between_control_entries_is_complete(tmp_path: Path, kind: str) -> None:
    write, cuts = FILES[kind]
    path = write(tmp_path / f"out{'.pm' if kind == 'psc' else ''}")
    whole = format_of(path).verify(path)[0]
    assert whole.proven_end and not whole.problems and NOT_CLOSED not in whole.notes
    found = 0
    for cut, data in islice(cuts(path), 0, None, 1 if IS_FULL else 3):
        path.write_bytes(data)
        report = format_of(path).verify(path)[0]
        if cut.records:
            found += 1
            assert report.exit_code != whole.exit_code or report.tail_unknown, (
                cut, report.verdict, report.window,
            )  # fmt: skip
            assert not any(line.startswith("complete") for line in report.window)
    assert found > 1
