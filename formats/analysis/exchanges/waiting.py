# SPDX-License-Identifier: Apache-2.0
"""Whom each connection waited for, added up over its exchanges: sentences for tcpkmon why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.analysis.exchanges.cutting import NULL, Exchanges
from formats.analysis.exchanges.streams import CLIENT, NEEDED, OPTIONAL
from formats.analysis.exchanges.table import make_cutter
from formats.analysis.why import Snapshots, Source
from formats.analysis.why.grouping import grown
from formats.analysis.why.words import human_time

Array = NDArray[Any]
_SUMS = ("wait_ns", "think_ns", "network_ns", "read_ns", "uncertain_ns", "pipelined")
_LEAST = 0.05


@dataclass(frozen=True)
class Waited:
    """Of one end of a connection that asked or answered.

    sentences: the most important first. share: of its time, 0 to 1, in which it waited for a
    program, its own or the peer's.
    """

    sentences: list[str]
    share: float


class Waiting:
    """Add the pieces of a capture, then finish() it. source: where they come from."""

    def __init__(self, source: Source) -> None:
        self._cutter: Exchanges | None = make_cutter(source)
        if self._cutter is not None:
            more = (name for name in (*NEEDED, *OPTIONAL) if name in source.known)
            source.names = [*dict.fromkeys((*source.names, *more))]
        self._sums: dict[str, Array] = {
            name: np.zeros(0, np.int64) for name in (*_SUMS, "count", "end_ns", "asked_ns")
        }

    def add(self, piece: Snapshots) -> None:
        """The next snapshots."""
        if self._cutter is not None:
            self._take(self._cutter.add(piece))

    def _take(self, rows: Array) -> None:
        assert self._cutter is not None
        sums, place = self._sums, rows["place"]
        for name, values in sums.items():
            sums[name] = grown(values, len(self._cutter.streams.places))
        answered = rows["response_bytes"] > 0
        for name in _SUMS:
            known = np.where(rows[name] == NULL, 0, rows[name])
            np.add.at(sums[name], place, known)
        np.add.at(sums["count"], place, answered & (rows["request_bytes"] > 0))
        end = rows["start_ns"] + np.where(answered, rows["total_ns"], rows["request_ns"])
        sums["end_ns"][place] = end  # of several the last one stays
        sums["asked_ns"][place] = np.where(answered, 0, end)

    def finish(self, end_ns: Mapping[int, int], start_ns: Mapping[int, int]) -> dict[int, Waited]:
        """By conn_id. end_ns, start_ns: when each connection was seen first and last, by its id."""
        if self._cutter is None:
            return {}
        self._take(self._cutter.finish())
        streams, sums = self._cutter.streams, self._sums
        found = {}
        for place in np.flatnonzero(sums["end_ns"][: len(streams.places)]).tolist():
            conn_id = int(streams.latest["conn_id"][place])
            one = {name: int(values[place]) for name, values in sums.items()}
            duration = end_ns.get(conn_id, 0) - start_ns.get(conn_id, 0)
            rest = max(end_ns.get(conn_id, 0) - one["end_ns"], 0)
            # What only one side sends is no request.
            if duration > 0 and one["count"]:
                is_client = streams.side[place] == CLIENT
                found[conn_id] = _waited(one, bool(is_client), duration, rest)
        return found


def _waited(one: dict[str, int], is_client: bool, duration: int, rest: int) -> Waited:
    unanswered = rest if one["asked_ns"] else 0
    pause = one["wait_ns"] + (0 if unanswered else rest)
    many = f"s of {one['count']} requests" if one["count"] > 1 else ""
    unsure = ""
    if 20 * one["uncertain_ns"] > one["think_ns"]:
        unsure = f" (uncertain by up to {human_time(one['uncertain_ns'] / 1000)})"
    if one["pipelined"]:
        unsure += " (several at once, which the byte streams do not tell apart)"
    think = human_time(one["think_ns"] / 1000)
    if is_client:
        read = human_time(one["read_ns"] / 1000)
        texts = [
            (one["think_ns"], f"waited {think} for the server's answer{many}"),
            (pause, f"its own program paused {human_time(pause / 1000)} before the next request"),
            (one["read_ns"], f"its own program read the answers {read} late, together"),
            (one["network_ns"],
             f"waited {human_time(one['network_ns'] / 1000)} for the path's round trips"),
            (unanswered, f"waited {human_time(unanswered / 1000)} at its end for an answer that "
             "did not come"),
        ]  # fmt: skip
    else:
        texts = [
            (one["think_ns"], f"its own program took {think} to answer"
             + (f" {one['count']} requests" if one["count"] > 1 else "")),
            (pause, f"waited {human_time(pause / 1000)} for the client's next request"),
            (unanswered, f"its own program did not answer the last request, for "
             f"{human_time(unanswered / 1000)}"),
        ]  # fmt: skip
    told = sorted((item for item in texts if item[0] >= _LEAST * duration), key=lambda one: -one[0])
    sentences = [
        f"{text}, {min(100 * ns / duration, 100):.0f} % of the time"
        + (unsure if ns == one["think_ns"] else "") for ns, text in told
    ]  # fmt: skip
    share = sum(ns for ns, _ in texts) / duration
    return Waited(sentences, min(share, 1.0))
