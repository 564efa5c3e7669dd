# SPDX-License-Identifier: Apache-2.0
"""Writes PSC captures of the default columns in any size, for the tables of why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.unit.captures import Plain

DEFAULT = {
    "seq": 8, "time_ns": 8, "serial": 8, "conn_id": 8, "laddr": 16, "raddr": 16, "pacing_rate": 8,
    "busy_us": 8,
    "snd_una": 4, "rcv_nxt": 4, "snd_wnd": 4, "rcv_wnd": 4, "snd_ssthresh": 4, "snd_cwnd_segs": 4,
    "srtt_us": 4, "min_rtt_us": 4, "packets_out": 4, "retrans_out": 4, "sacked_out": 4,
    "lost_out": 4, "mss": 4, "sk_wmem_bytes": 4, "sk_rcvbuf": 4, "seg_seq": 4, "seg_len": 4,
    "state": 4, "ca_state": 4, "family": 4, "sk_wmem_alloc": 4, "first_tx_us": 4,
    "next_tx_us": 4, "cpu": 2, "seg_flags": 2, "snd_wscale": 2, "sk_tsq_flags": 2,
    "sk_pacing_status": 2, "sk_nospace": 2,
}  # fmt: skip
_ADDRESS = np.frombuffer(b"\0" * 10 + b"\xff\xff\x0a\0\0\x01", "V16")[0]
_PIECE = 1 << 17
CLOCK = (1_000_000, 1_700_000_000_000_000_000, 0)


def write_capture(
    path: Path, records: int, flows: int, lose: Set[int] = frozenset(), mean: int = 40,
    receiver: bool = False, settings: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """So many records of connections in turn; a limit lasts for `mean` of its records.

    lose: the records that are missing. receiver: with what tells a receiver's waits.
    """
    plain = Plain(DEFAULT | ({"rcv_rtt_us": 4} if receiver else {}))

    def pieces() -> Iterator[NDArray[Any]]:
        for low in range(0, records, _PIECE):
            rows = _rows(np.arange(low, min(low + _PIECE, records)), flows, mean, plain.dtype)
            if receiver:
                rows["rcv_rtt_us"], rows["seg_seq"] = 1000, rows["rcv_nxt"]
            yield rows[[n not in lose for n in range(low, low + len(rows))]] if lose else rows

    return plain.write(path, pieces(), len(lose), records + 1, records * 1000, clock=CLOCK,
                       settings={"locations": [1], **(settings or {})})  # fmt: skip


def _rows(at: NDArray[Any], flows: int, mean: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    rows = np.zeros(len(at), dtype)
    flow, step = at % flows, at // flows
    rows["location"] = 1
    rows["location"][step % 97 == 96] = 2
    rows["seq"], rows["serial"], rows["time_ns"] = at + 2, at + 1, at * 1000
    rows["seq_no"] = at + 2
    rows["conn_id"], rows["lport"], rows["rport"] = flow + 1, 5001 + flow % 60_000, 80
    rows["laddr"] = rows["raddr"] = _ADDRESS
    rows["state"], rows["family"], rows["mss"] = 1, 2, 1448
    rows["snd_una"] = rows["rcv_nxt"] = step * 1448
    rows["snd_max"] = (step + 10) * 1448
    rows["snd_cwnd_segs"], rows["snd_ssthresh"], rows["packets_out"] = 10, 5, 10
    rows["snd_sb_cc"] = np.where(step // mean % 2, 1 << 20, 10 * 1448)
    rows["sb_hiwat"], rows["snd_wnd"], rows["rcv_wnd"] = 1 << 22, 1 << 20, 65536
    rows["sk_wmem_bytes"], rows["sk_rcvbuf"] = 1 << 20, 131072
    rows["pacing_rate"] = (1 << 64) - 1
    rows["srtt_us"], rows["min_rtt_us"] = 1000 + at * 7919 % 500, 400
    rows["seg_len"] = 1448
    rows["busy_us"], rows["snd_wscale"] = at, 7
    rows["first_tx_us"] = rows["next_tx_us"] = np.maximum(at - 1000, 0)
    return rows
