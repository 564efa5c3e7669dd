# SPDX-License-Identifier: Apache-2.0
"""Random plans, rows and columns for lines of text, and each text as it should be, one by one."""

from __future__ import annotations

import contextlib
import itertools
from datetime import datetime, timedelta, timezone
from unittest import mock

import numpy as np

from tcpkmon.formats.base.byteorder import Endian, significance
from tcpkmon.formats.lines import Cell, Kind, Plan, Rows, Source, StringWriter, strings
from tcpkmon.formats.lines import native as native_module
from tcpkmon.formats.lines.native import Writer

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TELLING = (0, 1, 9, 10, 99_999_999, 10**8, 10**16 - 1, 10**16, 2**63 - 1, 2**63, 2**64 - 1)


def text_of(value: bytes) -> str:
    return f"<{value.hex()}é>" * (1 + value[0] % 3) if value[0] % 7 else ""


def random_cell(random: np.random.Generator, size: int, sides: int) -> Cell:
    kind = Kind(random.integers(5))
    source = Source(random.choice([0, 0, 0, 1, 2]))
    offset = int(random.integers(size))
    length = int(random.integers(1, size - offset + 1))
    text = text_of if kind == Kind.TEXT else None
    if kind in (Kind.HEX, Kind.TEXT):
        source = Source.INTEGER
    elif source == Source.SIDE and sides:
        offset, length = int(random.integers(sides)), 8
    elif source == Source.TIMEVAL and size >= 16:
        length = int(random.choice([8, 16]))
        offset = int(random.integers(size - length + 1))
    else:
        source, length = Source.INTEGER, min(length, 8)
    before = str(random.choice(["", ",", '","', "ü\t", "x" * 90]))
    has_none = kind == Kind.NUMBER and source == Source.INTEGER and random.integers(2)
    none = int(random.choice([0, 1, 255, 65535, 99_999_999, 2**32 - 1])) if has_none else None
    return Cell(
        before, kind, offset, length, Endian(random.integers(3)), source, bool(random.integers(2)),
        int(random.choice([1, 1, 4096, 2**63])), int(random.choice([0, 0, 10**18])),
        int(random.choice([6, 9])), str(random.choice(["T", " "])), text, none,
        str(random.choice(["", "null", "8 letter"])),
    )  # fmt: skip


def random_plan(random: np.random.Generator, sides: int) -> Plan:
    size = int(random.choice([1, 5, 8, 17, 40, 200]))
    count = int(random.choice([0, 1, 5, 63, 64, 65, 130]))
    cells = [random_cell(random, size, sides) for _ in range(count)]
    keys = []
    for _ in range(random.integers(5) if size >= 8 else 0):
        length = int(random.integers(1, 9))
        keys.append((int(random.integers(size - length + 1)), length))
    return Plan(cells, str(random.choice(["", "\n", "}\n"])), size, keys)


def random_rows(random: np.random.Generator, plans: list[Plan], sides: int) -> Rows:
    """Rows in any order that differ little from one another, numbers of all sizes among them."""
    count = int(random.integers(0, 25))
    numbers = random.integers(0, len(plans), count).astype(np.uint16)
    sizes = np.array([plan.size for plan in plans])
    data = random.integers(0, 256, int(sizes.max() * (count + 1)), np.uint8)
    offsets = random.integers(0, len(data) - sizes[numbers] + 1).astype(np.int64)
    alike = random.integers(0, len(data) - sizes[0] + 1)
    for row in range(count):
        size, at = int(sizes[numbers[row]]), int(offsets[row])
        if row and random.integers(4):
            data[at : at + size] = np.resize(data[alike : alike + size], size)
            data[at + random.integers(size)] = random.integers(256)
        if random.integers(2) and size >= 8:
            place = at + random.integers(size - 7)
            number = int(random.choice(TELLING[:8])) or TELLING[random.integers(len(TELLING))]
            order = "little" if random.integers(2) else "big"
            data[place : place + 8] = np.frombuffer(number.to_bytes(8, order), np.uint8)
    columns = [random.integers(-(2**63), 2**63 - 1, count, np.int64) for _ in range(sides)]
    if len(plans) == 1 and random.integers(2):
        return Rows(data[: count * plans[0].size].copy(), count, sides=columns)
    return Rows(data, count, offsets, numbers, columns)


def random_case(seed: int) -> tuple[list[Plan], Rows]:
    random = np.random.default_rng(seed)
    sides = int(random.integers(3))
    plans = [random_plan(random, sides) for _ in range(random.choice([1, 1, 3]))]
    return plans, random_rows(random, plans, sides)


def integer(data: bytes, order: Endian) -> int:
    order = Endian.LITTLE if order == Endian.PDP and len(data) <= 2 else order
    return int.from_bytes(bytes(data[at] for at in significance(len(data), order)), "big")


def signed_64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def value_by_hand(cell: Cell, row: bytes, sides: list[int]) -> str:
    data = row[cell.offset : cell.offset + cell.length]
    if cell.kind == Kind.HEX:
        return data.hex()
    if cell.kind == Kind.TEXT:
        return text_of(data)
    if cell.source == Source.SIDE:
        number = sides[cell.offset]
    elif cell.source == Source.TIMEVAL:
        half = cell.length // 2
        number = integer(data[:half], cell.order) * 10**9 + integer(data[half:], cell.order) * 1000
    else:
        number = integer(data, cell.order)
        bits = 8 * cell.length
        if cell.signed and cell.length in (1, 2, 4, 8) and number >= 2 ** (bits - 1):
            number -= 2**bits
        if cell.none is not None and number == cell.none:
            return cell.null
    if cell.kind == Kind.NUMBER:
        number = number * cell.factor % 2**64
        return str(signed_64(number) if cell.is_signed else number)
    time_ns = signed_64(number - cell.zero)
    if cell.kind == Kind.SECONDS:
        seconds, rest = divmod(abs(time_ns), 10**9)
        return f"{'-' if time_ns < 0 else ''}{seconds}.{f'{rest:09d}'[: cell.digits]}"
    moment = EPOCH + timedelta(seconds=time_ns // 10**9)
    fraction = f"{time_ns % 10**9:09d}"[: cell.digits]
    return f"{moment:%Y-%m-%d}{cell.between}{moment:%H:%M:%S}.{fraction}Z"


def lines_by_hand(plans: list[Plan], rows: Rows) -> bytes:
    text = ""
    for number in range(rows.count):
        plan = plans[0 if rows.plans is None else rows.plans[number]]
        start = number * plan.size if rows.offsets is None else int(rows.offsets[number])
        row = rows.data[start : start + plan.size].tobytes()
        sides = [int(side[number]) for side in rows.sides]
        text += "".join(cell.before + value_by_hand(cell, row, sides) for cell in plan.cells)
        text += plan.after
    return text.encode()


def random_column(seed: int) -> np.ndarray:
    """Values that often repeat, of a width that depends on the seed."""
    random = np.random.default_rng(seed)
    width = (1, 2, 4, 8, 16, 5, 40)[seed % 7]
    known = random.integers(0, 256, (int(random.integers(1, 50)), width), np.uint8)
    values = known[np.repeat(random.integers(0, len(known), 200), random.integers(0, 4, 200))]
    kind = f"V{width}" if width > 8 or width == 5 else f"{'iu'[seed % 2]}{width}"
    return np.ascontiguousarray(values).view(kind).reshape(-1)


def text_by_hand(value: int | bytes) -> str:
    """A text of 0 to some hundred characters, not only of ASCII."""
    data = value if isinstance(value, bytes) else b"%d" % value
    return (data.hex() + "\u20ac") * (data[-1] % 5)


def strings_of(writer: StringWriter, values: np.ndarray) -> list[str]:
    written = writer.write(values)
    assert written is not None
    offsets, data = (part.tolist() for part in written)
    return [bytes(data[low:high]).decode() for low, high in itertools.pairwise(offsets)]


def strings_by_hand(values: np.ndarray) -> list[str]:
    is_number = values.dtype.kind in "iu"
    return [text_by_hand(int(value) if is_number else bytes(value)) for value in values]


_SMALL = (
    (native_module, "_OUT_BYTES", 5000), (native_module, "MOST_TEXT_BYTES", 2000),
    (strings, "_KNOWN_MAX", 20), (strings, "_TEXT_BYTES", 1),
)  # fmt: skip
"""Rooms so small that their ends are met."""


def check_case(seed: int) -> None:
    """Write a column and lines, then rows outside of the data. AssertionError for a wrong text."""
    with contextlib.ExitStack() as stack:
        for module, name, value in _SMALL:
            stack.enter_context(mock.patch.object(module, name, value))
        _check_column(seed)
        _check_lines(seed)


def _check_column(seed: int) -> None:
    column, writer = random_column(seed), StringWriter(text_by_hand)
    for part in (column, column[7:], column[:0]):
        assert strings_of(writer, part) == strings_by_hand(part), seed


def _check_lines(seed: int) -> None:
    plans, rows = random_case(seed)
    writer = Writer(plans)
    for _ in range(2):
        assert b"".join(writer.write(rows)) == lines_by_hand(plans, rows), seed
    if rows.offsets is None or not rows.count:
        return
    for outside in (-1, -(2**63), len(rows.data), 2**63 - 1):
        rows.offsets[-1] = outside
        try:
            writer.write(rows)
        except ValueError:
            continue
        raise AssertionError(f"{seed}: a row at {outside} was written")
