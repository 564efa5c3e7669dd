# SPDX-License-Identifier: Apache-2.0
"""Lines of text out of raw rows, by lines.c: as written one value at a time."""

from __future__ import annotations

import importlib.machinery
import io
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.lines import (
    Cell,
    Kind,
    Plan,
    Rows,
    Source,
    StringWriter,
    native,
    strings,
    writing,
)
from tests.fuzz.line_cases import (
    TELLING,
    lines_by_hand,
    random_case,
    random_column,
    strings_by_hand,
    strings_of,
    text_by_hand,
)

NUMBER = Cell("", Kind.NUMBER, 0, 4)


def test_lines_are_those_written_one_value_at_a_time() -> None:
    for seed in range(1000, 1080):
        plans, rows = random_case(seed)
        writer = native.Writer(plans)
        for _ in range(2):
            assert b"".join(writer.write(rows)) == lines_by_hand(plans, rows), seed


@pytest.mark.parametrize("known_max", [1 << 16, 3])
def test_columns_are_those_written_one_value_at_a_time(monkeypatch: Any, known_max: int) -> None:
    monkeypatch.setattr(strings, "_KNOWN_MAX", known_max)
    for seed in range(2000, 2040):
        column, writer = random_column(seed), StringWriter(text_by_hand)
        for part in (column, column[7:], column[:0]):
            assert strings_of(writer, part) == strings_by_hand(part), seed


def test_texts_that_fit_no_string_array_are_an_error(monkeypatch: Any) -> None:
    monkeypatch.setattr(strings, "_ROOM_MAX", 100_000)
    writer = StringWriter(lambda _: "x" * 5000)
    with pytest.raises(TcpkmonError, match="too long"):
        writer.write(np.zeros(100, np.uint32))


def test_without_such_a_library_nothing_is_written(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for content in (b"", b"of another machine"):
        if content:
            (tmp_path / f"_lines{suffix}").write_bytes(content)
        with pytest.raises(TcpkmonError, match=r"_lines.*text cannot be written") as raised:
            native.find_library.__wrapped__()
        assert raised.value.hint and len(raised.value.lines()) == 1


def test_all_cells_share_the_memory_for_texts(monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "MOST_TEXT_BYTES", 20_000)
    cells = [Cell(";", Kind.TEXT, 4 * at, 4, text=lambda value: value.hex()) for at in range(50)]
    writer = native.Writer([Plan(cells, "\n", 200)])
    data = np.arange(50_000, dtype="<u4").view(np.uint8)
    most = 0
    for start in range(0, len(data), 2000):
        wanted = data[start : start + 2000].reshape(10, 50, 4)
        assert b"".join(writer.write(Rows(data[start : start + 2000], 10))) == b"".join(
            b"".join(b";" + cell.tobytes().hex().encode() for cell in row) + b"\n" for row in wanted
        )
        most = max(most, writer._text_bytes)
    assert 20_000 < most < 60_000  # the limit, and what one page adds


@pytest.mark.parametrize(
    "cell",
    [
        Cell("", Kind.NUMBER, 5, 4),
        Cell("", Kind.NUMBER, 0, 9),
        Cell("", Kind.NUMBER, -1, 2),
        Cell("", Kind.HEX, 0, 0),
        Cell("", Kind.HEX, 4, 5),
        Cell("", Kind.SECONDS, 0, 4, source=Source.TIMEVAL),
        Cell("", Kind.NUMBER, 16, 8, source=Source.SIDE),
        Cell("", Kind.HEX, 0, 8, source=Source.SIDE),
        Cell("", Kind.UTC, 0, 8, digits=7),
        Cell("", Kind.TEXT, 0, 4),
        Cell("", Kind.NUMBER, 0, 4, text=str),
    ],
)
def test_cells_outside_of_the_row_cannot_be(cell: Cell) -> None:
    with pytest.raises(ValueError, match="no such cell"):
        Plan([cell], "", 8)


@pytest.mark.parametrize("keys", [[(5, 4)], [(-1, 2)], [(0, 9)], [(0, 0)], [(0, 1)] * 5])
def test_keys_outside_of_the_row_cannot_be(keys: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="no such keys"):
        Plan([NUMBER], "", 8, keys)


def test_rows_are_arrays_of_the_right_kind() -> None:
    data = np.zeros(16, np.uint8)
    of_two = np.zeros(2, np.int64)
    Rows(data, 2, of_two, of_two.astype(np.uint16), [of_two])
    for wrong in (
        (data.view(np.uint16), 2),
        (data[::2], 2),
        (data, 2, of_two[:1]),
        (data, 2, of_two.astype(np.int32)),
        (data, 2, None, of_two.astype(np.uint16)),
        (data, 2, None, None, [of_two[:1]]),
    ):
        with pytest.raises(ValueError, match="wrong kind"):
            Rows(*wrong)  # type: ignore[arg-type]


def test_numbers_of_all_sizes_follow_each_other() -> None:
    """What is written anew of a number depends on the one before it."""
    ends = [10**digits + more for digits in range(20) for more in (-1, 0, 9999, 12345)]
    numbers = [number for number in (*TELLING, *ends) if number < 2**64]
    pairs = [number for pair in itertools.product(numbers, numbers) for number in pair]
    data = np.array(pairs, "<u8").repeat(2).view(np.uint8)  # rows of 16 bytes: those compared
    writer = native.Writer([Plan([Cell("", Kind.NUMBER, 0, 8)], "\n", 16)])
    text = b"".join(writer.write(Rows(data, len(pairs))))
    assert text.decode().split() == list(map(str, pairs))


def test_pages_are_written_in_their_order_in_memory_used_again() -> None:
    workers = []
    slow = threading.Event()

    def make_worker() -> Any:
        room = bytearray(4)
        workers.append(room)

        def write(page: int) -> list[memoryview]:
            if page == 0:
                slow.wait(5)
            if page == 1:
                slow.set()
            room[:] = b"%04d" % page
            return [memoryview(room)]

        return write

    out = io.BytesIO()
    writing.write_pages(range(1000), make_worker, out)
    assert out.getvalue() == b"".join(b"%04d" % page for page in range(1000))
    assert len(workers) == writing._THREADS + 1


class Full(io.RawIOBase):
    def write(self, _: Any) -> int:
        raise OSError(28, "No space left on device")

    def writelines(self, _: Any) -> None:
        self.write(b"")


def test_a_failing_output_ends_it() -> None:
    def pages() -> Any:
        while True:
            yield 0

    with pytest.raises(OSError, match="No space"):
        writing.write_pages(pages(), lambda: lambda _: [b"text"], Full())


def test_a_failing_worker_ends_it() -> None:
    def write(page: int) -> list[bytes]:
        if page == 5:
            raise TcpkmonError("unreadable")
        return [b"%d" % page]

    out = io.BytesIO()
    with pytest.raises(TcpkmonError, match="unreadable"):
        writing.write_pages(range(100), lambda: write, out)
    assert out.getvalue() == b"01234"
