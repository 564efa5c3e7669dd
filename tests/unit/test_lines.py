# SPDX-License-Identifier: Apache-2.0
"""Lines of text out of raw entries, however their columns are grouped: as written one by one."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.psc import linegroups, lines
from formats.psc.columns import Column, Endian
from formats.psc.linegroups import Cell, write_fixed, write_integers
from formats.psc.lines import Lines, write_pages
from formats.psc.values import decode


def write_hex(values: Any) -> Any:
    return pyarrow.array([value.tobytes().hex() for value in values], pyarrow.string())


@st.composite
def entries(draw: st.DrawFn) -> tuple[list[Cell], Endian, np.ndarray]:
    """Cells of columns in any place, and rows whose values repeat, or run, or are random."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 200))
    columns, parts, offset = [], [], 0
    for index in range(draw(st.integers(1, 9))):
        gap = draw(st.integers(0, 2))
        parts.append(random.integers(0, 256, (count, gap), np.uint8))
        length = draw(st.sampled_from([1, 2, 3, 4, 4, 4, 7, 8, 8, 16]))
        flags = draw(st.sampled_from([0, 0, 0, 1, 2]))
        columns.append(Column(f"c{index}", offset + gap, length, flags=flags))
        kind = draw(st.sampled_from(["constant", "few", "running", "random"]))
        if kind == "running":
            start = draw(st.sampled_from([0, 9_990, 99_999_990, 2**32 - 100]))
            values = np.arange(start, start + count, dtype=np.uint64).astype("<u8")
            bytes_of = np.zeros((count, 16), np.uint8)
            bytes_of[:, :8] = values.view(np.uint8).reshape(count, 8)
            parts.append(bytes_of[:, :length])
        else:
            distinct = {"constant": 1, "few": 3, "random": count + 1}[kind]
            known = random.integers(0, 256, (distinct, length), np.uint8)
            parts.append(known[random.integers(0, distinct, count)])
        offset += gap + length
    rows = np.ascontiguousarray(np.hstack(parts)).reshape(-1)
    cells = []
    for place, column in enumerate(draw(st.permutations(columns))):
        before = draw(st.sampled_from(["", "\t", f',"{column.name}":'])) if place else "{"
        signed = column.length in (1, 2, 4, 8) and draw(st.booleans())
        write = write_integers if column.is_integer else write_hex
        cells.append(Cell(column, signed, before, write))
    return cells, draw(st.sampled_from(Endian)), rows.view(f"V{offset}")


def one_by_one(cells: list[Cell], after: str, endian: Endian, rows: np.ndarray) -> str:
    texts = []
    for cell in cells:
        values = decode(rows, cell.column, endian, cell.signed)
        is_integer = cell.column.is_integer
        listed = values.tolist() if is_integer else [value.tobytes().hex() for value in values]
        texts.append([f"{cell.before}{value}" for value in listed])
    return "".join("".join(line) + after for line in zip(*texts, strict=True))


@given(entries(), st.integers(1, 300), st.integers(1, 80), st.sampled_from(["\n", "}\n", ""]))
@settings(max_examples=300, deadline=None)
def test_lines_are_those_written_one_by_one(
    entry: tuple[list[Cell], Endian, np.ndarray], page_rows: int, block: int, after: str
) -> None:
    cells, endian, rows = entry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_PLAN_EVERY", 2)
        patch.setattr(lines, "_LINES", 17)
        patch.setattr(linegroups, "SAMPLE_ROWS", 50)
        patch.setattr(lines, "ROWS_EXPECTED", page_rows)
        written = Lines(cells, after, endian, rows.dtype.itemsize)
        assert written.rows == page_rows

        def pages() -> Any:
            for start in range(0, len(rows), page_rows):
                page = written.page()
                piece = rows[start : start + page_rows]
                for low in range(0, len(piece), block):
                    some = piece[low : low + block].copy()
                    page.add(some)
                    some.view(np.uint8)[:] = 0xAA  # not needed any more
                yield page

        out = io.BytesIO()
        write_pages(pages(), out)
    assert out.getvalue().decode() == one_by_one(cells, after, endian, rows)


def test_numbers_that_run_are_written_in_two_parts() -> None:
    values = np.arange(123_450_000, 123_450_000 + 2000, dtype=np.uint32)
    rows = values.view("V4")
    cell = Cell(Column("seq", 0, 4), False, "", write_integers)
    groups = linegroups.group_cells([cell], rows, Endian.LITTLE)
    assert not groups[0].is_direct
    noise = np.random.default_rng(1).integers(0, 2**32, 2000, np.uint32).view("V4")
    assert linegroups.group_cells([cell], noise, Endian.LITTLE)[0].is_direct


def test_columns_that_change_together_are_one_group() -> None:
    number = np.arange(2000, dtype=np.uint32)
    rows = np.stack([number // 100, number // 100 * 7, number * 2654435761], 1).view("V12")[:, 0]
    cells = [Cell(Column(f"c{n}", 4 * n, 4), False, "", write_integers) for n in range(3)]
    groups = linegroups.group_cells(cells, rows, Endian.LITTLE)
    assert [len(group.cells) for group in groups] == [2, 1]


def test_texts_of_different_widths_are_told_apart() -> None:
    assert write_fixed(np.array([b"ab", b"c", b""])).to_pylist() == ["ab", "c", ""]
    assert write_fixed(np.array([b"ab", b"cd"])).to_pylist() == ["ab", "cd"]
    assert write_fixed(np.array([], "S2")).to_pylist() == []


def test_large_entries_make_short_pages() -> None:
    cell = Cell(Column("c", 0, 4), False, "", write_integers)
    assert Lines([cell], "\n", Endian.LITTLE, 65535).rows < 400
    assert Lines([cell], "\n", Endian.LITTLE, 100 << 20).rows == 1


def test_without_columns_or_rows_there_are_no_lines() -> None:
    page = Lines([], "\n", Endian.LITTLE, 4).page()
    page.add(np.zeros(3, "V4"))
    assert page.text() == []
    cell = Cell(Column("c", 0, 4), False, "", write_integers)
    page = Lines([cell], "\n", Endian.LITTLE, 4).page()
    page.add(np.zeros(0, "V4"))
    assert page.text() == []


def test_a_failing_output_ends_it() -> None:
    class Full(io.RawIOBase):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

        def writelines(self, _: Any) -> None:
            self.write(b"")

    cell = Cell(Column("c", 0, 4), False, "", write_integers)
    written = Lines([cell], "\n", Endian.LITTLE, 4)

    def pages() -> Any:
        while True:
            page = written.page()
            page.add(np.zeros(10, "V4"))
            yield page

    with pytest.raises(OSError, match="No space"):
        write_pages(pages(), Full())
