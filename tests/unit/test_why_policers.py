# SPDX-License-Identifier: Apache-2.0
"""Rates from loss to loss: what tells a policer from losses by chance."""

from __future__ import annotations

import numpy as np
import pytest

from tcpkmon.formats.analysis.why import fold
from tests.unit.test_why import block_of, snapshots


@pytest.mark.parametrize("acked, spread", [
    ([100_000] * 6, 0.0), ([20_000, 40_000, 80_000, 160_000, 320_000, 640_000], 3.3),
    ([100_000] * 4, None), ([100_000, 9_000] * 4, None),
])  # fmt: skip
def test_rates_from_loss_to_loss(acked: list[int], spread: float | None) -> None:
    """Recovery begins each second; between two of the losses so much is acknowledged. Less than
    twenty segments tell nothing."""
    una = np.cumsum([1000, *acked])
    rows = len(una)
    whole = snapshots(
        [1000 * (n + 1) for n in range(rows)], location=[5] * rows, callvalue=[3] * rows,
        ca_state=[0] * rows, snd_una=una.tolist(), snd_max=(una + 10_000).tolist(), mss=1000,
    )  # fmt: skip
    (got,) = fold(block_of(whole))[0]["loss_rate_spread"]
    assert np.isnan(got) if spread is None else got == pytest.approx(spread, abs=0.4)
