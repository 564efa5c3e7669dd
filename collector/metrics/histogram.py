# SPDX-License-Identifier: Apache-2.0
"""Histograms of durations in fixed buckets: powers of two of a microsecond."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BITS = 64


class Histogram:
    """Counts of durations. Bucket k, from `least` to `most`, has those up to 2^k us; the last those
    beyond too."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._counts = np.zeros(_BITS, np.int64)
        self._sum_us = 0.0

    def add(self, values_us: NDArray[Any]) -> None:
        """Count durations: (n,) unsigned integers [us]."""
        if not len(values_us):
            return
        # 2^(k-1) <= v - 1 < 2^k means that 2^(k-1) < v <= 2^k.
        exponents = np.frexp(np.maximum(values_us, 1).astype(np.float64) - 1)[1]
        self._counts += np.bincount(exponents, minlength=_BITS)[:_BITS]
        self._sum_us += float(values_us.sum(dtype=np.float64))

    def told(self) -> dict[str, Any]:
        """For JSON: the bounds' exponents, how many durations each bucket has, sum and count."""
        least, most = self._least, self._most
        counts = self._counts[least : most + 1].copy()
        counts[0] += self._counts[:least].sum()
        beyond = int(self._counts[most + 1 :].sum())
        return {
            "log2_us": [least, most],
            "counts": counts.tolist(),
            "beyond": beyond,
            "sum_us": self._sum_us,
        }
