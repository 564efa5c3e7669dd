# SPDX-License-Identifier: Apache-2.0
"""What the congestion window may be, by the connection's state and not by wall time."""

from __future__ import annotations

import time
from typing import Any

CAPTURE = {
    "ports": [5310],
    "netns": "/proc/self/ns/net",  # what else runs on the machine is not meant
    "columns": "default,delivered,bytes_acked",
}
FIRST = 150_000
"""Bytes before the pause; a SYN counts as one more."""


def test_the_window_grows_by_what_is_delivered(tcpkmon: Any, link: Any) -> None:
    """In slow start each segment that is delivered adds one, from 10 on, on any machine."""
    with tcpkmon.capture("grows", **CAPTURE) as capture:
        link.connect()
        link.send(300_000)
    capture.check(
        "no_loss",
        "snd_cwnd_segs <= 10 + delivered where ca_state == TCP_CA_Open and rport == 5310",
        "max(snd_cwnd_segs) > 40 where rport == 5310",
    )


def test_the_window_begins_anew_after_a_pause(tcpkmon: Any, link: Any) -> None:
    """Who was silent for several timeouts knows nothing of the path any more (RFC 2861)."""
    with tcpkmon.capture("pause", **CAPTURE) as capture:
        link.connect()
        link.send(FIRST)
        time.sleep(1.5)
        link.send(FIRST)
    first_ack = f"bytes_acked >= {FIRST} and bytes_acked <= {FIRST + 1} and packets_out > 0"
    capture.check("no_loss", f"snd_cwnd_segs <= 10 where {first_ack} and rport == 5310")
