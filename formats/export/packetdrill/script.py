# SPDX-License-Identifier: Apache-2.0
"""The text of a script: how the connection is set up, then its events with their times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.tcp import ARRIVED, CA_STATES, CaState, Location, State
from tcpkmon.formats.export.packetdrill.walking import LOCKED, Event, Recorded, Row, Walk

# Leaves room for what TCP decides by less than a millisecond.
#
# Between ACKs that come close after each other, the kernel may put off a small send until the next
# one: by its estimate of when that comes (tcp_tso_should_defer()). A script that is played is never
# so exact. So what was sent in a train of ACKs is expected at the train's end, in its order.

TRAIN_NS = 2_000_000
"""ACKs are of one train if the next one comes sooner."""
_MOST_BYTES = 60_000
"""Of a packet in a script."""
_CA_STATE, _UNACKED = "tcpi_ca_state", "tcpi_unacked"
_CA = tuple(f"TCP_CA_{name}" for name in CA_STATES)


def settle(events: Sequence[Event], most_ns: int) -> Iterator[Event]:
    """The events in the order in which a script has them; of what is asserted, what changed.

    most_ns: how long a send is expected later than it was."""
    held: list[Event] = []
    told: dict[str, int] = {}
    last_ns: int | None = None
    is_open = True
    for event in events:
        arrives, asserts = event.text.startswith("<"), bool(event.values)
        close = last_ns is not None and event.at_ns - last_ns < TRAIN_NS
        if held and event.at_ns - held[0].at_ns > most_ns:
            close = False
        if asserts:
            is_open = event.values.get(_CA_STATE, 0) <= CaState.DISORDER
        if event.text.startswith("> .") and not event.note and is_open:
            held.append(event)
            continue
        if not ((arrives or asserts) and close and is_open):
            yield from _flush(held, last_ns)
        if asserts:
            # Whether something was put off shows in this one.
            left = {name: value for name, value in event.values.items()
                    if told.get(name) != value and not (name == _UNACKED and close and is_open)}
            told |= left
            if left:
                yield Event(event.at_ns, event.at_ns, _asserts(left))
            continue
        if arrives:
            last_ns = event.at_ns
        yield event
    yield from _flush(held, last_ns)


def _flush(held: list[Event], last_ns: int | None) -> Iterator[Event]:
    """What was held, from the last arrival on, as times of a script never fall.

    What belongs together is one line, as the kernel cuts it at other places."""
    while held:
        first, count = held[0], 1
        seq, end, ack = _numbers(first.text)
        while count < len(held) and _numbers(held[count].text)[::2] == (end, ack):
            if (more := _numbers(held[count].text)[1]) - seq > _MOST_BYTES:
                break
            end = more
            count += 1
        begin = max(first.at_ns, last_ns or 0)
        text = f"> . {seq}:{end}({end - seq}) ack {ack} <...>"
        yield Event(begin, max(held[count - 1].until_ns, begin), text)
        del held[:count]


def _numbers(text: str) -> tuple[int, int, int]:
    """From where to where a segment is, and what it acknowledges."""
    found = re.fullmatch(r"> \. (\d+):(\d+)\(\d+\) ack (\d+) <\.\.\.>", text)
    assert found is not None
    return int(found[1]), int(found[2]), int(found[3])


def _asserts(values: dict[str, int]) -> str:
    lines = (
        f"assert {name} == {_CA[value] if name == _CA_STATE else value}, {name}"
        for name, value in values.items()
    )
    return "\n".join(("%{", *lines, "}%"))


_INFINITE = (1 << 31) - 1
_LEAD_NS = 200_000_000
"""From the begin of the script to the connection's first event: room for what is set up."""
_LEAST_RTT_US = 1_000
_TIMESTAMP_BYTES = 12
SYSCTL = (
    "adv_win_scale", "app_win", "autocorking", "comp_sack_delay_ns", "comp_sack_nr",
    "comp_sack_slack_ns", "dsack", "early_retrans", "frto", "limit_output_bytes",
    "max_reordering", "min_rtt_wlen", "min_tso_segs", "moderate_rcvbuf", "mtu_probing",
    "notsent_lowat", "pacing_ca_ratio", "pacing_ss_ratio", "pingpong_thresh", "recovery",
    "reordering", "retrans_collapse", "retries2", "rmem", "rto_max_ms", "rto_min_us", "sack",
    "shrink_window", "slow_start_after_idle", "syn_linear_timeouts", "syn_retries",
    "thin_linear_timeouts", "tso_rtt_log", "tso_win_divisor", "window_scaling", "wmem",
)  # fmt: skip
"""Settings of net.ipv4.tcp_ that change what a connection does."""
_DEVICE = (
    "# The device gets single segments (ETHTOOL_STSO); TCP goes on to make large ones.",
    "python3 -c 'import array, fcntl, socket, struct",
    'off = array.array("B", struct.pack("II", 0x1f, 0))',
    'fcntl.ioctl(socket.socket(), 0x8946, struct.pack("16sP16x", b"tun0", '
    "off.buffer_info()[0]))'",
    "# PSH is not recorded, as the kernel sets it last: it is taken out.",
    "nft add table inet drill",
    "nft 'add chain inet drill out { type filter hook output priority 0; }'",
    "nft 'add rule inet drill out tcp flags & (fin|syn|rst) == 0 @th,104,8 set 0x10'",
    "nft 'add rule inet drill out tcp flags & (fin|syn|rst) == fin @th,104,8 set 0x11'",
)
_PLAIN = frozenset("0123456789 -")


@dataclass(frozen=True)
class Options:
    """since_ns, until_ns: the part that is made a script, CLOCK_MONOTONIC; None: all. tolerance_us:
    by how much a time may differ."""

    since_ns: int | None = None
    until_ns: int | None = None
    tolerance_us: int = 20_000


def make_script(found: Recorded, options: Options | None = None) -> tuple[str, list[str]]:
    """The script of a connection, and notes on what it leaves out. FileError where it has no state
    that can be set up."""
    return _Script(found, options or Options()).make()


class _Script:
    def __init__(self, found: Recorded, options: Options) -> None:
        self._found, self._options = found, options
        self._notes: list[str] = []
        self._rows = found.rows
        if options.until_ns is not None:
            self._rows = [row for row in self._rows if row["ns"] <= options.until_ns]
        opened = [at for at, row in enumerate(self._rows)
                  if row["location"] == Location.STATE_CHANGE
                  and row["callvalue"] == State.ESTABLISHED]  # fmt: skip
        self._opened = opened[0] if opened else -1
        self._is_part = self._opened < 0 or (
            options.since_ns is not None and options.since_ns > self._rows[self._opened]["ns"]
        )
        self._start = self._find_start() if self._is_part else self._opened
        self._first = self._rows[self._start]
        self._after = self._rows[self._start + 1 :] if not self._is_part else (
            self._rows[self._start :]
        )
        if not self._after:
            raise FileError(f"connection {found.name} has no record in that time")
        self._is_client = not self._is_part and self._first["state"] == State.SYN_SENT
        self._fd = 3 if self._is_client else 4
        self._syns = [row["ns"] for row in self._rows[: self._opened] if self._is_client
                      and row["location"] == Location.RETRANSMIT
                      and row["state"] == State.SYN_SENT]  # fmt: skip
        """When the SYN was sent again."""

    def _find_start(self) -> int:
        """The last record up to the wanted time whose state a script can set up."""
        since = self._options.since_ns
        fit = [at for at, row in enumerate(self._rows) if _is_calm(row)
               and (at == 0 or self._rows[at - 1]["lost"] <= row["lost"])]  # fmt: skip
        before = [at for at in fit if since is None or self._rows[at]["ns"] <= since]
        if since is None:
            before = before[:1]
        if not before:
            raise FileError(
                f"connection {self._found.name} has no record from which a script can begin: one "
                "of an arriving segment, in the state Open, with nothing sacked, lost or sent "
                "again", "give a later --since")  # fmt: skip
        return before[-1]

    def make(self) -> tuple[str, list[str]]:
        first = self._first
        base = ((first["snd_una"] - 1) % (1 << 32), (first["rcv_nxt"] - 1) % (1 << 32))
        begin = self._begin_ns()
        known = next((row for row in self._after if row["location"] in LOCKED), first)
        hidden = ["snd_cwnd_segs"] if self._leaves_out_growth() else []
        start = dict(first)
        if self._is_part:
            start |= {"snd_nxt": first["snd_una"], "write_seq": first["snd_una"],
                      "copied_seq": first["rcv_nxt"],
                      "ns": first["ns"] - 1000 * self._rtt_us()}  # fmt: skip
            hidden += ["total_retrans"]
        else:
            start["snd_nxt"] = start["snd_una"]
        if self._syns and self._has_timestamps():
            hidden.append("backoff")  # only a round-trip time resets it (tcp_ack_update_rtt())
        walk = Walk(self._after, base, self._fd, start, hidden, self._found.sees_closing,
                    self._found.tick_ns)
        walk.shift_ns = sum(self._syns_late())
        if self._is_client and known["segs_out"] - known["data_segs_out"] > walk._pure:
            walk._pure += 1
        events = walk.run()
        if not events:
            raise FileError(f"connection {self._found.name} has no event in that time")
        self._tell(walk)
        opening = self._opening(known)
        zero = begin - _LEAD_NS
        lines = [self._head(walk), *opening]
        settled = settle(events, self._options.tolerance_us * 500)
        lines += [line for event in settled for line in _lines(event, zero)]
        if walk.gap is not None:
            until = (walk.gap[1] + walk.shift_ns - zero) / 1e9
            lines.append(f"// GAP: {walk.gap[0]:,} records are lost before {until:.6f}: what "
                         "arrived then is not known, and the script ends.")  # fmt: skip
        return "\n".join(lines) + "\n", self._notes

    def _rtt_us(self) -> int:
        rows = [self._first, *self._after[:8]]
        return max(next((row["srtt_us"] for row in rows if row["srtt_us"]), 0), _LEAST_RTT_US)

    def _begin_ns(self) -> int:
        """When the connection's first packet comes or goes."""
        if self._is_client:
            syn = [row for row in self._rows[: self._opened]
                   if row["location"] == Location.STATE_CHANGE
                   and row["callvalue"] == State.SYN_SENT]  # fmt: skip
            if syn:
                return syn[0]["ns"]
        times = 2 if self._is_part else 1
        return self._first["ns"] - times * 1000 * self._rtt_us()

    def _syns_late(self) -> list[int]:
        """By how much each timer of a SYN may be late, ns."""
        times = [self._begin_ns(), *self._syns]
        return [most_late_ns(times[at] - times[at - 1], self._found.tick_ns)
                for at in range(1, len(times))]  # fmt: skip

    def _leaves_out_growth(self) -> bool:
        """Whether the window's growth hangs on what happened before the part begins."""
        return self._is_part and self._first["snd_ssthresh"] < _INFINITE

    def _tell(self, walk: Walk) -> None:
        note = self._notes.append
        if self._is_part:
            left = ["the deviation of the round-trip time and its minimum",
                    "the congestion control's own memory"]  # fmt: skip
            if self._leaves_out_growth():
                left.append("so the congestion window is not asserted")
            note("It begins in the midst of the connection: window, threshold, round-trip time, "
                 "data in flight and the peer's window are set up. Left out: " + "; ".join(left)
                 + ".")  # fmt: skip
        if self._has_timestamps():
            note("Timestamps, which this host offers, are not recorded: the script plays without "
                 "them, and with an MSS that leaves their room. What they tell (round-trip times "
                 "of segments that were sent again, false retransmissions) is left "
                 "out.")  # fmt: skip
        if any(row["ecn_flags"] & 1 for row in self._rows):
            note("ECN was agreed. The script plays without, as the packets' marks are not "
                 "recorded.")  # fmt: skip
        if walk.assumed:
            note(f"{walk.assumed:,} lines say `assumed`: records do not tell options of segments. "
                 "All others follow from the records.")  # fmt: skip
        if walk.passed_gaps:
            note(f"{walk.passed_gaps:,} records are lost on the way; the connection's counters "
                 "show that none of them is of a segment of this one.")  # fmt: skip
        if walk.gap is not None:
            note("Records are lost: the script ends at the gap. --since makes a script of what "
                 "came after it.")  # fmt: skip
        if walk.shift_ns:
            note(f"Timers expire at ticks: what came after one is {_ms(walk.shift_ns)} later in "
                 "all than it was.")  # fmt: skip
        note("What was sent in a train of ACKs, less than 2 ms apart, is expected at its end: TCP "
             "puts off small sends by less than a script can be exact.")  # fmt: skip
        note("Call boundaries are not told: data is written when it was there at the latest, and "
             "shutdown stands for close.")  # fmt: skip

    def _has_timestamps(self) -> bool:
        """Whether segments had room for them: this host offers them, as far as is known, or what
        it can receive fell by their size when the connection was opened."""
        sizes = [row["advmss"] for row in self._rows]
        return (self._found.sysctl.get("net.ipv4.tcp_timestamps", "0") != "0"
                or any(a - b == _TIMESTAMP_BYTES for a, b in pairwise(sizes)))  # fmt: skip

    def _head(self, walk: Walk) -> str:
        found = self._found
        about = [
            f"A connection that tcpkmon recorded: {found.local} {found.name} {found.remote}"
            + (f", kernel {found.kernel}" if found.kernel else ""), f"Of {found.path}",
            *self._notes,
        ]  # fmt: skip
        lines = [f"// {for_terminal(one)}" for one in about]
        lines.append("// Play it in a network namespace of its own: unshare -n packetdrill FILE")
        lines.append(f"--tolerance_usecs={self._options.tolerance_us}")
        if ":" in found.local:
            lines.append("--ip_version=ipv6")
        lines += ["", "`ip link set lo up", "ip tcp_metrics flush all >/dev/null 2>&1"]
        for name in SYSCTL:
            key = f"net.ipv4.tcp_{name}"
            value = found.sysctl.get(key, "")
            if value and _PLAIN.issuperset(value):
                lines.append(f'sysctl -q {key}="{value}" 2>/dev/null')
        lines.append("sysctl -q net.ipv4.tcp_timestamps=0 net.ipv4.tcp_ecn=0")
        lines += ["tc qdisc replace dev tun0 root pfifo limit 10000", *_DEVICE]
        if self._is_part:
            first = self._first
            route = f"initcwnd {first['snd_cwnd_segs']}"
            if first["snd_ssthresh"] < _INFINITE:
                route += f" ssthresh {first['snd_ssthresh']}"
            six = "-6 " if ":" in found.local else ""
            lines.append(f"ip {six}route change $(ip {six}route show dev tun0 | grep -v "
                         f"kernel | head -n 1) dev tun0 {route}")  # fmt: skip
        return "\n".join((*lines, "true`", ""))

    def _opening(self, known: Row) -> list[str]:
        first = self._first
        peer = self._peer_options(known)
        algorithm = self._algorithm()
        chosen = []
        if algorithm:
            chosen.append(f'+0 setsockopt(3, SOL_TCP, TCP_CONGESTION, "{algorithm}", '
                          f"{len(algorithm)}) = 0")  # fmt: skip
        chosen.append("+0 setsockopt(3, SOL_SOCKET, SO_SNDBUF, [16777216], 4) = 0")
        window = min(known["snd_wnd"], 65535)
        lead = f"{_LEAD_NS / 1e9:.6f}"
        socket = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3"
        if self._is_client:
            zero, late, again = self._begin_ns() - _LEAD_NS, 0, []
            for at, more in zip(self._syns, self._syns_late(), strict=True):
                late += more
                begin, end = ((at + by - zero) / 1e9 for by in (-late, late))
                again += ["// sent again", f"{begin:.6f}~{end:.6f} > S 0:0(0) <...>"]
            opened = f"{(first['ns'] + late - zero) / 1e9:.6f}"
            return [
                socket, "+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0", *chosen,
                f"{lead} connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)",
                f"{lead} > S 0:0(0) <...>", *again,
                f"{opened} < S. 0:0(0) ack 1 win {window} {peer}", f"{opened} > . 1:1(0) ack 1",
            ]  # fmt: skip
        opened = f"{(_LEAD_NS + 1000 * self._rtt_us()) / 1e9:.6f}"
        scaled = min(known["snd_wnd"] >> first["snd_wscale"], 65535)
        return [
            socket, "+0 setsockopt(3, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0", *chosen,
            "+0 bind(3, ..., ...) = 0", "+0 listen(3, 1) = 0",
            f"{lead} < S 0:0(0) win {window} {peer}", f"{lead} > S. 0:0(0) ack 1 <...>",
            f"{opened} < . 1:1(0) ack 1 win {scaled}", "+0 accept(3, ..., ...) = 4",
            "+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0",
        ]  # fmt: skip

    def _peer_options(self, known: Row) -> str:
        words = [f"mss {known['mss']}"]
        if self._found.sysctl.get("net.ipv4.tcp_sack", "1") != "0":
            words += ["nop", "nop", "sackOK"]
        if known["snd_wscale"] or known["rcv_wscale"]:
            words += ["nop", f"wscale {known['snd_wscale']}"]
        return f"<{','.join(words)}>"

    def _algorithm(self) -> str:
        names = [row["ca"] for row in (self._first, *self._after) if row["ca"]]
        name = self._found.algorithms[names[0] - 1] if names else ""
        return name if name.replace("_", "").isalnum() else ""


def most_late_ns(delay_ns: int, tick_ns: int) -> int:
    """By how much a timer of this length may expire late: the kernel's wheel rounds up, to eight
    times as many ticks at each level (kernel/time/timer.c)."""
    ticks, step = delay_ns // tick_ns, 1
    while ticks >= 63 * step:
        step *= 8
    return (step + 1) * tick_ns


def _ms(ns: int) -> str:
    return f"{ns / 1e6:g} ms"


def _is_calm(row: Row) -> bool:
    """Whether a connection in this state can be made anew."""
    return (
        row["location"] in ARRIVED and row["state"] == State.ESTABLISHED and row["ca_state"] == 0
        and not (row["sacked_out"] or row["lost_out"] or row["retrans_out"])
        and row["srtt_us"] > 0
    )  # fmt: skip


def _lines(event: Event, zero: int) -> list[str]:
    begin, end = ((one - zero) / 1e9 for one in (event.at_ns, event.until_ns))
    time = f"{begin:.6f}"
    if not event.text:
        return [f"// {time} {event.note}"]
    if event.text.startswith(">") and f"{end:.6f}" != time:
        time = f"{time}~{end:.6f}"
    return [*([f"// {event.note}"] if event.note else []), f"{time} {event.text}"]
