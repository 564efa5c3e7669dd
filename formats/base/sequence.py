# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of TCP's sequence numbers: 32 bits, which begin again at 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ahead_of(now: NDArray[Any], before: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) by how much sequence numbers are ahead of others, the shorter way round: -2^31 to
    2^31 - 1; behind is negative. Integers of any width; the low 32 bits count."""
    step = now.astype(np.uint32, copy=False) - before.astype(np.uint32, copy=False)
    found: NDArray[np.int64] = step.view(np.int32).astype(np.int64)
    return found


def ahead(now: int, before: int) -> int:
    """The same of two numbers, of which the low 32 bits count."""
    return (now - before + (1 << 31)) % (1 << 32) - (1 << 31)
