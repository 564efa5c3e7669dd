# SPDX-License-Identifier: Apache-2.0
"""Memory that is used again, but never while anybody looks at it."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.collector.sequencer.buffer_pool import LEAST_BYTES, PAGE_BYTES, PIECE_BYTES, Pool

ROW = np.dtype(("V", 360))
FULL = PIECE_BYTES // ROW.itemsize
POOL = Pool()


def address(rows: np.ndarray) -> int:
    return rows.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_view_is_gone():
    pool = Pool()
    rows = pool.rows(FULL, ROW)
    assert rows.flags.c_contiguous and rows.flags.writeable
    assert (len(rows), rows.dtype, pool.free) == (FULL, ROW, 0)
    at = address(rows)
    view = rows.view(np.uint8).data[10:20]
    words = rows[3:].view(np.uint32)
    del rows
    assert pool.free == 0
    del words
    assert pool.free == 0
    del view
    assert pool.free == 1
    assert address(pool.rows(FULL - 1, ROW)) == at


def test_two_at_a_time_have_memory_of_their_own():
    pool = Pool()
    one, other = pool.rows(FULL, ROW), pool.rows(FULL, ROW)
    assert not np.shares_memory(one, other)


def test_small_and_large_ones_are_not_kept():
    pool = Pool()
    for count in (0, 1, LEAST_BYTES // ROW.itemsize, FULL + 1):
        rows = pool.rows(count, ROW)
        assert len(rows) == count
        del rows
    assert pool.free == 0


def test_only_some_are_kept():
    pool = Pool()
    for _ in range(2):
        rows = [pool.rows(FULL, ROW) for _ in range(30)]
        assert len({address(one) for one in rows}) == 30
        rows.clear()
        assert 0 < pool.free < 10


@given(st.integers(LEAST_BYTES // ROW.itemsize + 1, FULL), st.integers(0, 1 << 40))
def test_memory_lies_as_in_the_file(count, place_bytes):
    rows = POOL.rows(count, ROW, place_bytes)
    assert (address(rows) - place_bytes) % PAGE_BYTES == 0
    rows.view(np.uint8)[:] = 7
    assert (len(rows), POOL.free) == (count, 0)


def test_another_thread_may_drop_it():
    pool = Pool()
    held = [pool.rows(FULL, ROW)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.free == 1
