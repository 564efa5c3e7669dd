# SPDX-License-Identifier: Apache-2.0
"""The numbers of TCP's vocabulary: locations, states and congestion states.

bpf/schemata/tcp.conf declares them and says what each means; a test compares. They are plain
integers, as numpy compares its arrays with these fastest.
"""

from __future__ import annotations


class Location:
    """Which event a record is of; from START on what the collector says, but for EXISTING."""

    SEGMENT_RECEIVED = 1
    RETRANSMIT = 2
    RETRANSMIT_SYNACK = 3
    STATE_CHANGE = 4
    CONG_STATE = 5
    RCV_SPACE_ADJUST = 6
    RESET_SENT = 7
    RESET_RECEIVED = 8
    SEND_CALL = 9
    RECEIVE_CALL = 10
    DESTROY = 11
    RCVQ_FULL = 12
    SOCKET_ERROR = 13
    RTO = 14
    LOSS_PROBE = 15
    ZERO_WINDOW_PROBE = 16
    CWND_UNDO = 17
    ACK_PROCESSED = 18
    TRANSMIT = 19
    REO_TIMEOUT = 20
    SEGMENT_CLOSING = 21
    DROPPED = 22
    LISTENER = 23
    ACCEPTED = 24
    START = 224
    CLOCK = 225
    EXISTING = 226
    LOSS = 227
    CHECKPOINT = 228
    MARK = 229
    END = 230
    LEDGER = 231
    LOSSES = 232
    CPU = 233
    PROGRAM = 234
    COLLECTOR = 235
    CHANGE = 236
    TRIGGER = 237
    RECONCILED = 238
    CGROUP = 239
    UNSEEN = 240
    DROP_PLACE = 241


class State:
    """Of a socket: enum tcp_state of the kernel, without TCP_."""

    NONE = 0
    ESTABLISHED = 1
    SYN_SENT = 2
    SYN_RECV = 3
    FIN_WAIT1 = 4
    FIN_WAIT2 = 5
    TIME_WAIT = 6
    CLOSE = 7
    CLOSE_WAIT = 8
    LAST_ACK = 9
    LISTEN = 10
    CLOSING = 11
    NEW_SYN_RECV = 12
    BOUND_INACTIVE = 13


class CaState:
    """Of congestion control: enum tcp_ca_state of the kernel."""

    OPEN = 0
    DISORDER = 1
    CWR = 2
    RECOVERY = 3
    LOSS = 4


STATES = tuple(name for name in vars(State) if name.isupper())
CA_STATES = ("Open", "Disorder", "CWR", "Recovery", "Loss")
"""The names of states, by their numbers."""
ARRIVED = (Location.SEGMENT_RECEIVED, Location.SEGMENT_CLOSING)
"""The locations at which a segment arrived."""
DROPS = (Location.DROPPED, Location.RCVQ_FULL)
"""The locations at which a packet was dropped."""
SYNCHRONIZED = (
    State.ESTABLISHED, State.FIN_WAIT1, State.FIN_WAIT2, State.CLOSE_WAIT, State.LAST_ACK,
    State.CLOSING,
)  # fmt: skip
"""The states after the handshake, in which snd_una and rcv_nxt count the connection's bytes."""
