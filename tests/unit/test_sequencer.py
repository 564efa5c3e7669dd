# SPDX-License-Identifier: Apache-2.0
"""The sequencer: order, numbers, losses and late records. test_drain.py has many more cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer import sequencer
from tcpkmon.collector.sequencer.ordered import Ordered, opaque
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Sequencer
from tcpkmon.formats.base.control import ANY_CPU, Control, Loss, LossCause, Mark, words_view
from tcpkmon.formats.base.facts import decode

NO_CPU = ANY_CPU


class Whole(Sequencer):
    """A sequencer that gives each release in one piece."""

    def release(self, watermark_ns: int) -> Ordered:
        with mock.patch.object(sequencer, "PIECE_BYTES", FOREVER_NS):
            return next(self.pieces(watermark_ns), None) or self._control([], [], 0)

    def finish(self, serials: Mapping[int, int], mono_ns: int = 0) -> Ordered:
        released = self.release(FOREVER_NS)
        return joined(released, self.missing(self.tails(serials), mono_ns, LossCause.KERNEL))

    def control(self, entries: Iterable[Control], mono_ns: int) -> Ordered:
        """Control entries with the next sequence numbers, all of one moment."""
        listed = list(entries)
        return self._control(listed, [0] * len(listed), mono_ns)


def seqs_of(ordered: Ordered) -> NDArray[np.int64]:
    """The sequence number of each entry, by the LOSS entries: these count the numbers before."""
    rows = ordered.entries
    words = words_view(rows).astype(np.int64)
    lost = np.where(rows["location"] == Loss.location, words[:, 2] + (words[:, 3] << 32), 0)
    seqs: NDArray[np.int64] = ordered.first_seq - 1 + np.cumsum(lost + 1)
    return seqs


def joined(one: Ordered, other: Ordered) -> Ordered:
    """Two batches as one; `other` has the numbers right after `one`."""
    return Ordered(
        _join_rows((one.entries, other.entries), one.entries.dtype),
        np.concatenate((one.cpus, other.cpus)),
        np.concatenate((one.places, other.places)),
        one.first_seq,
        one.span + other.span,
        one.first_ns if len(one) else other.first_ns,
        one.records + other.records,
    )


def _join_rows(parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows of several arrays, one after the other, with all their bytes."""
    return np.concatenate([part.view(opaque(dtype)) for part in parts]).view(dtype)


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


def test_control_entries_take_numbers() -> None:
    sequencer = make_sequencer(FULL, first_seq=2)
    marks = sequencer.control([Mark(1, "one"), Mark(2, "two")], 77)
    sequencer.push(Batch(0, make_rows(FULL, 0, [1], [80]), 0))
    records = sequencer.release(90)
    assert (seqs_of(marks).tolist(), seqs_of(records).tolist()) == ([2, 3], [4])
    assert marks.entries["time_ns"].tolist() == [77, 77]
    assert marks.cpus.tolist() == [NO_CPU, NO_CPU]
    assert not marks.counts()
