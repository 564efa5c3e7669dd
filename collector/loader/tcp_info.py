# SPDX-License-Identifier: Apache-2.0
"""struct tcp_info, by which the kernel describes a TCP socket: to sock_diag and to getsockopt()."""

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
