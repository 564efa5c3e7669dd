# SPDX-License-Identifier: Apache-2.0
"""Histograms of requests, for captures that record the application's calls (collect --requests).

Both ends of a connection take turns: one asks, the other one answers. Of each open connection two
things are kept, its last record and the turn's first and last moments:

    client    asks: it writes       answers: bytes arrive    until: its process has read them
    server    asks: bytes arrive    answers: it writes       until: they are sent
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.metrics.histogram import Histogram
from tcpkmon.collector.metrics.tcp_meter import MOST
from tcpkmon.formats.analysis.arrays import Array, join, runs, shifted
from tcpkmon.formats.analysis.exchanges.streams import (
    CLIENT,
    DATA,
    READ_FIN,
    SERVER,
    TAKES_FIN,
    UNKNOWN,
    WROTE_FIN,
    running_maxima,
)
from tcpkmon.formats.base.sequence import state_after, unwrap
from tcpkmon.formats.base.tcp import Location, State

_SIDES = {"client": CLIENT, "server": SERVER}
_STREAMS = ("arrived", "read", "written", "sent")
_ASK, _ANSWER, _REST, _NOTHING = range(4)
_ROLES = np.array([[_NOTHING] * 4, [_ANSWER, _REST, _ASK, _NOTHING],
                   [_ASK, _NOTHING, _ANSWER, _REST]])  # fmt: skip
"""What an advance of each stream is, by the side."""
_ROWS = 4096
_LATEST_S = 0.05
"""Cutting costs a millisecond a time and more, so many records are cut together."""
_LOW, _NO_RTT = (1 << 32) - 1, (1 << 32) - 1
Rows = dict[str, Array]


class RequestMeter:
    """Counts exchanges that are over: when the next one of their connection begins, or it ends.

    at_entry: calls are recorded as they begin. Exchanges with a missing record are not counted.
    """

    def __init__(self, at_entry: bool = False) -> None:
        self._think = {side: Histogram(4, 28) for side in _SIDES}
        self._duration = {side: Histogram(4, 28) for side in _SIDES}
        self._at_entry = at_entry
        self._waiting: list[Rows] = []
        self._servers: set[int] = set()
        self._last: Rows = {}
        self._turns: Rows = {}
        self._rows = 0
        self._cut_s = self._took_s = 0.0

    def add(
        self, entries: NDArray[Any], times_ns: NDArray[np.int64], lost: NDArray[np.int64]
    ) -> None:
        """Count snapshots, (n,) rows in order. times_ns: their CLOCK_MONOTONIC; lost: (n,) how many
        records of the capture are missing up to each."""
        state, location = entries["state"], entries["location"]
        opens = (location == Location.STATE_CHANGE) & (entries["callvalue"] == State.ESTABLISHED)
        dead = np.isin(location, (Location.RECEIVE_CALL, Location.DESTROY))
        is_wanted = np.isin(state, DATA) | opens | (dead & (state == State.CLOSE))
        at = np.flatnonzero((entries["conn_id"] != 0) & is_wanted)
        # Column by column: rows of many fields are ten times as slow to choose.
        now = {name: entries[name][at].astype(np.int64) for name in (
            "conn_id", "location", "callvalue", "state", "lport", "rport", "snd_una", "snd_max",
            "snd_sb_cc", "rcv_nxt", "rcv_sb_cc", "min_rtt_us", "srtt_us")}  # fmt: skip
        self._waiting.append({**now, "time": times_ns[at], "lost": lost[at]})
        self._rows += len(at)
        begun_s = time.monotonic()
        # It looks at all open connections, so with many of them more records are cut together.
        if self._rows >= max(_ROWS, len(self._last.get("conn_id", ())) // 2) or (
            begun_s > self._cut_s + max(_LATEST_S, 20 * self._took_s)
        ):
            self._cut()
            self._cut_s = time.monotonic()
            self._took_s = self._cut_s - begun_s

    def _cut(self) -> None:
        """Count the exchanges that are over by the records that wait."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if not sum(len(part["time"]) for part in waiting):
            return
        if len(self._last.get("conn_id", ())) > MOST:
            self._last, self._turns = {}, {}
        new = self._streams(join(waiting))
        ids = np.unique(new["conn_id"])
        rows, resting = _with_kept(new, self._last, ids)
        firsts, lasts = runs(rows["conn_id"])
        group = np.repeat(np.arange(len(ids)), lasts - firsts + 1)
        advances = self._advances(rows, firsts, group)
        turns, waits = _with_kept(advances, self._turns, ids)
        over = ids[np.bincount(group, rows["location"] == Location.DESTROY) > 0]
        sure = dict(zip(ids.tolist(), np.bincount(group, rows["sure"]).tolist(), strict=True))
        left = self._count(turns, np.isin(turns["conn_id"], over), sure)
        at = lasts[~np.isin(ids, over)]
        last = {name: values[at] for name, values in rows.items()}
        last["sure"] = np.array([sure[one] for one in last["conn_id"].tolist()], np.int64)
        self._last, self._turns = join([resting, last]), join([waits, left])

    def _streams(self, new: Rows) -> Rows:
        """How far the streams are at each record, FINs aside; and which end asks, if that says."""
        opens = (new["location"] == Location.STATE_CHANGE) & (new["callvalue"] == 1)
        active, none_left = new["state"] == State.SYN_SENT, new["rcv_sb_cc"] == 0
        self._servers.update(np.where(active, new["rport"], new["lport"])[opens].tolist())
        local, remote = (np.isin(new[name], [*self._servers]) for name in ("lport", "rport"))
        guess = np.where(local == remote, UNKNOWN, np.where(local, SERVER, CLIENT))
        becomes = state_after(new)
        wrote_fin = np.isin(new["state"], WROTE_FIN)
        read_fin = np.isin(new["state"], READ_FIN) | np.isin(becomes, READ_FIN)
        return {
            **{name: new[name] for name in ("conn_id", "location", "time", "lost")},
            "written": new["snd_una"] + new["snd_sb_cc"] - wrote_fin, "sent": new["snd_max"],
            "arrived": new["rcv_nxt"] - read_fin,
            "read": new["rcv_nxt"] - new["rcv_sb_cc"] - (read_fin & none_left),
            "closed": new["state"] == State.CLOSE, "sure": opens.astype(np.int64),
            "takes_fin": np.isin(becomes, TAKES_FIN),
            "trip": 1000 * np.where(new["min_rtt_us"] < _NO_RTT, new["min_rtt_us"], new["srtt_us"]),
            "side": np.where(opens, np.where(active, CLIENT, SERVER), guess),
        }  # fmt: skip

    def _advances(self, rows: Rows, firsts: Array, group: Array) -> Rows:
        """What the records say of turns, in order: who did what, and when. It notes in the rows
        which end asks, and how far the streams came at most."""
        before, came_from = (shifted(rows[name], firsts, rows[name][firsts])
                             for name in ("time", "location"))  # fmt: skip
        # A call may return while another CPU takes the FIN in, and before the state has it.
        fin = (rows["location"] == Location.RECEIVE_CALL) & np.append(rows["takes_fin"][1:], False)
        rows["arrived"] = rows["arrived"] - (fin & ~rows["takes_fin"])
        moved = []
        for name in _STREAMS:
            reads = (rows["location"] == Location.RECEIVE_CALL) & (name == "read")
            values = unwrap(rows[name], firsts=firsts, known=~rows["closed"] | reads)
            first = values[firsts]
            top = running_maxima(np.maximum(values - first[group], 0), group)
            moved.append(top > shifted(top, firsts, 0))
            rows[name] = (top + first[group]) & _LOW
        at, kind = np.nonzero(np.stack(moved, 1))
        is_call = rows["location"] == Location.SEND_CALL
        now, late = rows["time"], self._at_entry
        called = np.where(came_from == Location.SEND_CALL, before, now) if late else now
        times = np.stack([before, before if late else now, called, np.where(is_call, now, before)])
        side = np.where(rows["side"][firsts] == UNKNOWN, np.maximum.reduceat(rows["side"], firsts),
                        rows["side"][firsts])  # fmt: skip
        mine, first = np.unique(group[at], return_index=True)
        speaks = np.full(len(firsts), CLIENT)
        speaks[mine] = np.where(_STREAMS.index("written") == kind[first], CLIENT, SERVER)
        rows["side"] = side = np.where(side == UNKNOWN, speaks, side)[group]
        lost_before = shifted(rows["lost"], firsts, rows["lost"][firsts])
        found = {
            "conn_id": rows["conn_id"][at], "what": _ROLES[side[at], kind], "time": times[kind, at],
            "since": lost_before[at], "lost": rows["lost"][at], "trip": rows["trip"][at],
            "side": side[at],
        }  # fmt: skip
        return {name: values[found["what"] != _NOTHING] for name, values in found.items()}

    def _count(self, turns: Rows, is_over: Array, sure: dict[int, float]) -> Rows:
        """Count exchanges; returns what is needed of those that go on. sure: of which connections
        the next exchange is known from its beginning; updated."""
        firsts, _ = runs(turns["conn_id"])
        what, count = turns["what"], len(turns["what"])
        main = np.maximum.accumulate(np.where(what == _REST, -1, np.arange(count)))
        group = np.cumsum(np.bincount(firsts, minlength=count)) - 1
        answers = (main >= firsts[group]) & (what[main] == _ANSWER)
        before = shifted(main, firsts, -1)
        begins = (what == _ASK) & ((before < firsts[group]) | (what[before] == _ANSWER))
        begun = np.cumsum(begins)
        at = np.flatnonzero((begun > (begun - begins)[firsts][group]) & (answers | (what == _ASK)))
        turns = {name: values[at] for name, values in turns.items()}
        first, last = runs(begun[at])
        if not len(at):
            return turns
        answer = first + np.add.reduceat(turns["what"] == _ASK, first)
        asked, has_answer = answer - 1, answer <= last
        answer = np.minimum(answer, last)
        conn_id, side, when = turns["conn_id"][first], turns["side"][first], turns["time"]
        follows = np.append(conn_id[1:] == conn_id[:-1], False)
        is_later = np.append(False, follows[:-1])
        known = is_later | np.array([sure[one] > 0 for one in conn_id.tolist()], np.bool_)
        sure.update(dict.fromkeys(conn_id[follows].tolist(), 1.0))
        certain = known & (turns["lost"][last] == turns["since"][first])
        begin = when[first]
        sent = np.maximum(when[asked], begin)
        came = np.maximum(when[answer], sent)
        trip = np.where(side == CLIENT, np.minimum(turns["trip"][answer], came - sent), 0)
        total = np.maximum(when[last], came) - begin
        goes_on = ~(follows | is_over[at][first])
        for name, one in _SIDES.items():
            mine = (side == one) & certain & has_answer & ~goes_on
            self._think[name].add((came - sent - trip)[mine] // 1000)
            self._duration[name].add(total[mine] // 1000)
        left = np.unique(np.stack([first, asked, answer, last])[:, goes_on])
        return {name: values[left] for name, values in turns.items()}

    def told(self) -> dict[str, Any]:
        """The counts for JSON."""
        self._cut()
        return {
            "think": {side: one.told() for side, one in self._think.items()},
            "duration": {side: one.told() for side, one in self._duration.items()},
        }


def _with_kept(new: Rows, kept: Rows, ids: Array) -> tuple[Rows, Rows]:
    """The rows of these connections, each one's together, with those that were kept before them;
    and those that are kept of others."""
    kept = kept or {name: values[:0] for name, values in new.items()}
    mine = np.isin(kept["conn_id"], ids)
    found = join([{name: values[mine] for name, values in kept.items()}, new])
    order = np.argsort(found["conn_id"], kind="stable")
    return ({name: values[order] for name, values in found.items()},
            {name: values[~mine] for name, values in kept.items()})  # fmt: skip
