# SPDX-License-Identifier: Apache-2.0
"""What the connections of each unit and pod transferred, for the metrics: a bounded number of rows.

Sums are by the id of the control group, which gets its names when somebody asks, as a pod's may be
known later than its first record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.group_names import MOST_GROUPS, Group

MOST_OWNERS = 200
"""Units and pods with a row of their own, in the order in which they were seen; OTHER has the rest.
"""
OTHER = ("other", "")
SUMS = ("acked", "received", "retransmits")
Find = Callable[[int], Group | None]
Label = tuple[str, str]
"""Unit and pod; empty where it has none, or nobody knows."""


def unknown(number: int) -> Group | None:
    """Finds no group: of a capture without their names."""
    return None


class Owners:
    """find: the group of an id, if it is known."""

    def __init__(self, find: Find = unknown) -> None:
        self._find = find
        self._sums: dict[int, list[int]] = {}
        self._labels: dict[int, Label] = {}
        self._forgotten: dict[Label, list[int]] = {}
        self._seen: dict[Label, None] = {}

    def add(self, name: str, ids: NDArray[Any], values: NDArray[np.int64]) -> None:
        """Count values, (n,), of SUMS, of the groups of these ids, (n,)."""
        distinct, which = np.unique(ids, return_inverse=True)
        sums = np.bincount(which.reshape(-1), values, len(distinct))
        place = SUMS.index(name)
        for number, value in zip(distinct.tolist(), sums.tolist(), strict=True):
            self._sums.setdefault(number, [0] * len(SUMS))[place] += int(value)
        if len(self._sums) > MOST_GROUPS:
            self._fold()

    def told(self, open_ids: NDArray[Any]) -> list[list[Any]]:
        """Unit, pod, connections that are open, and SUMS. open_ids: (n,) of those connections."""
        rows = {label: [0, *sums] for label, sums in self._forgotten.items()}
        numbers, counts = np.unique(open_ids, return_counts=True)
        is_open = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        for number in dict.fromkeys((*self._sums, *is_open)):
            row = rows.setdefault(self._label(number), [0] * (1 + len(SUMS)))
            row[0] += is_open.get(number, 0)
            for place, value in enumerate(self._sums.get(number, ()), 1):
                row[place] += value
        found: dict[Label, list[int]] = {}
        for label, row in rows.items():
            if len(self._seen) < MOST_OWNERS:
                self._seen.setdefault(label)
            into = found.setdefault(label if label in self._seen else OTHER, [0] * len(row))
            for place, value in enumerate(row):
                into[place] += value
        return [[*label, *row] for label, row in found.items()]

    def _label(self, number: int) -> Label:
        """The last that is known: a group may be gone."""
        if (group := self._find(number)) is not None:
            self._labels[number] = group.unit, group.pod
        return self._labels.get(number, ("", ""))

    def _fold(self) -> None:
        """Keep the sums of the older half by their names alone."""
        for number in list(self._sums)[: len(self._sums) // 2]:
            sums, label = self._sums.pop(number), self._label(number)
            self._labels.pop(number, None)
            into = self._forgotten.setdefault(label, [0] * len(SUMS))
            for place, value in enumerate(sums):
                into[place] += value
