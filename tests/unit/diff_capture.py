# SPDX-License-Identifier: Apache-2.0
"""Writes proven captures of connections, one after the other, with a chosen rate and delay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.captures import CaptureBuilder
from tests.unit.why_capture import DEFAULT

MSS, RECORDS = 1448, 12
_A, _B = (np.frombuffer(b"\0" * 10 + b"\xff\xff\x0a\0\0" + end, "V16")[0] for end in (b"\1", b"\2"))


def write_runs(
    path: Path, connections: Sequence[tuple[float, float]], settings: dict[str, Any] | None = None,
    both_ends: bool = False, lose: bool = False, missed: int = 0,
) -> Path:  # fmt: skip
    """connections: bytes a second and round-trip time [us] of each. both_ends: the receivers too.

    lose: the ring was full once. missed: so many events the program never saw.
    """
    build = CaptureBuilder(cpus=1, locations=(1,), further=DEFAULT, settings=settings or {})
    build.clock()
    for number, (rate, rtt) in enumerate(connections):
        for step in range(RECORDS):
            build.mono_ns += int(10 * MSS / rate * 1e9)
            for receives in range(1 + both_ends):
                build.snapshots()
                row = build.rows[-1]
                row["conn_id"] = 1 + number + receives * len(connections)
                ends = [(_A, 5001 + number), (_B, 80)]
                row["laddr"], row["lport"] = ends[receives]
                row["raddr"], row["rport"] = ends[1 - receives]
                row["state"], row["family"], row["mss"] = 1, 2, MSS
                done = 10 * MSS * step
                row["rcv_nxt" if receives else "snd_una"] = done
                row["snd_max"] = 0 if receives else done + 10 * MSS
                row["snd_cwnd_segs"], row["snd_ssthresh"] = 10, 5
                row["packets_out"] = 10
                row["snd_sb_cc"], row["sb_hiwat"] = 1 << 20, 1 << 22
                row["snd_wnd"], row["rcv_wnd"] = 1 << 20, 65536
                row["sk_wmem_bytes"], row["sk_rcvbuf"] = 1 << 20, 131072
                row["pacing_rate"] = (1 << 64) - 1
                row["srtt_us"], row["min_rtt_us"] = int(rtt), 400
    build.missed[1] = (missed, 0)
    if lose:
        build.lose("ring_full")
    build.end()
    return build.write(path)
