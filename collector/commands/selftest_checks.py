# SPDX-License-Identifier: Apache-2.0
"""The checks of tcpkmon selftest: many captures of one traffic, each held against its counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tcpkmon
from tcpkmon.collector.commands.selftest_captures import (
    AREAS,
    NOT_HERE,
    Finding,
    Recorded,
    area_of,
    record,
)
from tcpkmon.collector.commands.selftest_traffic import Counts, End, ends_of
from tcpkmon.collector.loader.tcp_info import TCP_INFO
from tcpkmon.formats.base.errors import LossError
from tcpkmon.formats.base.tcp import State
from tcpkmon.formats.base.tcp_info import FROM_INFO
from tcpkmon.formats.base.text import address_of
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.registry import format_of

OK, WRONG, UNPROVEN = "ok", "WRONG", "not proven"
NOT_CAUSED = "not caused"
STATES_OF_AN_END = 5


def run(folder: Path, say: Callable[[str], None]) -> list[Finding]:
    """Make the traffic and the captures in `folder`, and check them. Errors: those of Lab."""
    return compare(record(folder, say))


def compare(recorded: Recorded) -> list[Finding]:
    """Hold the captures against what was counted."""
    paths, counts, findings = recorded.paths, recorded.counts, [*recorded.findings]
    for name, path in paths.items():
        findings.append(_check_proof(name, path))
    main = _Main(paths["all"])
    findings += _check_locations(main, counts)
    findings += _check_values(main, recorded.rest)
    for name, want in recorded.wanted.items():
        if want.ends is not None and name in paths:
            findings.append(_check_ends(name, paths[name], ends_of(*want.ends(counts))))
    for name in ("perf", "klogger"):
        if name in paths:
            findings.append(_check_same(name, paths["all"], paths[name]))
    if "magnet" in paths:
        findings += _check_magnet(paths["magnet"], counts)
    return sorted(findings, key=lambda one: list(AREAS).index(one.area))


class _Main:
    """The capture of all locations and columns."""

    def __init__(self, path: Path) -> None:
        capture = tcpkmon.open(path)
        assert isinstance(capture, Capture)
        self.capture: Capture = capture
        mask = ~self.capture.control() & self._of_connections()
        self.rows = {n: c[mask] for n, c in self.capture.columns(self.capture.names).items()}
        assert self.capture.schema is not None
        self.numbers = {m.name: m.value for m in self.capture.schema.enum("location").members}
        settings: dict[str, Any] = self.capture.settings or {}
        self.recorded = set(settings["locations"])

    def _of_connections(self) -> np.ndarray[Any, Any]:
        """Not of listening sockets, which have an end too."""
        columns = self.capture.columns(["state", "rport", "callvalue", "location"])
        closing = (columns["state"] == State.LISTEN) & (columns["callvalue"] == State.CLOSE)
        return np.asarray(~closing & ((columns["rport"] != 0) | (columns["state"] != State.CLOSE)))

    def at(self, location: str, ports: Sequence[int] = ()) -> np.ndarray[Any, Any]:
        """The places of a location's records, on these ports."""
        mask = self.rows["location"] == self.numbers[location]
        if ports:
            mask &= np.isin(self.rows["lport"], ports) | np.isin(self.rows["rport"], ports)
        return np.flatnonzero(mask)

    def sum(self, location: str, ports: Sequence[int]) -> int:
        return int(self.rows["callvalue"][self.at(location, ports)].astype(np.int64).sum())


def _check_proof(name: str, path: Path) -> Finding:
    reports = format_of(path).verify(path)
    code = max(report.exit_code for report in reports)
    words = "; ".join(dict.fromkeys(report.verdict for report in reports))
    result = WRONG if code else OK
    is_known = not any(one.lost_total or one.tail_unknown for one in reports)
    if code == LossError.exit_code and is_known:
        result = UNPROVEN
    return Finding("proof", name, "adds up: nothing lost", words, result)


def _check_locations(main: _Main, counts: Counts) -> Iterator[Finding]:
    """Each location: what it must have, and what it has."""
    exchanges = counts.exchanges
    calm = [exchanges["v4"], exchanges["v6"]]
    tallies = [tally for one in exchanges.values() for tally in (one.client, one.server)]
    ports = [one.port for one in exchanges.values()]
    calm_ports = [one.port for one in calm]
    connections = sum(len(one.client.connections) for one in calm)
    every = sum(len(tally.connections) for tally in tallies)
    count, kernel = len, counts.all
    resets = len(exchanges["resets"].client.connections)
    synacks = counts.kernel["b"]["TCPSynRetrans"]
    read = sum(tally.bytes_received for one in calm for tally in (one.client, one.server))
    rows: dict[str, tuple[str, int, int]] = {
        "SEND_CALL": ("send calls", sum(t.sends for t in tallies),
                      count(main.at("SEND_CALL", ports))),
        "RECEIVE_CALL": ("receive calls", sum(t.receives for t in tallies),
                         count(main.at("RECEIVE_CALL", ports))),
        "SEGMENT_RECEIVED": ("bytes read", read, main.sum("SEGMENT_RECEIVED", calm_ports)),
        "TRANSMIT": ("bytes read", read, main.sum("TRANSMIT", calm_ports)),
        "STATE_CHANGE": ("states", 2 * STATES_OF_AN_END * connections,
                         count(main.at("STATE_CHANGE", calm_ports))),
        "DESTROY": ("ends of connections", every, count(main.at("DESTROY", ports))),
        "RETRANSMIT": ("RetransSegs less SYN-ACKs", kernel("RetransSegs") - synacks,
                       count(main.at("RETRANSMIT"))),
        "RETRANSMIT_SYNACK": ("TCPSynRetrans", synacks, count(main.at("RETRANSMIT_SYNACK"))),
        "RTO": ("TCPTimeouts", counts.kernel["a"]["TCPTimeouts"], count(main.at("RTO"))),
        "LOSS_PROBE": ("TCPLossProbes", kernel("TCPLossProbes"), count(main.at("LOSS_PROBE"))),
        "ZERO_WINDOW_PROBE": ("TCPWinProbe", kernel("TCPWinProbe"),
                              count(main.at("ZERO_WINDOW_PROBE"))),
        "RESET_SENT": ("OutRsts", kernel("OutRsts"), count(main.at("RESET_SENT"))),
        "RESET_RECEIVED": ("resets", resets, count(main.at("RESET_RECEIVED"))),
        "EXISTING": ("ends that were open", 2, count(main.at("EXISTING"))),
    }  # fmt: skip
    for name in sorted(main.numbers, key=main.numbers.__getitem__):
        if name not in main.recorded and name != "EXISTING":
            if name not in ("START", "CLOCK", "LOSS") and main.numbers[name] < 32:
                yield Finding("location", name, "", "", NOT_HERE)
        elif name in rows:
            what, expected, found = rows[name]
            result = OK if expected == found and expected else WRONG
            yield Finding("location", name, f"{expected} {what}", str(found), result)
        else:
            found = len(main.at(name))
            yield Finding("location", name, "some", str(found), OK if found else NOT_CAUSED)


def _check_values(main: _Main, rest: Sequence[tuple[End, bytes, str]]) -> Iterator[Finding]:
    """The last record of each end of a connection at rest, against TCP_INFO and ss."""
    rows = main.rows
    for (_, lport, _, rport), raw, line in rest:
        place = np.flatnonzero((rows["lport"] == lport) & (rows["rport"] == rport))
        place = place[np.isin(place, main.at("RECEIVE_CALL"))]
        side = "client" if (lport, rport) == (rest[0][0][1], rest[0][0][3]) else "server"
        if not len(place):
            yield Finding("value", f"{side}: last record", "one", "none", WRONG)
            continue
        last = {name: column[place[-1]].item() for name, column in rows.items()}
        info = np.frombuffer(raw[: TCP_INFO.itemsize].ljust(TCP_INFO.itemsize, b"\0"), TCP_INFO)[0]
        different, compared = [], 0
        for column, member in FROM_INFO.items():
            end = TCP_INFO.fields[member][1] if TCP_INFO.fields else 0
            if column in last and end < len(raw):
                compared += 1
                if last[column] != int(info[member]):
                    different.append(f"{column} {last[column]}, not {info[member]}")
        yield Finding("value", f"{side}: TCP_INFO", f"{compared} columns equal",
                      "; ".join(different) or "equal", WRONG if different else OK)  # fmt: skip
        said = {
            "snd_cwnd_segs": r"cwnd:(\d+)", "bytes_acked": r"bytes_acked:(\d+)",
            "bytes_received": r"bytes_received:(\d+)", "segs_out": r"segs_out:(\d+)",
            "segs_in": r"segs_in:(\d+)", "mss": r"\bmss:(\d+)",
        }  # fmt: skip
        values = {n: int(m[1]) for n, p in said.items() if (m := re.search(rf"\s{p}\s", line))}
        unlike = [f"{n} {last[n]}, not {v}" for n, v in values.items() if last[n] != v]
        yield Finding("value", f"{side}: ss", f"{len(values)} columns equal",
                      "; ".join(unlike) or "equal", WRONG if unlike or not values else OK)


def _check_ends(name: str, path: Path, expected: Counter[End]) -> Finding:
    """Whose DESTROY is in the capture."""
    main = _Main(path)
    rows = {n: main.rows[n][main.at("DESTROY")] for n in ("laddr", "lport", "raddr", "rport")}
    found = Counter(
        (address_of(here.ljust(16, b"\0")), lport, address_of(there.ljust(16, b"\0")), rport)
        for here, lport, there, rport in zip(*(r.tolist() for r in rows.values()), strict=True)
    )
    others = (found - expected).total()
    words = f"{(found & expected).total()}" + (f", and {others} others" if others else "")
    result = OK if found == expected and expected else WRONG
    return Finding("filter", name, f"{expected.total()} ends", words, result)


def _records(path: Path) -> Counter[str]:
    """Records in the file by location or event, as verify counts them."""
    found: Counter[str] = Counter()
    for row in format_of(path).verify(path)[-1].rows:  # of a folder: that of all its files
        found[row.name] += row.in_file
    return found


def _check_same(name: str, main: Path, other: Path) -> Finding:
    """As many records of each location as the main capture has."""
    expected, found = _records(main), _records(other)
    different = [
        f"{location} {found[location]}, not {expected[location]}"
        for location in expected | found
        if expected[location] != found[location]
    ]
    result = WRONG if different or not expected.total() else OK
    return Finding(area_of(name), name, f"{expected.total()} records",
                   "; ".join(different) or str(found.total()), result)  # fmt: skip


def _check_magnet(path: Path, counts: Counts) -> Iterator[Finding]:
    found = _records(path)
    exchange = counts.exchanges["v4"]
    for name, expected in {
        "SOCK_SEND": exchange.client.sends + exchange.server.sends,
        "SOCK_RECV": exchange.client.receives + exchange.server.receives,
    }.items():
        got = found[name] or found[f"MAGNET_{name}"]
        result = OK if got == expected else NOT_HERE if not got else WRONG
        yield Finding("file", f"magnet: {name}", f"{expected} calls", str(got), result)
