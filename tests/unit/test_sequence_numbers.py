# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of sequence numbers, against Python's own integers, around where they begin again."""

from __future__ import annotations

import numpy as np
import pytest

from tcpkmon.formats.base.sequence import ahead, ahead_of

EDGES = [0, 1, 1000, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1000, 2**32 - 1]


@pytest.mark.parametrize("kind", [np.uint32, np.int64, np.uint64])
def test_the_shorter_way_round(kind: type) -> None:
    now, before = (part.ravel() for part in np.meshgrid(EDGES, EDGES))
    wanted = [(a - b + 2**31) % 2**32 - 2**31 for a, b in zip(now.tolist(), before.tolist(),
                                                              strict=True)]  # fmt: skip
    found = ahead_of(now.astype(kind), before.astype(kind))
    assert found.dtype == np.int64
    assert found.tolist() == wanted
    assert [ahead(*pair) for pair in zip(now.tolist(), before.tolist(), strict=True)] == wanted


def test_numbers_that_went_on_past_their_end() -> None:
    assert ahead_of(np.array([5, 2**32 - 5]), np.array([3 * 2**32 + 2, 2**33 + 1])).tolist() == [
        3, -6,
    ]  # fmt: skip
