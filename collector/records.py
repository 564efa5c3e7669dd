# SPDX-License-Identifier: Apache-2.0
"""Records as they stand in a perf ring: what rings.py copies out is taken apart here with numpy.

A piece of a ring is a row of records, nearly all of them samples of one size:

     0      4      6      8          12                     12+itemsize    16+itemsize
    +------+------+------+----------+----------------------+--------------+
    | type | misc | size | raw size | entry (itemsize)     | padding (4)  |  PERF_RECORD_SAMPLE
    +------+------+------+----------+----------------------+--------------+
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.ordered import join_rows

PERF_RECORD_LOST = 2
PERF_RECORD_SAMPLE = 9
RAW_PADDING = 4
"""Bytes that a program adds to an entry, so that the kernel need not pad the record."""
_BEFORE_ENTRY = 12
_FIRST_CHECKED = 256


@dataclass(frozen=True)
class Batch:
    """What one drain took from one CPU's ring; `entries` is a copy and belongs to the receiver.

    entries: (n,) of the capture's dtype, strided. read_before_ns: CLOCK_MONOTONIC before the ring
    was looked at; whatever is not here is later than this, or was under way. damaged: samples of a
    wrong size. reported_lost: sum of PERF_RECORD_LOST (a cross-check: it misses the last losses).
    """

    cpu: int
    entries: NDArray[Any]
    read_before_ns: int
    damaged: int = 0
    reported_lost: int = 0


def split_records(
    raw: NDArray[np.uint8], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], int, int]:
    """Entries in a copied piece of a ring, samples of a wrong size, and losses reported in it.

    The entries are a view of `raw` (a copy if other records stand between them).
    """
    record = _BEFORE_ENTRY + dtype.itemsize + RAW_PADDING
    parts: list[NDArray[Any]] = []
    at = damaged = lost = 0
    while at < len(raw):
        count = _leading_samples(raw[at:], record)
        if count:
            parts.append(np.ndarray((count,), dtype, raw.data, at + _BEFORE_ENTRY, (record,)))
            at += count * record
            continue
        kind, size = _header(raw, at)
        if size < 8 or size % 8 or size > len(raw) - at:
            damaged += max(1, (len(raw) - at) // record)
            break
        if kind == PERF_RECORD_SAMPLE:
            damaged += 1
        elif kind == PERF_RECORD_LOST and size >= 24:
            lost += int(raw[at + 16 : at + 24].view("=u8")[0])
        at += size
    if len(parts) == 1:
        return parts[0], damaged, lost
    return join_rows(parts, dtype), damaged, lost


def _header(raw: NDArray[np.uint8], at: int) -> tuple[int, int]:
    if len(raw) - at < 8:
        return 0, 0
    kind, _, size = struct.unpack_from("=IHH", raw.data, at)
    return int(kind), int(size)


def _leading_samples(raw: NDArray[np.uint8], record: int) -> int:
    """How many samples of the one good size stand at the start of `raw`."""
    most = len(raw) // record
    done, step = 0, _FIRST_CHECKED
    while done < most:
        count = min(step, most - done)
        heads: NDArray[np.uint32] = np.ndarray(
            (count, 3), np.uint32, raw.data, done * record, (record, 4)
        )
        good = (heads[:, 0] == PERF_RECORD_SAMPLE) & (heads[:, 1] >> 16 == record)
        good &= heads[:, 2] == record - _BEFORE_ENTRY
        if not good.all():
            return done + int(np.argmin(good))
        done += count
        # Growing steps: a record of another kind costs no second look at all that follows.
        step *= 4
    return done
