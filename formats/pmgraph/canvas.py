# SPDX-License-Identifier: Apache-2.0
"""A grid of characters to draw on, each cell of 2 by 4 braille dots (or one ASCII sign)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Bits of U+2800 by (row, column) within a cell.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)
_RESET = "\x1b[0m"


class Canvas:
    """`width` by `height` cells; dots count from the lower left, (0, 0) to dots_across/dots_up."""

    def __init__(self, width: int, height: int, ascii_only: bool = False) -> None:
        self.width, self.height = width, height
        self._ascii = ascii_only
        self._dot_columns, self._dot_rows = (1, 1) if ascii_only else (2, 4)
        self._dots = np.zeros((height, width), np.uint8)
        self._colours = np.zeros((height, width), np.int8)
        self._signs: dict[tuple[int, int], str] = {}

    @property
    def dots_across(self) -> int:
        """Dots from left to right."""
        return self.width * self._dot_columns

    @property
    def dots_up(self) -> int:
        """Dots from bottom to top."""
        return self.height * self._dot_rows

    def set_dots(self, across: Array, up: Array, colour: int) -> None:
        """Set dots (integer arrays); those outside are left out. `colour` is 1 to 7, 0 is none."""
        inside = (across >= 0) & (across < self.dots_across) & (up >= 0) & (up < self.dots_up)
        across, down = across[inside], self.dots_up - 1 - up[inside]
        rows, columns = down // self._dot_rows, across // self._dot_columns
        bits = _DOTS[down % self._dot_rows, across % self._dot_columns]
        np.bitwise_or.at(self._dots, (rows, columns), bits)
        self._colours[rows, columns] = colour

    def draw_steps(self, across: Array, up: Array, colour: int) -> None:
        """Draw a step line: each height holds until the next point (steps-post)."""
        inside = np.clip(up, 0, self.dots_up - 1)
        for place in range(len(across)):
            last = place == len(across) - 1
            end = across[place] if last else across[place + 1]
            level = np.arange(across[place], end + 1)
            self.set_dots(level, np.full(len(level), inside[place]), colour)
            if not last:
                low, high = sorted((int(inside[place]), int(inside[place + 1])))
                rise = np.arange(low, high + 1)
                self.set_dots(np.full(len(rise), end), rise, colour)

    def put_sign(self, across: int, up: int, sign: str) -> None:
        """Put one character over the cell that holds a dot; the first one put there stays."""
        column = min(max(across // self._dot_columns, 0), self.width - 1)
        row = min(max((self.dots_up - 1 - up) // self._dot_rows, 0), self.height - 1)
        self._signs.setdefault((row, column), sign)

    def shade(self, begin: int, end: int, sign: str) -> None:
        """Fill the empty cells of the columns that hold the dots begin..end with a character."""
        first, last = begin // self._dot_columns, end // self._dot_columns
        for column in range(max(first, 0), min(last, self.width - 1) + 1):
            for row in range(self.height):
                if not self._dots[row, column]:
                    self._signs.setdefault((row, column), sign)

    def lines(self, coloured: bool) -> list[str]:
        """The rows from the top, as text."""
        return [self._line(row, coloured) for row in range(self.height)]

    def _line(self, row: int, coloured: bool) -> str:
        cells = [self._cell(row, column) for column in range(self.width)]
        while cells and cells[-1][1] == " ":
            cells.pop()
        runs = itertools.groupby(cells, lambda cell: cell[0])
        return "".join(paint("".join(c for _, c in run), key, coloured) for key, run in runs)

    def _cell(self, row: int, column: int) -> tuple[int, str]:
        """Colour and character of one cell."""
        sign = self._signs.get((row, column))
        dots = int(self._dots[row, column])
        if sign is not None or not dots:
            return 0, sign or " "
        return int(self._colours[row, column]), "*" if self._ascii else chr(0x2800 + dots)


def paint(text: str, colour: int, coloured: bool) -> str:
    """`text` in one of the terminal's colours 1 to 7, or as it is."""
    return f"\x1b[3{colour}m{text}{_RESET}" if coloured and colour else text
