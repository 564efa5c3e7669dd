# SPDX-License-Identifier: Apache-2.0
"""What was measured, as plain values: for people, for --json and for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.measure import Latency
from tcpkmon.formats.analysis.latency.stages import EVENTS, ROUND_TRIP, TIMES, Chain, Stage, State
from tcpkmon.formats.analysis.latency.summary import COLUMNS, QUANTILES, Spread, Summary
from tcpkmon.formats.analysis.latency.survey import Survey
from tcpkmon.formats.analysis.latency.thinking import SHARES, Thought
from tcpkmon.formats.base.ports import match_ports
from tcpkmon.formats.base.text import address_of, endpoint, text_of

SIDES = {Chain.BOTH: "both ends", Chain.SENDER: "sender's end", Chain.RECEIVER: "receiver's end"}
_LOW = (1 << 32) - 1
_NAMES = [f"p{100 * quantile:g}" for quantile in QUANTILES]


@dataclass(frozen=True)
class Slow:
    """A slow range. times_ns: since the capture began, by name of TIMES; those that are known."""

    seq_lo: int
    seq_hi: int
    size: int
    sent_again: int
    whole_ns: int
    times_ns: dict[str, int]


@dataclass(frozen=True)
class Flow:
    """The data that one connection sent, or received.

    number: of the flow. connections: sender's and receiver's id, None: not recorded. sizes: bytes
    by State. once, again: spreads by part and of the `whole`, of bytes that were sent once, and of
    those that were sent again; empty if there are none. thought: of a server's answers.
    """

    number: int
    name: str
    owner: str
    side: Chain
    connections: tuple[int | None, int | None]
    sizes: dict[State, int]
    size_again: int
    once: dict[str, Spread]
    again: dict[str, Spread]
    slowest: list[Slow]
    thought: Thought | None = None

    @property
    def size(self) -> int:
        """All of its bytes."""
        return sum(self.sizes.values())

    @property
    def unknown(self) -> int:
        """Its bytes that should be known and are not."""
        return sum(size for state, size in self.sizes.items() if state.is_unknown)


@dataclass(frozen=True)
class Report:
    """What was measured of a log.

    flows: those with bytes, the largest first. notes: what was not recorded, and what follows from
    it. left_out: records that could not be joined.
    """

    begin_ns: int
    end_ns: int
    records: int
    flows: list[Flow]
    notes: list[str]
    left_out: dict[str, int]
    bin_ns: int
    bins: NDArray[np.float64]
    bin_bytes: NDArray[np.float64]


def make_report(latency: Latency, summary: Summary) -> Report:
    """The report, after the summary has all ranges."""
    survey = latency.survey
    spreads = summary.spreads()
    stories: dict[int, list[Slow]] = {}
    for row in summary.stories:
        stories.setdefault(int(row["flow"]), []).append(_slow(row, survey.begin_ns))
    flows = []
    for flow in np.flatnonzero(summary.size.sum(1)).tolist():
        if not summary.wanted[flow]:
            continue
        side = _side(survey, flow)
        sizes = {state: int(summary.size[flow, state]) for state in State}
        once, again = (
            _of_chain(spreads.get((flow, twice), {}), latency, side, twice)
            for twice in (False, True)
        )
        name, owner = _names(survey, flow)
        ends = _connections(survey, flow)
        slowest = stories.get(flow, [])
        twice = int(summary.again[flow])
        thought = latency.thoughts.get(int(survey.sender[flow]))
        flows.append(
            Flow(flow, name, owner, side, ends, sizes, twice, once, again, slowest, thought)
        )
    flows.sort(key=lambda one: (-one.size, one.number))
    left = latency.records.left
    left_out = {
        "UDP": left.udp,
        "of no known connection": left.unknown_connection,
        "failed calls": left.failed_calls,
    }
    return Report(
        survey.begin_ns, survey.end_ns, latency.records.records, flows,
        describe_missing(latency, {one.side for one in flows}), left_out,
        summary.bin_ns, summary.bins, summary.bin_bytes,
    )  # fmt: skip


def _side(survey: Survey, flow: int) -> Chain:
    if survey.sender[flow] < 0:
        return Chain.RECEIVER
    return Chain.BOTH if survey.receiver[flow] >= 0 else Chain.SENDER


def _connections(survey: Survey, flow: int) -> tuple[int | None, int | None]:
    ends = [int(side[flow]) for side in (survey.sender, survey.receiver)]
    one, other = (int(survey.ids[end]) if end >= 0 else None for end in ends)
    return one, other


def _names(survey: Survey, flow: int) -> tuple[str, str]:
    """Sender > receiver, and whose connections these are."""
    sender, receiver = int(survey.sender[flow]), int(survey.receiver[flow])
    row = survey.ends[sender if sender >= 0 else receiver]
    local, remote = (
        endpoint(address_of(row[address].tobytes()), int(row[port]))
        for address, port in (("laddr", "lport"), ("raddr", "rport"))
    )
    name = f"{local} > {remote}" if sender >= 0 else f"{remote} > {local}"
    owners = []
    for end in (sender, receiver):
        if end >= 0 and (comm := text_of(survey.ends[end]["comm"])):
            owners.append(f"{comm} {int(survey.ends[end]['pid'])}")
    return name, ", ".join(dict.fromkeys(owners))


def _of_chain(
    spreads: dict[str, Spread], latency: Latency, side: Chain, again: bool
) -> dict[str, Spread]:
    """The parts that the chain has. Only bytes that were sent again have `recovery`."""
    if not spreads:
        return {}
    chain = Chain.SENT_AGAIN if again and side == Chain.SENDER else side
    parts = {link.part for link in latency.links[chain]}
    if ROUND_TRIP in parts:
        parts |= {"network", "return"}
    if not again:
        parts.discard("recovery")
    return {name: spreads[name] for name in COLUMNS if name in parts or name == "whole"}


def _slow(row: Any, begin_ns: int) -> Slow:
    times = {name: int(row[name]) - begin_ns for name in TIMES if row[name] >= 0}
    lo, hi = int(row["lo"]), int(row["hi"])
    return Slow(lo & _LOW, hi & _LOW, hi - lo, int(row["sent_again"]), int(row["whole"]), times)


def describe_missing(latency: Latency, sides: set[Chain]) -> list[str]:
    """A line for each event that was not recorded, and for each part that includes others."""
    survey = latency.survey
    notes = [
        f"not recorded: {stage.name} ({why})" for stage in EVENTS if (why := survey.recorded[stage])
    ]
    for stage, instead, what in (
        (Stage.IP_SEND, (Stage.DEV_SEND, Stage.DRIVER_START), "a transmission begins"),
        (Stage.IP_RECV, (Stage.DEV_RECV,), "bytes arrive"),
    ):
        usable = [other.name for other in instead if survey.is_recorded(other)]
        if survey.recorded[stage] and usable:
            notes.append(f"{what} at {usable[0]}, as {stage.name} was not recorded")
    for side in sorted(sides):
        links = latency.links[side]
        for link in links:
            if link.includes:
                name = "round trip" if link.part == ROUND_TRIP else link.part
                others = " and ".join(link.includes)
                notes.append(f"{SIDES[side]}: {name} includes {others}, which cannot be told apart")
        if any(link.part == ROUND_TRIP for link in links):
            notes.append(f"{SIDES[side]}: network is an estimate, half of the time to the ACK")
    return list(dict.fromkeys(notes))


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain values; times in ns."""
    return {
        "begin_ns": report.begin_ns,
        "end_ns": report.end_ns,
        "records": report.records,
        "left_out": report.left_out,
        "notes": report.notes,
        "flows": [_flow_json(flow) for flow in report.flows],
    }


def _flow_json(flow: Flow) -> dict[str, Any]:
    return {
        "name": flow.name,
        "owner": flow.owner,
        "recorded": SIDES[flow.side],
        "network_is_estimate": flow.side == Chain.SENDER,
        "sender": flow.connections[0],
        "receiver": flow.connections[1],
        "bytes": flow.size,
        "bytes_by_state": {state.name.lower(): size for state, size in flow.sizes.items()},
        "bytes_sent_again": flow.size_again,
        "bytes_unknown": flow.unknown,
        "once": _spreads_json(flow.once),
        "sent_again": _spreads_json(flow.again),
        "server_thinking": _thought_json(flow.thought),
        "slowest": [
            {
                "seq_lo": slow.seq_lo, "seq_hi": slow.seq_hi, "bytes": slow.size,
                "sent_again": slow.sent_again, "whole_ns": slow.whole_ns, "times_ns": slow.times_ns,
            }
            for slow in flow.slowest
        ],
    }  # fmt: skip


def _thought_json(thought: Thought | None) -> dict[str, Any] | None:
    if thought is None:
        return None
    shares = {f"p{share}": ns for share, ns in zip(SHARES, thought.percentiles_ns, strict=True)}
    return {"answers": thought.count, **shares, "max_ns": thought.most_ns}


def _spreads_json(spreads: dict[str, Spread]) -> dict[str, Any]:
    whole = spreads["whole"].total_ns if spreads else 0
    return {
        name: {
            "share": share(spread, whole),
            "mean_ns": spread.mean_ns,
            **dict(zip(_NAMES, spread.quantiles_ns, strict=True)),
            "max_ns": spread.most_ns,
        }
        for name, spread in spreads.items()
    }


def share(spread: Spread, whole_ns: float) -> float:
    """A part's share of all time, 0 to 1."""
    return spread.total_ns / whole_ns if whole_ns else 0.0


def find_flows(survey: Survey, ports: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """(f,) the flows of connections with these pairs of ports, see base.ports; all if none."""
    wanted = np.full(len(survey.sender), not ports)
    if ports:
        mine = match_ports(ports, survey.ends["lport"], survey.ends["rport"])
        wanted[survey.out[mine]] = wanted[survey.inn[mine]] = True
    return wanted
