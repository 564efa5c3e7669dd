# SPDX-License-Identifier: Apache-2.0
"""The sequencer: order, numbers, losses and late records. test_drain.py has many more cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.formats.base.control import Loss, LossCause, Mark, words_view
from tcpkmon.formats.base.facts import decode
from tests.unit.ordering import NO_CPU, Whole, seqs_of

EPOCH_NS = 1_700_000_000_000_000_000
LOSS = Loss.location

_HEAD = [
    ("seq_no", "=u4", 0), ("tv_sec", "=u4", 4), ("tv_usec", "=u4", 8), ("callvalue", "=u4", 12),
    ("location", "=u4", 16), ("lport", ">u2", 20), ("rport", ">u2", 22), ("snd_cwnd", "=u4", 24),
]  # fmt: skip
_MORE = [("time_ns", "=u8", 64), ("serial", "=u8", 72), ("cpu", "=u2", 80), ("seq", "=u8", 82)]


def make_dtype(full: bool) -> np.dtype[Any]:
    fields = _HEAD + (_MORE if full else [])
    names, formats, offsets = zip(*fields, strict=True)
    size = 96 if full else 64
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    )


FULL, CLASSIC = make_dtype(True), make_dtype(False)


def make_rows(
    dtype: np.dtype[Any], cpu: int, serials: Any, times_ns: Any, location: int = 1
) -> np.ndarray[Any, Any]:
    """Rows as the kernel leaves them in a ring."""
    serials, times_ns = np.asarray(serials, np.uint64), np.asarray(times_ns, np.uint64)
    rows = np.zeros(len(serials), dtype)
    rows["seq_no"] = serials & 0xFFFFFFFF
    rows["tv_sec"] = times_ns & 0xFFFFFFFF
    rows["tv_usec"] = times_ns >> 32
    rows["location"] = location
    rows["snd_cwnd"] = serials & 0xFFFFFFFF
    rows["callvalue"] = cpu
    if "cpu" in (dtype.names or ()):
        rows["cpu"], rows["serial"], rows["time_ns"] = cpu, serials, times_ns
    return rows


def make_sequencer(dtype: np.dtype[Any], **more: Any) -> Whole:
    return Whole(dtype, lambda: EPOCH_NS, **more)


def check_stream(
    parts: list[Any], dtype: np.dtype[Any], first_seq: int = 1
) -> np.ndarray[Any, Any]:
    """Sequence numbers run on, gaps stand before LOSS entries that count them; all rows."""
    rows = np.concatenate([part.entries.view(("V", dtype.itemsize)) for part in parts]).view(dtype)
    expected = first_seq
    for part in parts:
        assert part.first_seq == expected
        expected += part.span
        if len(part):
            assert seqs_of(part)[-1] == expected - 1
            assert part.entries.flags.c_contiguous
        assert np.array_equal(seqs_of(part) & 0xFFFFFFFF, part.entries["seq_no"])
        if "seq" in (dtype.names or ()):
            assert np.array_equal(seqs_of(part), part.entries["seq"])
    seqs = np.concatenate([seqs_of(part) for part in parts])
    gaps = np.diff(seqs, prepend=first_seq - 1) - 1
    assert (gaps >= 0).all()
    losses = rows["location"] == LOSS
    words = words_view(rows)
    counts = words[:, 2].astype(np.int64) | words[:, 3].astype(np.int64) << 32
    assert np.array_equal(gaps[losses], counts[losses])
    assert not gaps[~losses].any()
    assert (gaps[losses] > 0).all()
    return rows


def test_orders_by_serial_and_merges_by_time() -> None:
    sequencer = make_sequencer(FULL)
    sequencer.push(Batch(0, make_rows(FULL, 0, [2, 1, 3], [11, 12, 30]), 0))
    sequencer.push(Batch(1, make_rows(FULL, 1, [1, 2], [10, 20]), 0))
    out = sequencer.release(25)
    assert out.entries["cpu"].tolist() == [1, 0, 0, 1]
    assert out.entries["serial"].tolist() == [1, 1, 2, 2]
    assert out.cpus.tolist() == [1, 0, 0, 1]
    assert seqs_of(out).tolist() == [1, 2, 3, 4]
    assert sequencer.waiting_by_cpu == {0: 1, 1: 0}
    assert sequencer.read == {0: 2, 1: 2}
    assert sequencer.finish({0: 3, 1: 2}).entries["serial"].tolist() == [3]
    assert sequencer.lost == 0


def test_equal_times_go_by_cpu() -> None:
    sequencer = make_sequencer(FULL)
    for cpu in (3, 1, 2):
        sequencer.push(Batch(cpu, make_rows(FULL, cpu, [1], [5]), 0))
    assert sequencer.release(5).cpus.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [FULL, CLASSIC], ids=["full", "classic"])
def test_time_of_day_is_set(dtype: np.dtype[Any]) -> None:
    sequencer = make_sequencer(dtype)
    times_ns = [1_999, 5_000_000_123, 2**33 * 1_000]
    sequencer.push(Batch(0, make_rows(dtype, 0, [1, 2, 3], times_ns), 0))
    rows = sequencer.release(2**62).entries
    for row, time_ns in zip(rows, times_ns, strict=True):
        epoch_us = (EPOCH_NS + time_ns) // 1000
        assert (row["tv_sec"], row["tv_usec"]) == divmod(epoch_us, 1_000_000)


def test_gap_becomes_a_loss_entry_with_all_its_values() -> None:
    sequencer = make_sequencer(FULL)
    sequencer.push(Batch(5, make_rows(FULL, 5, [1, 2**33 + 2], [10, 20]), 0))
    out = sequencer.release(99)
    assert seqs_of(out).tolist() == [1, 2**33 + 2, 2**33 + 3]
    assert out.cpus.tolist() == [5, NO_CPU, 5]
    row = out.entries[1]
    entry = decode(row["callvalue"], row["location"], words_view(out.entries)[1].tolist())
    assert entry == Loss(cpu=5, first_serial=2, count=2**33, cause=0)
    assert (row["time_ns"], row["serial"], row["cpu"], row["lport"]) == (20, 0, 0, 0)
    assert sequencer.lost == 2**33
    check_stream([out], FULL)


def test_many_gaps_at_once() -> None:
    sequencer = make_sequencer(CLASSIC)
    serials = np.arange(2, 20_001, 2)
    sequencer.push(Batch(0, make_rows(CLASSIC, 0, serials, serials * 100), 0))
    out = sequencer.release(2**62)
    rows = check_stream([out], CLASSIC)
    assert np.count_nonzero(rows["location"] == LOSS) == 10_000
    assert sequencer.lost == 10_000
    assert out.span == 30_000


def test_hole_waits_for_its_record() -> None:
    sequencer = make_sequencer(FULL)
    sequencer.push(Batch(0, make_rows(FULL, 0, [1, 3], [10, 30]), 0))
    assert len(sequencer.release(29)) == 1
    sequencer.push(Batch(0, make_rows(FULL, 0, [2, 4], [31, 40]), 0))
    out = sequencer.release(50)
    assert out.entries["serial"].tolist() == [2, 3, 4]
    assert sequencer.lost == 0


def test_late_and_repeated_records_are_dropped_and_counted() -> None:
    sequencer = make_sequencer(FULL)
    sequencer.push(Batch(1, make_rows(FULL, 1, [1, 3], [10, 30]), 0))
    first = sequencer.release(40)
    assert sequencer.lost == 1
    sequencer.push(Batch(1, make_rows(FULL, 1, [2, 3, 4, 4], [20, 30, 50, 50], location=7), 0))
    out = sequencer.release(60)
    assert out.entries["serial"].tolist() == [4]
    assert sequencer.late == {(1, 7): 3}
    assert sequencer.lost == 1
    assert sequencer.read == {1: 6}
    check_stream([first, out], FULL)


def test_tail_losses_come_from_the_serial_totals() -> None:
    sequencer = make_sequencer(FULL)
    sequencer.push(Batch(0, make_rows(FULL, 0, [1, 2], [10, 20]), 0))
    first = sequencer.release(15)
    rest = sequencer.finish({0: 5, 1: 0, 2: 7}, mono_ns=100)
    rows = check_stream([first, rest], FULL)
    found = rows[rows["location"] == LOSS]
    assert found["callvalue"].tolist() == [0, 2]
    assert words_view(rows)[rows["location"] == LOSS][:, [0, 2]].tolist() == [[3, 3], [1, 7]]
    assert found["time_ns"].tolist() == [100, 100]
    assert sequencer.lost == 10
    assert sequencer.last_serial == {0: 5, 1: 0, 2: 7}
    assert len(sequencer.finish({0: 5, 1: 0, 2: 7})) == 0


def test_control_entries_take_numbers() -> None:
    sequencer = make_sequencer(FULL, first_seq=2)
    marks = sequencer.control([Mark(1, "one"), Mark(2, "two")], 77)
    sequencer.push(Batch(0, make_rows(FULL, 0, [1], [80]), 0))
    records = sequencer.release(90)
    assert (seqs_of(marks).tolist(), seqs_of(records).tolist()) == ([2, 3], [4])
    assert marks.entries["time_ns"].tolist() == [77, 77]
    assert marks.cpus.tolist() == [NO_CPU, NO_CPU]
    assert not marks.counts()


def test_serials_of_32_bits_unwrap() -> None:
    sequencer = make_sequencer(CLASSIC)
    start = 2**32 - 3
    sequencer.push(Batch(0, make_rows(CLASSIC, 0, [2**31 - 1], [1]), 0))
    sequencer.push(Batch(0, make_rows(CLASSIC, 0, [start], [2]), 0))
    for serial in range(start, start + 10, 2):
        rows = make_rows(CLASSIC, 0, [serial + 2, serial + 1], [serial, serial])
        sequencer.push(Batch(0, rows, 0))
    sequencer.release(2**62)
    assert sequencer.last_serial == {0: start + 10}
    assert sequencer.lost == start - 2
    assert not sequencer.late


def test_memory_is_bounded() -> None:
    sequencer = make_sequencer(FULL, limit_bytes=1000 * FULL.itemsize)
    parts = []
    for start in range(1, 20_001, 500):
        serials = np.arange(start, start + 500)
        sequencer.push(Batch(0, make_rows(FULL, 0, serials, serials), 0))
        parts.append(sequencer.release(0))
        assert sequencer.waiting_by_cpu[0] <= 1000
    parts.append(sequencer.finish({0: 20_000}))
    assert len(check_stream(parts, FULL)) == 20_000
    assert sequencer.lost == 0


def test_renumber_and_counts() -> None:
    sequencer = make_sequencer(FULL)
    sequencer.push(Batch(0, make_rows(FULL, 0, [1, 4], [10, 40], location=3), 0))
    sequencer.push(Batch(2, make_rows(FULL, 2, [1], [50], location=19), 0))
    out = sequencer.release(60)
    out.renumber(2**32 - 1)
    check_stream([out], FULL, 2**32 - 1)
    assert out.counts() == {(0, 3): 2, (2, 19): 1}
    assert out.counts(1) == {(0, 3): 1, (2, 19): 1}
    assert out.counts(0, 2) == {(0, 3): 1}


def test_numbers_that_the_writer_gave_are_gone_on_from() -> None:
    sequencer = make_sequencer(FULL)
    outs = []
    for serial in (1, 2, 5, 6):
        sequencer.push(Batch(0, make_rows(FULL, 0, [serial], [serial]), 0))
        outs.append(sequencer.release(serial))
    assert [out.first_seq for out in outs] == [1, 2, 3, 7]
    # Three entries came before the first, and two more before the third.
    for out, ahead in zip(outs, (3, 3, 5), strict=False):
        out.renumber(out.first_seq + ahead)
        sequencer.ahead = out.ahead or 0
        sequencer.push(Batch(0, make_rows(FULL, 0, [7 + ahead], [7 + ahead]), 0))
    out = sequencer.release(99)
    assert out.first_seq == 8 + 5
    outs[3].renumber(7 + 5)
    check_stream([*outs[2:], out], FULL, 3 + 5)
    missing = sequencer.missing(sequencer.tails({0: 20}), 0, LossCause.KERNEL)
    assert missing.first_seq == 13 + out.span
