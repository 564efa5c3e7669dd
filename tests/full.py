# SPDX-License-Identifier: Apache-2.0
"""Whether scripts/test --full runs: then tests try all of what they else try a part of."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

IS_FULL = os.environ.get("TCPKMON_FULL") == "1"


def examples(count: int) -> int:
    """Of Hypothesis: so many with --full, else a quarter."""
    return count if IS_FULL else max(count // 4, 1)


def first(count: int, cases: Iterable[object]) -> list[object]:
    """For parametrize: so many of the cases; the others with --full."""
    return [
        one if at < count else
        pytest.param(*one if isinstance(one, tuple) else [one], marks=pytest.mark.full)
        for at, one in enumerate(cases)
    ]  # fmt: skip
