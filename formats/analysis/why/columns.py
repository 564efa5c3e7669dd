# SPDX-License-Identifier: Apache-2.0
"""The columns of the tables connections and intervals, with their meaning and others' names."""

from __future__ import annotations

from dataclasses import dataclass

from tcpkmon.formats.analysis.why.limits import LIMITS
from tcpkmon.formats.analysis.why.receiving import NEEDS, RECEIVING, RTT


@dataclass(frozen=True)
class Column:
    """kind: int, float, text or bool. needs: the column of the capture without which it is null.

    null: whether it can be null. In memory, a number that can be null is float64, null is NaN; text
    is an object, null is None. tcptrace, tstat: what those call it, empty where they lack it.
    """

    name: str
    kind: str
    text: str
    needs: str = ""
    null: bool = False
    tcptrace: str = ""
    tstat: str = ""


def columns_of(lines: str) -> tuple[Column, ...]:
    """A line each: name, kind with `?` if it can be null, (needs, tcptrace, tstat,) and text."""
    found = []
    for line in lines.strip().splitlines():
        name, kind, *more, text = (part.strip() for part in line.split("|"))
        needs, tcptrace, tstat = more or ("", "", "")
        null = kind.endswith("?") or bool(needs)
        found.append(Column(name, kind.rstrip("?"), text, needs, null, tcptrace, tstat))
    return tuple(found)


_HEAD = """
host | text? | | | | name of the machine
boot_id | text? | | | | of the machine's boot; null in captures that do not have it
capture_id | text? | | | | of the capture whose files were rotated
segment | int? | | | | number of the file in it
conn_id | int | | | | the connection's number in the capture
netns | int | netns | | | cookie of the network namespace
netns_name | text? | netns | | | its name at the start: `ip netns`, a process, or own: collect's
family | int | family | | | 2: IPv4, 10: IPv6
laddr | text | | host_a | c_ip | this host's address
lport | int | | port_a | c_port | and port
raddr | text | | host_b | s_ip | the peer's address
rport | int | | port_b | s_port | and port
role | text | | | | active: it called connect; passive: it was accepted; existing: open before
pid | int? | pid | | | process of the owner
comm | text? | comm | | | and its name
uid | int? | uid | | | number of the socket's user: of who made or accepted it
cgroup | int? | cgroup | | | id of its control group
cgroup_path | text? | cgroup | | | and its path below the root of cgroup2
unit | text? | cgroup | | | the systemd unit that it is of
container | text? | cgroup | | | the container: its name, else the beginning of its id
pod | text? | cgroup | | | the pod: namespace/name, else its uid
protocols | text? | protocols | | | mptcp, ktls, tcp-md5, tcp-ao, smc, \
other-ulp, mptcp-refused, smc-fallback
mptcp_token | int? | mptcp_token | | | MPTCP: this host's token of the connection above
mptcp_sent | int? | mptcp_sent | | | MPTCP: new data of all its subflows [bytes]
mptcp_received | int? | mptcp_received | | | and received in order [bytes]
mptcp_retrans | int? | mptcp_retrans | | | and that its own timer sent again on one of them [bytes]
ca_name | text? | ca_name | | | congestion control
start | text? | | | | first record, as time of day (UTC)
start_ns | int | | first_packet | first | first record, CLOCK_MONOTONIC
established_ns | int? | | | | when the handshake was over, in the capture
end_ns | int | | last_packet | last | last record, or when it came to CLOSE
duration_us | float | | elapsed_time | durat | between them
handshake_us | float? | | | | of role active: from SYN_SENT to ESTABLISHED
syn_retrans | int | | | | SYN that were sent again
end_reason | text | | | | fin_local, fin_remote, rst_sent, rst_received, timeout, error, \
given_up: this host closed it before it was established, open
errno | int? | | | | the last error of the socket
bytes_sent | int | | unique_bytes_sent_a2b | c_bytes_uniq | new data
bytes_acked | int | | | | data that the peer acknowledged
bytes_received | int | | unique_bytes_sent_b2a | s_bytes_uniq | in order
bytes_at_least | bool | | | | an end closed, and segments after that are not recorded: these \
three are at least so many
bytes_unsent | int | | | | where it closed or died: written, and not sent until the last record
bytes_retrans | int? | | rexmt_data_bytes_a2b | c_bytes_retx | sent again; null if not recorded
segs_out | int | segs_out | total_packets_a2b | c_pkts_all | sent [segments]
segs_in | int | segs_in | total_packets_b2a | s_pkts_all | received [segments]
data_segs_out | int | data_segs_out | actual_data_pkts_a2b | c_pkts_data | with data [segments]
data_segs_in | int | data_segs_in | actual_data_pkts_b2a | s_pkts_data | with data [segments]
mss | int | | max_segm_size_a2b | c_mss_max | largest segment [bytes]
goodput_mean | float | | throughput_a2b | | in the larger direction [bytes/s]
goodput_p50 | float | | | | of times of 100 ms [bytes/s]
goodput_p99 | float | | | | of times of 100 ms [bytes/s]
goodput_max | float | | | | of times of 100 ms [bytes/s]
min_rtt_us | int? | | RTT_min_a2b | c_rtt_min | the kernel's, over its window
srtt_min_us | int? | | | | smoothed round-trip time
srtt_p50_us | float? | | | | of its records
srtt_p95_us | float? | | | | of its records
srtt_p99_us | float? | | | | of its records
srtt_max_us | int? | | | |
late_ack_us | float | | | | time of ACKs that came 10 ms and more after what the path takes
queue_p95_us | float? | | | | of its records, what srtt_us has more than min_rtt_us
bloat | bool | | | | the p95 is above 1 ms and twice min_rtt_us
retransmissions | int | | rexmt_data_pkts_a2b | c_pkts_retx | a record RETRANSMIT can be of \
several [segments]
retrans_ratio | float? | | | | bytes_retrans by bytes_sent
retrans_rto | int | | | c_pkts_rto | segments: after a timeout
retrans_fast | int | | | c_pkts_fs | segments: in recovery
retrans_tlp | int | | | | segments: else, by loss probes
recoveries | int | | | | times that recovery began
loss_rate_spread | float? | | | | rates from loss to loss, five or more: middle half by median
rto_count | int | | | | timeouts
rto_unanswered | int | | | | timeouts in a row of what was never acknowledged, at the end
rto_unanswered_us | float | | | | for how long, since the first of them
rto_bytes | int | | | | segment that was last sent again after a timeout [bytes]
acked_most | int | | | | most bytes that one ACK acknowledged [bytes]
silent_us | float | | | | from the last segment that arrived to the end
quiet_us | float | | | | times of 200 ms (or four round trips) and more without data
loss_probes | int | | | | timers of the loss probe
reo_timeouts | int | | | | timers of RACK's reordering
zero_window_probes | int | | zwnd_probe_pkts_a2b | | timers of the window probe
dsack_dups | int | dsack_dups | dsack_pkts_sent_b2a | | spurious: duplicates that the peer reported
undo_count | int | | | | reductions of the window undone (record CWND_UNDO)
reordering_max | int | reordering | | c_pkts_ooo | that the sender allows for [segments]
delivered_ce_ratio | float? | delivered_ce | | | segments with a congestion mark
rcv_ooopack | int | rcv_ooopack | outoforder_pkts_b2a | s_pkts_ooo | received out of order
rcvq_full | int | | | | dropped for lack of receive memory
pacing_rate_min | float? | | | | while pacing limited it [bytes/s]
pacing_rate_max | float? | | | | while pacing limited it [bytes/s]
cwnd_min | int? | | | | congestion window [segments]
cwnd_max | int | | | | congestion window [segments]
ssthresh_min | int? | | | | slow start threshold [segments]
ssthresh_max | int | | | | 2147483647: infinite [segments]
snd_wnd_min | int? | | min_win_adv_b2a | | the peer's window, without 0 [bytes]
snd_wnd_max | int | | max_win_adv_b2a | s_win_max | the peer's window [bytes]
snd_wnd_fall | int | | | | what it fell below its largest so far: the peer had not read it [bytes]
snd_wnd_low_us | float | | | | time in which it was below half of its largest so far, or 0
snd_wscale | int | snd_wscale | | | bits by which the peer scales its window; 0: at most 65535 bytes
rcv_wnd_min | int? | | min_win_adv_a2b | | this host's, without 0 [bytes]
rcv_wnd_max | int | | max_win_adv_a2b | c_win_max | this host's window [bytes]
rcv_wscale | int | rcv_wscale | | | bits by which this host scales its own
rcvbuf | int | | | | receive buffer's largest limit [bytes]
sndbuf | int | | | | send buffer's largest limit [bytes]
reader_behind_max | int | | | | bytes that waited for the reader [bytes]
zero_window_count | int | | zero_win_adv_b2a | s_win_0 | times that the peer's window closed
"""
_TAIL = """
main_limit | text? | | | | the one of most time, its parts with it
main_share | float? | | | | its share of the time
uncertain_us | float | | | | time in which records are missing, or segments were not recorded
busy_us | int | busy_us | | | the kernel's count: it had data to send
rwnd_limited_us | int | rwnd_limited_us | | | and the peer's window was full
sndbuf_limited_us | int | sndbuf_limited_us | | | and the send buffer was full
disagreement_us | float | rwnd_limited_us | | | largest difference between the kernel's two and ours
records | int | | | | of the connection in the capture
lost_records | int | | | | missing in the capture while it was open, or may have been
lost_before | int | | | | of these, before its first record: it may have begun earlier
lost_after | int | | | | of these, behind its last record: it may have gone on
proven | bool | | | | no record is missing in its time, and its end is known
first_seq | int? | | | | sequence number of its first record; null in Klogger logs
last_seq | int? | | | | and of its last
"""


_RECEIVER = {
    "rx_app": "time in which the reader was behind: its data filled half of the room",
    "rx_autotune": "time in which what arrived in a round trip filled this host's window",
    "rx_reorder": "time behind a segment that was missing: lost, or overtaken by others",
}


def _limits() -> tuple[Column, ...]:
    told = {name: (f"time limited by {name}", "") for name in LIMITS}
    told |= {name: (_RECEIVER[name], RTT if name == "rx_autotune" else NEEDS) for name in RECEIVING}
    found = []
    for name, (text, needs) in told.items():
        found.append(Column(f"us_{name}", "float", text, needs, bool(needs)))
        for end, what in (("min", "at least"), ("max", "at most")):
            found.append(Column(f"us_{name}_{end}", "float", f"the same, {what}", needs,
                                bool(needs)))  # fmt: skip
    return tuple(found)


CONNECTIONS = columns_of(_HEAD) + _limits() + columns_of(_TAIL)
INTERVALS = columns_of("""
conn_id | int | the connection
start_ns | int | CLOCK_MONOTONIC
end_ns | int | CLOCK_MONOTONIC
limit | text | what limited it
family | text | the limit of which that is a part, else the same
bytes_sent | int | new data
bytes_acked | int | acknowledged by the peer
bytes_received | int | in order
records | int | that ended in it
cwnd_end | int | congestion window at its end [segments]
inflight_end | int | in the network [segments]
snd_wnd_end | int | the peer's window [bytes]
notsent_end | int | written and not sent [bytes]
srtt_end_us | int | smoothed round-trip time
mss | int | [bytes]
pacing_rate | float | infinite: not paced [bytes/s]
ca_state | int | congestion state
lost_records | int | missing in the capture in it
certain_us | float | of its time, what is certain
certain | bool | no record is missing in it, and each segment was recorded
""")
WHOLES = columns_of("""
host | text? | name of the machine
netns | int? | cookie of the network namespace
netns_name | text? | its name at the start
token | int | this host's token of the MPTCP connection
peer_token | int? | and the peer's, where the same capture has that end
laddr | text | this host's address, of the first subflow, as the next ones
lport | int | and port
raddr | text | the peer's address
rport | int | and port
role | text | active: it called connect; passive: it was accepted; existing: open before
pid | int? | process of the owner
comm | text? | and its name
uid | int? | number of the socket's user
unit | text? | the systemd unit that it is of
container | text? | the container
pod | text? | the pod
subflows | int | how many it had, in the capture
conn_ids | text | their numbers: conn_id of the table connections
start_ns | int | first record of them, CLOCK_MONOTONIC
end_ns | int | last record
duration_us | float | between them
bytes_sent | int? | new data that the whole sent, by the kernel's count
bytes_received | int? | received in order, by the kernel's count
carried_sent | int | new data of each subflow, added up [bytes]
carried_received | int | received in order by each subflow, added up [bytes]
acked | int | of carried_sent, acknowledged [bytes]
reinjected | int? | carried_sent less bytes_sent: on more than one subflow [bytes]
timer_retrans | int? | of that, sent again by MPTCP's own timer, by the kernel's count [bytes]
retransmissions | int | of all subflows: TCP's, on the same subflow [segments]
records | int | of all subflows
proven | bool | no record is missing in the time of any of them
""")
"""Of the table mptcp."""
NAMES = ("tcptrace", "tstat")
"""Others' names, see Column."""
