# SPDX-License-Identifier: Apache-2.0
"""sock_diag's data of a TCP socket, and the columns that they fill: the tables of sock_diag.py."""

from __future__ import annotations

import numpy as np

_MEMBERS = (
    ("u1", "state ca_state retransmits probes backoff options wscales bits"),
    ("u4", "rto ato snd_mss rcv_mss unacked sacked lost retrans fackets"),
    ("u4", "last_data_sent last_ack_sent last_data_recv last_ack_recv"),
    ("u4", "pmtu rcv_ssthresh rtt rttvar snd_ssthresh snd_cwnd advmss reordering"),
    ("u4", "rcv_rtt rcv_space total_retrans"),
    ("u8", "pacing_rate max_pacing_rate bytes_acked bytes_received"),
    ("u4", "segs_out segs_in notsent_bytes min_rtt data_segs_in data_segs_out"),
    ("u8", "delivery_rate busy_time rwnd_limited sndbuf_limited"),
    ("u4", "delivered delivered_ce"),
    ("u8", "bytes_sent bytes_retrans"),
    ("u4", "dsack_dups reord_seen rcv_ooopack snd_wnd rcv_wnd"),
)
TCP_INFO = np.dtype([(name, kind) for kind, names in _MEMBERS for name in names.split()])
"""struct tcp_info of linux/tcp.h without tcpi_. It has no padding, and new kernels only append to
it (Linux 6.2: rcv_wnd)."""

FROM_MEMORY = {
    "sk_rmem_bytes": 0,
    "sk_rcvbuf": 1,
    "sk_wmem_alloc": 2,
    "sb_hiwat": 3,
    "sk_forward_alloc": 4,
    "sk_wmem_bytes": 5,
}
"""Columns that are words of INET_DIAG_SKMEMINFO (SK_MEMINFO_... of linux/sock_diag.h)."""
MEMORY_WORDS = 6

# Bits of options -> bits of ecn_flags: negotiated, congestion seen. sock_diag lacks the other two.
ECN = ((8, 1), (16, 8))
