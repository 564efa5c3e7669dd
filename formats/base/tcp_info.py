# SPDX-License-Identifier: Apache-2.0
"""Names of struct tcp_info (linux/tcp.h) without tcpi_, by the columns that hold the same."""

from __future__ import annotations

_SAME = """
    ca_state retransmits backoff rcv_mss rcv_ssthresh snd_ssthresh advmss reordering rcv_space
    total_retrans pacing_rate bytes_acked bytes_received segs_out segs_in notsent_bytes
    data_segs_in data_segs_out delivered delivered_ce bytes_sent bytes_retrans dsack_dups
    reord_seen rcv_ooopack snd_wnd rcv_wnd
"""

FROM_INFO = {name: name for name in _SAME.split()} | {
    "probes_out": "probes",
    "rto_us": "rto",
    "mss": "snd_mss",
    "packets_out": "unacked",
    "sacked_out": "sacked",
    "lost_out": "lost",
    "retrans_out": "retrans",
    "srtt_us": "rtt",
    "rttvar_us": "rttvar",
    "snd_cwnd_segs": "snd_cwnd",
    "rcv_rtt_us": "rcv_rtt",
    "min_rtt_us": "min_rtt",
    "busy_us": "busy_time",
    "rwnd_limited_us": "rwnd_limited",
    "sndbuf_limited_us": "sndbuf_limited",
}
"""Columns that are members of struct tcp_info, in the same unit."""
