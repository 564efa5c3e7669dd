# SPDX-License-Identifier: Apache-2.0
"""The words that are shared with the kernel, by drain.c."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.commands import doctor
from tcpkmon.collector.loader import prepare
from tcpkmon.collector.ring import library
from tcpkmon.collector.ring.library import Producer, Word
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import TcpkmonError

SIZE, ROW = 4 * mmap.PAGESIZE, 72
BUSY = 1 << 31


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    """A BPF ring's: the producer's page, and the rows twice, where the kernel maps them twice."""
    yield mmap.mmap(-1, mmap.PAGESIZE + 2 * SIZE)


def fill(memory: mmap.mmap, producer: int, busy: tuple[int, ...]) -> Producer:
    """Records up to this position; those at `busy` are being built. Stale rows behind are busy."""
    whole = np.frombuffer(memory, np.uint32)
    whole[mmap.PAGESIZE // 4 :] = BUSY | 64
    ring = Producer(memory, SIZE, ROW)
    for position in range(max(0, producer - SIZE) // ROW * ROW, producer, ROW):
        at = ring.place(position) // 4
        whole[at] = 64 | (BUSY if position in busy else 0)
    rows = whole[mmap.PAGESIZE // 4 :].reshape(2, -1)
    rows[1] = rows[0]
    np.frombuffer(memory, np.uint64)[0] = producer
    return ring


@pytest.mark.parametrize("begin", [0, 5, SIZE // ROW - 2, (1 << 40) // ROW])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_it_goes_to_the_producer(memory: mmap.mmap, begin: int, count: int) -> None:
    start, end = begin * ROW, (begin + count) * ROW
    ring = fill(memory, end, ())
    assert ring.advance(start) == (end, False)
    assert ring.peek() == ring.load() == end


@pytest.mark.parametrize("begin", [0, SIZE // ROW - 2])
@pytest.mark.parametrize("at", [0, 1, 5, 6])
def test_it_stops_at_what_is_being_built(memory: mmap.mmap, begin: int, at: int) -> None:
    start, stop = begin * ROW, (begin + at) * ROW
    ring = fill(memory, start + 7 * ROW, (stop, start + 6 * ROW))
    assert ring.advance(start) == (stop, True)
    for row in range(7):
        place = start + row * ROW
        assert (ring.advance(place)[0] == place) == (row in {at, 6})


def test_a_word_is_stored_where_others_see_it() -> None:
    shared = np.zeros(3, np.uint64)
    word = Word(shared[1:])
    word.store((1 << 63) + 5)
    assert shared.tolist() == [0, (1 << 63) + 5, 0]
    assert word.load() == word.peek() == (1 << 63) + 5


def test_without_the_library_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "PLACE", tmp_path / "_drain")
    monkeypatch.setattr(prepare, "find_library", library.find_library.__wrapped__)
    assert cli.run(doctor.command, [], "tcpkmon doctor") == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "is missing, or of another version: rings cannot be read" in said
    with pytest.raises(TcpkmonError, match="rings cannot be read; "):
        prepare.check_machine()
