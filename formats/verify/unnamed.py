# SPDX-License-Identifier: Apache-2.0
"""Counts the records of control groups of which a capture does not say whose they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import Control
from tcpkmon.formats.base.whose import Groups

_MOST_IDS = 1 << 16


class Unnamed:
    """settings: of the header. Feed the ids of all records, and the control entries."""

    def __init__(self, settings: Any) -> None:
        self._groups = Groups(settings)
        self._records: Counter[int] = Counter()

    def feed(self, ids: NDArray[Any]) -> None:
        """(n,) of records; 0: the record has no group."""
        found, counts = np.unique(ids[ids != 0], return_counts=True)
        pairs = zip(found.tolist(), counts.tolist(), strict=True)
        if len(self._records) < _MOST_IDS:
            self._records.update(dict(pairs))

    def tell(self, entry: Control) -> None:
        """A control entry."""
        self._groups.feed(entry)

    def notes(self) -> list[str]:
        """Lines for a person. A capture that tells of no group says nothing."""
        if not len(self._groups):
            return []
        told = []
        unnamed = {one: n for one, n in self._records.items() if self._groups.get(one) is None}
        if unnamed:
            told.append(
                f"{len(unnamed)} control group(s) without a name, of {sum(unnamed.values())} "
                "record(s)"
            )
        if self._groups.unknown:
            told.append(f"{self._groups.unknown} control group(s) came and went unseen")
        return told
