# SPDX-License-Identifier: Apache-2.0
"""Whom each connection waited for, added up over its exchanges: sentences for tcpkmon why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, runs, shifted
from tcpkmon.formats.analysis.exchanges.cutting import NULL, UNSURE
from tcpkmon.formats.analysis.exchanges.table import cut_all, missing
from tcpkmon.formats.analysis.why import Connection, Source, Table
from tcpkmon.formats.analysis.why.peers import is_local
from tcpkmon.formats.analysis.why.words import human_time

_SUMS = ("wait_ns", "think_ns", "network_ns", "read_ns", "uncertain_ns", "wait_uncertain_ns",
         "pipelined")  # fmt: skip
_PARTS = ("request_ns", "network_ns", "think_ns", "response_ns", "read_ns")
"""Those of an exchange, in their order."""
_LEAST = 0.05
_UNKNOWN = ", for how long is not known"


_FREE = ("idle", "app", "unknown", "closing")
"""Limits of what nothing holds back, in which an end waits for the other one or for its program."""


@dataclass(frozen=True)
class Waited:
    """Of one end of a connection that asked or answered: sums over its exchanges, by the names of
    their columns, and `count`; pause_ns: before each next one. unanswered_ns, after_ns: behind the
    last one, from its request or its answer until the end or the close. farewell_ns: behind a
    goodbye until the end."""

    is_client: bool
    sums: Mapping[str, int]
    pause_ns: int
    unanswered_ns: int
    after_ns: int = 0
    farewell_ns: int = 0

    def told(self, one: Connection) -> tuple[list[tuple[float, str]], float]:
        """Sentences, each with its share of the time, the largest first; and the share of these and
        of shorter waits: for a program, its own or the peer's, and for round trips to that."""
        duration = _duration(one)
        texts = self._as_client(one) if self.is_client else self._as_server(one)
        told = sorted((item for item in texts if item[0] >= _LEAST * duration),
                      key=lambda item: -item[0])  # fmt: skip
        sentences = [(ns / duration, f"{text}{_share(ns, duration, more)}{more}")
                     for ns, text, more in told]  # fmt: skip
        known = sum(ns for ns, _, _ in texts) + self.farewell_ns
        return sentences, min(known / duration, 1.0)

    def _waits(self, one: Connection) -> dict[str, int]:
        """How long it waited for what [ns], by name: at most as long as nothing held back what it
        sends. While a window, a loss or Nagle's algorithm does, nobody can answer."""
        sums = self.sums
        found = {
            "think": sums["think_ns"], "unanswered": self.unanswered_ns, "pause": self.pause_ns,
            "after": self.after_ns, "read": 0, "network": 0,
        }  # fmt: skip
        if self.is_client:
            found |= {"read": sums["read_ns"], "network": sums["network_ns"]}
        free = min(sum(one.limit_ns.get(name, 0) for name in _FREE), _duration(one))
        beyond = max(sum(found.values()) - free, 0)
        for name in found:  # the least sure ones first
            cut = min(beyond, found[name])
            found[name] -= cut
            beyond -= cut
        return found

    def _as_client(self, one: Connection) -> list[tuple[int, str, str]]:
        waits, count = self._waits(one), self.sums["count"]
        think, pause, after, read, network, unanswered = (
            waits[name] for name in ("think", "pause", "after", "read", "network", "unanswered")
        )
        many = f"s of {count} requests" if count > 1 else ""
        # What is not acknowledged may be under way, or its ACK waits for the answer.
        sure = one.limit_ns.get("idle", 0) - pause - after - read
        whose = "" if 2 * sure >= think or is_local(one) else (
            ": its program, or the path, which may take longer than its shortest round trip"
        )  # fmt: skip
        # Without the calls nobody knows when it read an answer: it may have done so all the time.
        paused = f"paused {_time(pause)} before the next request"
        if 2 * self.sums["wait_uncertain_ns"] > pause:
            paused = f"paused before the next request or read the answers late, {_time(pause)}"
        return [
            (think, f"waited{self._long(think)} for the server's answer{many}",
             self._unsure(think, one) + whose),
            (pause, f"its own program {paused}", ""),
            (after, f"its own program asked for nothing more, {_time(after)} at the end", ""),
            (read, f"its own program read the answers {_time(read)} late, together", ""),
            (network, f"waited {_time(network)} for the path's round trips", ""),
            (unanswered, f"waited {_time(unanswered)} at its end for an answer that did not come",
             ""),
        ]  # fmt: skip

    def _as_server(self, one: Connection) -> list[tuple[int, str, str]]:
        waits, count = self._waits(one), self.sums["count"]
        think, pause, after, unanswered = (
            waits[name] for name in ("think", "pause", "after", "unanswered")
        )
        trips = min(count * 1000 * (one.min_rtt_us or 0), pause)
        path = f": the path's round trips are {_time(trips)} of that" * (
            trips >= _LEAST * pause and not is_local(one)
        )
        rest = "" if is_local(one) else ": or the rest of that request was still missing"
        return [
            (think, f"its own program took{self._long(think) or ' time'} to answer"
             + f" {count} requests" * (count > 1), self._unsure(think, one)),
            (pause, f"waited {_time(pause)} for the client's next request", path),
            (after, f"the client asked for nothing more, {_time(after)} at the end", ""),
            (unanswered, f"its own program did not answer the last request, for "
             f"{_time(unanswered)}", rest),
        ]  # fmt: skip

    def _long(self, think: int) -> str:
        return "" if self.sums["uncertain_ns"] >= UNSURE * think else f" {_time(think)}"

    def _unsure(self, think: int, one: Connection) -> str:
        unsure, text = self.sums["uncertain_ns"], ""
        if unsure >= UNSURE * think:
            text = _UNKNOWN
        elif 20 * unsure > think:
            text = f" (uncertain by up to {_time(unsure)})"
        if self.sums["pipelined"]:
            text += " (several at once, or answered before all was read)"
        return text


def _share(ns: int, duration: int, more: str) -> str:
    if more.startswith(_UNKNOWN):
        return ""
    return f", {min(100 * ns / duration, 100):.0f} % of the time"


def _duration(one: Connection) -> int:
    return max(one.end_ns - one.start_ns, 1)


def _time(ns: int) -> str:
    return human_time(ns / 1000)


class Asked:
    """Tells of connections that asked or answered. sums: their rows of _sums(), by conn_id."""

    def __init__(self, sums: Table) -> None:
        self._sums = sums

    def of(self, one: Connection) -> Waited | None:
        """None for one that neither asked nor answered: what only one side sends is no request."""
        at = int(np.searchsorted(self._sums["conn_id"], np.uint64(one.conn_id % (1 << 64))))
        if at == len(self._sums["conn_id"]) or self._sums["conn_id"][at] != one.conn_id:
            return None
        found = {name: int(values[at]) for name, values in self._sums.items()}
        until = one.end_ns
        if not found["asked_ns"]:  # who closes asks no more
            until = min(until, found["closing"])
        name = "after" if not found["asked_ns"] else (
            "farewell" if found["goodbye"] else "unanswered")  # fmt: skip
        rests = {"unanswered_ns": 0, f"{name}_ns": max(until - found["end_ns"], 0)}
        return Waited(bool(found["is_client"]), found, found["wait_ns"], **rests)


def waited(source: Source, whole: Table, conn_ids: Array) -> Asked:
    """Of these connections, those that asked or answered. source: read from its beginning; whole:
    the table of all its connections.

    Connections of which only one side sent data are not read.
    """
    both = (whole["bytes_sent"] > 0) & (whole["bytes_received"] > 0)
    wanted = whole["conn_id"][both & np.isin(whole["conn_id"], conn_ids)].astype(np.uint64)
    if not len(wanted) or missing(source):
        return Asked({"conn_id": wanted[:0]})
    servers = np.concatenate([whole[column][whole["role"] == role] for role, column in (
        ("active", "rport"), ("passive", "lport"))])  # fmt: skip
    rows, ends = cut_all(source, wanted if len(wanted) < len(both) else None, servers)
    found = _sums(rows, ends) if len(rows) else {"conn_id": wanted[:0]}
    order = np.argsort(found["conn_id"])
    return Asked({name: values[order] for name, values in found.items()})


def _sums(rows: Array, ends: Table) -> Table:
    """Of the connections whose exchanges these are, and that asked or answered: sums, when the last
    exchange was over, and when its request was if nothing answered it."""
    place = rows["place"]
    firsts, lasts = runs(place)
    answered = rows["response_bytes"] > 0
    end = rows["start_ns"] + np.where(answered, rows["total_ns"], rows["request_ns"])
    shared = np.clip(_ends_before(firsts, lasts, end) - rows["start_ns"], 0,
                     end - rows["start_ns"])  # fmt: skip
    known = {name: np.where(rows[name] == NULL, 0, rows[name]) for name in (*_PARTS, *_SUMS)}
    # When an answer was read is no bound of the thinking, nor when the one before it was.
    for name in ("read", "wait"):
        known["uncertain_ns"] = known["uncertain_ns"] - rows[f"{name}_uncertain_ns"]
    for name in _PARTS:  # what is of an exchange before it too is counted there
        cut = np.minimum(shared, known[name])
        known[name], shared = known[name] - cut, shared - cut
    known["count"] = answered & (rows["request_bytes"] > 0)
    found = {name: np.add.reduceat(known[name].astype(np.int64), firsts)
             for name in (*_SUMS, "count")}  # fmt: skip
    found |= {
        "end_ns": end[lasts], "asked_ns": np.where(answered, 0, end)[lasts],
        "goodbye": rows["goodbye"][lasts], "is_client": rows["is_client"][lasts],
        "conn_id": ends["conn_id"][place[lasts]], "closing": ends["closing"][place[lasts]],
    }  # fmt: skip
    return {name: values[found["count"] > 0] for name, values in found.items()}


def _ends_before(firsts: Array, lasts: Array, end: Array) -> Array:
    """Until when the exchanges before each one took, of all of its connection."""
    rank = np.empty_like(end)
    rank[np.argsort(end, kind="stable")] = np.arange(len(end))
    group = np.repeat(np.arange(len(firsts)), lasts - firsts + 1) * len(end)
    latest = np.maximum.accumulate(group + rank) - group
    return shifted(np.sort(end)[latest], firsts, 0)
