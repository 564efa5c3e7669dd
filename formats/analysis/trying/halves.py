# SPDX-License-Identifier: Apache-2.0
"""The connections of a live trial: those with the setting and those without, and their values."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.diff.statistics import compare
from tcpkmon.formats.analysis.trying.likeness import values_of
from tcpkmon.formats.analysis.trying.outcome import METRICS, Outcome
from tcpkmon.formats.analysis.trying.settings import Variant
from tcpkmon.formats.analysis.why import Connection

_SLACK_NS = 50_000_000
"""A connection that was accepted is decided on before its first record."""
_OPEN = "open"
_METRICS = [name for name in METRICS if not name.startswith("latency_")]
"""When a program read what was written, the capture does not tell."""


@dataclass(frozen=True)
class Decision:
    """A new connection's end, and whether it got the setting. time_ns: of CLOCK_MONOTONIC."""

    laddr: str
    lport: int
    raddr: str
    rport: int
    time_ns: int
    has_it: bool


@dataclass(frozen=True)
class Halves:
    """The ends that count, without the setting and with it. unknown: decisions that no connection
    of the capture has alone; other_way: connections whose other direction had more data."""

    old: list[Connection]
    new: list[Connection]
    unknown: int
    other_way: int

    @property
    def open(self) -> int:
        """Those that had not ended: their durations do not count."""
        return sum(one.end_reason == _OPEN for one in (*self.old, *self.new))


def halve(
    connections: Sequence[Connection], decisions: Sequence[Decision], of_receiver: bool
) -> Halves:
    """Who had what. of_receiver: the ends that receive count, else those that send."""
    by_ends: dict[tuple[Any, ...], list[Connection]] = {}
    for one in connections:
        by_ends.setdefault(_ends(one.laddr, one.lport, one.raddr, one.rport), []).append(one)
    owners: dict[int, list[Decision]] = {}
    of_id = {one.conn_id: one for one in connections}
    unknown = other_way = 0
    for made in decisions:
        key = _ends(made.laddr, made.lport, made.raddr, made.rport)
        mine = [one for one in by_ends.get(key, ())
                if one.start_ns - _SLACK_NS <= made.time_ns <= one.end_ns]  # fmt: skip
        if len(mine) == 1:
            owners.setdefault(mine[0].conn_id, []).append(made)
        else:
            unknown += 1
    sides: tuple[list[Connection], list[Connection]] = [], []
    for conn_id, mades in owners.items():
        one = of_id[conn_id]
        if len(mades) > 1:
            unknown += len(mades)
        elif not max(one.bytes_acked, one.bytes_received) or one.sends == of_receiver:
            other_way += 1
        else:
            sides[mades[0].has_it].append(one)
    return Halves(*sides, unknown, other_way)


def judge(halves: Halves, variant: Variant) -> Outcome:
    """The two sides, compared as `tcpkmon diff` does."""
    old, new = (_columns(side, variant.of_receiver) for side in (halves.old, halves.new))
    found, _ = compare(old, new, {variant.main_metric}, metrics=_METRICS)
    compared = {one.metric.name: one for one in found}
    return Outcome(variant, compared, (len(halves.old), len(halves.new)))


def _columns(side: Sequence[Connection], of_receiver: bool) -> dict[str, NDArray[Any]]:
    found: dict[str, list[float]] = {}
    for one in side:
        for name, value in _values(one, of_receiver).items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


def _values(one: Connection, of_receiver: bool) -> Mapping[str, float]:
    """Of a sender as `try` has them for a copy; a receiver does not know when it was waited for."""
    if of_receiver:
        values = {"duration_us": 1e6 * one.duration_s, "goodput_mean": one.goodput}
    else:
        values = values_of(one)
    return {name: value for name, value in values.items()
            if one.end_reason != _OPEN or name != "duration_us"}  # fmt: skip


def _ends(laddr: str, lport: int, raddr: str, rport: int) -> tuple[Any, ...]:
    return _plain(laddr), lport, _plain(raddr), rport


def _plain(text: str) -> str:
    """An address; v4-mapped ones as IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
