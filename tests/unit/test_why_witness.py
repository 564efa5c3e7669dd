# SPDX-License-Identifier: Apache-2.0
"""The witnesses of tests/truth/why: spans of known truth from a link's trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.lab.link import FATES, NOTE
from tests.truth.why import chronograph, witness
from tests.truth.why.chronograph import Sample

LOST, DOWN = FATES.index("random"), FATES.index("down")
FIN, SYN, ACK = 1, 2, 16
FLOWS, STALLED = ("cwnd",), ("rwnd",)


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


def test_a_message_that_goes_at_once_is_bounded_by_nothing() -> None:
    seen = trace((1.0, 1.01, 0, 0, 1000, 0, ACK), (1.1, 1.11, 0, 1000, 1000, 0, ACK),
                 (1.101, 1.111, 0, 2000, 1000, 0, ACK), (1.2, 1.21, 0, 3000, 1000, 0, ACK),
                 (1.3, 1.3, 0, 4000, 1000, LOST, ACK), (1.4, 1.41, 0, 5000, 1000, 0, ACK),
                 (1.5, 1.51, 0, 6000, 1000, 0, ACK))  # fmt: skip
    found = witness.messages(1000, 2000, truth=FLOWS, skip=0)(seen, 0.9)
    app = ("app", "idle")
    assert rounded(found) == [
        (1.0, 1.1, app), (1.101, 1.2, app),  # two segments in 1 ms
        (1.2, 1.3, app), (1.3, 1.4, FLOWS),  # lost: it does not wait for the program alone
    ]  # fmt: skip


def test_a_stall_is_a_time_in_which_no_data_passes() -> None:
    data = [(1.0 + at / 100, 1.01 + at / 100, 0, 10 * at, 10, 0, ACK) for at in range(30)]
    data += [(1.8 + at / 100, 1.81 + at / 100, 0, 300 + 10 * at, 10, 0, ACK) for at in range(20)]
    seen = trace(*data)
    assert rounded(witness.stalls(STALLED, FLOWS)(seen, 0.9)) == [
        (1.2, 1.21, FLOWS), (1.33, 1.8, STALLED), (1.88, 1.99, FLOWS),
    ]  # fmt: skip
    assert rounded(witness.stalls(STALLED, received_s=0.02)(seen, 0.9)) == [(1.34, 1.79, STALLED)]


def test_an_outage_lasts_until_the_sender_hears_again() -> None:
    seen = trace((1.0, 1.01, 0, 0, 10, 0, ACK), (1.3, 1.31, 0, 10, 10, 0, ACK),
                 (1.31, 1.32, 1, 0, 0, 0, ACK), (1.4, 1.4, 0, 20, 10, DOWN, ACK),
                 (1.9, 1.91, 0, 20, 10, 0, ACK), (1.91, 1.92, 1, 0, 0, 0, ACK),
                 (2.0, 2.01, 0, 30, 10, 0, ACK))  # fmt: skip
    assert rounded(witness.outage(FLOWS)(seen, 0.9)) == [
        (1.1, 1.32, FLOWS), (1.32, 1.92, witness.REPAIR), (1.92, 2.0, FLOWS),
    ]  # fmt: skip


def test_a_peer_that_died_is_waited_for_once_something_was_sent_again() -> None:
    seen = trace((1.0, 1.01, 0, 0, 10, 0, ACK), (1.4, 1.4, 0, 10, 10, DOWN, ACK),
                 (1.5, 1.5, 0, 20, 10, DOWN, ACK), (1.7, 1.7, 0, 10, 10, DOWN, ACK),
                 (2.1, 2.1, 0, 10, 10, DOWN, ACK))  # fmt: skip
    assert rounded(witness.dies(("app",))(seen, 0.9)) == [
        (1.1, 1.4, ("app",)), (1.7, 2.1, witness.REPAIR),
    ]  # fmt: skip


def test_of_several_connections_the_last_one_is_told() -> None:
    short = [(0.0, 0.0, 0, 0, 0, 0, SYN), (0.1, 0.11, 0, 0, 1000, 0, ACK)]
    seen = trace(*short, (1.0, 1.01, 0, 0, 0, 0, SYN), (1.1, 1.11, 0, 0, 1000, 0, ACK),
                 (1.2, 1.21, 0, 1000, 1000, 0, ACK | FIN),
                 (1.21, 1.23, 1, 0, 0, 0, ACK))  # fmt: skip
    found = witness.of_the_last(witness.closes(2000, FLOWS))(seen, 0.9)
    assert rounded(found) == [(1.1, 1.2, FLOWS), (1.2, 1.23, ("closing",))]


@pytest.mark.parametrize(("last", "truth"), [
    (Sample(1.04, 0, 10, 10, 500, 37_000, 0), STALLED),  # 37 of 40 ms
    (Sample(1.04, 0, 9, 10, 500, 0, 0), FLOWS),
    (Sample(1.04, 3, 2, 10, 500, 0, 0), FLOWS),  # it recovers
    (Sample(1.04, 0, 9, 10, 500, 20_000, 0), None),  # half of it
    (Sample(1.04, 0, 9, 10, 500, 0, 4_000), None),  # the send buffer, too
    (Sample(1.04, 0, 9, 10, 0, 0, 0), None),  # nothing unsent
    (Sample(1.04, 0, 2, 10, 500, 0, 0), None),  # the window is not full
])  # fmt: skip
def test_what_the_kernels_chronographs_tell(
    last: Sample, truth: tuple[str, ...] | None
) -> None:  # fmt: skip
    first = Sample(1.0, 0, 10, 10, 500, 0, 0)
    found = chronograph.judged([first, last], STALLED, FLOWS)
    assert found == ([(1.0, 1.04, truth)] if truth else [])
