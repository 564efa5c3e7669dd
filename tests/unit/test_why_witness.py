# SPDX-License-Identifier: Apache-2.0
"""The witnesses of scripts/why: spans of known truth from a link's trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collector.lab.link import FATES, NOTE
from scripts.why import witness

LOST = FATES.index("random")
FIN, ACK = 1, 16


def trace(*packets: tuple[float, float, int, int, int, int, int]) -> Any:
    """Came and left [s], way, first byte, bytes, fate, TCP flags."""
    rows = np.zeros(len(packets), NOTE)
    for row, (came, left, way, seq, data, fate, flags) in zip(rows, packets, strict=True):
        row["in_ns"], row["out_ns"] = int(came * 1e9), int(left * 1e9)
        row["way"], row["seq"], row["data"] = way, seq, data
        row["fate"], row["flags"] = fate, flags
    return rows


def rounded(spans: list[witness.Span]) -> list[tuple[float, float, tuple[str, ...]]]:
    edge = witness.EDGE_S
    return [(round(begin - edge, 6), round(end + edge, 6), truth) for begin, end, truth in spans]


def test_it_closes_when_the_last_byte_is_sent() -> None:
    seen = trace((1.0, 1.01, 0, 0, 1000, 0, ACK), (1.2, 1.21, 0, 1000, 1000, 0, ACK | FIN),
                 (1.21, 1.23, 1, 0, 0, 0, ACK))  # fmt: skip
    found = witness.closes(2000, ("cwnd",))(seen, 0.9)
    assert rounded(found) == [(1.0, 1.2, ("cwnd",)), (1.2, 1.23, ("closing",))]


def test_a_repair_lasts_until_the_sender_knows() -> None:
    seen = trace((1.0, 1.0, 0, 0, 1000, LOST, ACK), (1.3, 1.31, 0, 0, 1000, 0, ACK),
                 (1.31, 1.32, 1, 0, 0, 0, ACK))  # fmt: skip
    assert rounded(witness.repairs()(seen, 0.9)) == [(1.0, 1.32, witness.REPAIR)]


def test_a_receiver_has_a_hole_while_a_byte_is_missing() -> None:
    seen = trace((1.0, 1.01, 0, 0, 100, 0, ACK), (1.1, 1.1, 0, 100, 100, LOST, ACK),
                 (1.1, 1.11, 0, 200, 100, 0, ACK), (1.2, 1.21, 0, 100, 100, 0, ACK),
                 (1.3, 1.31, 0, 300, 100, 0, ACK))  # fmt: skip
    assert rounded(witness.holes()(seen, 0.9)) == [
        (1.01, 1.11, ("rx_none",)), (1.11, 1.21, ("rx_reorder",)), (1.21, 1.31, ("rx_none",)),
    ]  # fmt: skip


def test_what_did_not_happen_is_no_witness() -> None:
    with pytest.raises(AssertionError, match="sent again"):
        witness.resent()(trace((1.0, 1.01, 0, 0, 100, 0, ACK)), 0.9)
