# SPDX-License-Identifier: Apache-2.0
"""Writes the same lines by numpy and Python if lines.c is not compiled; over ten times slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.byteorder import integers, strided
from tcpkmon.formats.base.times import format_ns, format_utc
from tcpkmon.formats.lines.cells import Cell, Kind, Plan, Rows, Source


class PlainWriter:
    """Writes rows of these plans."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = list(plans)

    def write(self, rows: Rows) -> list[bytes]:
        """The lines of the rows, in pieces."""
        lines: npt.NDArray[Any] = np.empty(rows.count, object)
        plans = np.zeros(rows.count, np.uint16) if rows.plans is None else rows.plans
        for number in np.unique(plans).tolist():
            plan = self._plans[number]
            at = np.flatnonzero(plans == number)
            if rows.offsets is None:
                data = rows.data[: rows.count * plan.size]
            else:
                data = rows.data[rows.offsets[at][:, None] + np.arange(plan.size)].reshape(-1)
            # Rows of no bytes have values in `sides` only.
            found = data.view(f"V{plan.size}") if plan.size else np.zeros(len(at), "V1")
            lines[at] = _lines(plan, found, [side[at] for side in rows.sides])
        return ["".join(lines.tolist()).encode("utf-8", "backslashreplace")]


def _lines(plan: Plan, rows: npt.NDArray[Any], sides: Sequence[npt.NDArray[Any]]) -> list[str]:
    cells = [[cell.before + text for text in _texts(cell, rows, sides)] for cell in plan.cells]
    if not cells:
        return [plan.after] * len(rows)
    return ["".join(parts) + plan.after for parts in zip(*cells, strict=True)]


def _texts(cell: Cell, rows: npt.NDArray[Any], sides: Sequence[npt.NDArray[Any]]) -> Sequence[str]:
    if cell.kind in (Kind.HEX, Kind.TEXT):
        data = strided(rows, cell.offset, np.dtype(f"V{cell.length}")).tobytes()
        values = [data[at : at + cell.length] for at in range(0, len(data), cell.length)]
        if cell.text is None:
            return [value.hex() for value in values]
        known = {value: cell.text(value) for value in set(values)}
        return [known[value] for value in values]
    numbers = _numbers(cell, rows, sides)
    if cell.kind == Kind.NUMBER:
        void = np.flatnonzero(numbers == np.uint64((cell.none or 0) % 2**64)).tolist()
        numbers = numbers * np.uint64(cell.factor % 2**64)
        texts = list(map(str, (numbers.view(np.int64) if cell.is_signed else numbers).tolist()))
        for at in void if cell.none is not None else ():
            texts[at] = cell.null
        return texts
    times = (numbers - np.uint64(cell.zero % 2**64)).view(np.int64)
    if cell.kind == Kind.UTC:
        return format_utc(times, cell.between, cell.digits)
    return format_ns(times, cell.digits)


def _numbers(
    cell: Cell, rows: npt.NDArray[Any], sides: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.uint64]:
    """Modulo 2^64."""
    if cell.source == Source.SIDE:
        return sides[cell.offset].astype(np.uint64)
    if cell.source == Source.TIMEVAL:
        half = cell.length // 2
        seconds = integers(rows, cell.offset, half, cell.order).astype(np.uint64)
        micros = integers(rows, cell.offset + half, half, cell.order).astype(np.uint64)
        found: npt.NDArray[np.uint64] = (seconds * np.uint64(1_000_000) + micros) * np.uint64(1000)
        return found
    values = integers(rows, cell.offset, cell.length, cell.order)
    if cell.is_signed:
        values = values.astype(f"i{cell.length}")
    return values.astype(np.uint64)
