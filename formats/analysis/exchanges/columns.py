# SPDX-License-Identifier: Apache-2.0
"""The columns of the table of exchanges, with their meaning."""

from __future__ import annotations

from tcpkmon.formats.analysis.why.columns import columns_of

EXCHANGES = columns_of("""
conn_id | int | the connection in this capture
netns | int? | cookie of its network namespace, where the capture has it
laddr | text | local address
lport | int | local port
raddr | text | remote address
rport | int | remote port
peer_conn_id | int? | conn_id of its other end, where the capture has that
pid | int? | process that owns this end, where the capture has it
comm | text? | and its name
side | text | client: this end sent the request; server: it received it
number | int | of the exchange in its connection, from 0
start | text? | its first byte, as time of day (UTC)
start_ns | int | its first byte, CLOCK_MONOTONIC
wait_ns | int? | from the end of the one before it, or of the handshake, to its first byte
request_ns | int | first to last byte of the request: written (client), arrived (server)
think_ns | int? | from there to the answer's first byte: arrived, less network_ns, or written
network_ns | int? | client: the path's round trip, by its smallest one
response_ns | int? | first to last byte of the answer: arrived (client), written and sent (server)
read_ns | int? | client: from there until its process had read it
total_ns | int? | from start_ns to the end of the last part
request_bytes | int | of the request
response_bytes | int | of the answer; 0: there was none
goodbye | bool | the last message, without an answer, behind which its writer closed at once
exact | bool | all of these times are from calls and segments that were recorded
uncertain_ns | int | sum of the widths of the bounds of these times
read_uncertain_ns | int | of that, of when the answer was read: of read_ns and total_ns
wait_uncertain_ns | int | and of when the one before it was over: of wait_ns alone
certain | bool | no record is missing from its beginning to its end, and it began in the capture
lost_records | int | missing in the capture in that time
pipelined | bool | on its connection several requests were under way at once, or an answer began \
before all of one was read, as either end saw
retransmits | int | records of segments that this end sent again in that time
""")
PARTS = ("wait", "request", "think", "network", "response", "read")
"""The parts of an exchange, in their order; columns have _ns behind."""
