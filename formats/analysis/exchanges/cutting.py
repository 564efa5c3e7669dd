# SPDX-License-Identifier: Apache-2.0
"""Cuts the byte streams of connections into exchanges: a request, then its answer.

    request bytes    0 ........ 120 ................ 250
    answer           |          |---- 4000 bytes     |--- 900 bytes
    exchanges        |      0                        |  1

What begins an exchange is an answer that could know of more of the request's stream than the bytes
of the answer before: at a server what had arrived, at a client what the answer's segment
acknowledges. So a request that was sent before the answer to another one ended does not cut that.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, runs, shifted
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.exchanges.streams import (
    CLIENT,
    MOST,
    SERVER,
    UNKNOWN,
    Events,
    ends_of,
    events_of,
    running_maxima,
    wanted,
)
from tcpkmon.formats.analysis.why import Table

EXCHANGE = np.dtype(
    [
        ("place", "i8"), ("number", "i8"), ("is_client", "?"), ("start_ns", "i8"),
        ("wait_ns", "i8"), ("request_ns", "i8"), ("think_ns", "i8"), ("network_ns", "i8"),
        ("response_ns", "i8"), ("read_ns", "i8"), ("total_ns", "i8"), ("request_bytes", "i8"),
        ("response_bytes", "i8"),
        ("exact", "?"), ("uncertain_ns", "i8"), ("certain", "?"), ("lost_records", "i8"),
        ("pipelined", "?"), ("retransmits", "i8"), ("goodbye", "?"),
        ("read_uncertain_ns", "i8"), ("wait_uncertain_ns", "i8"),
    ]
)  # fmt: skip
"""A row of the table, with its null as NULL. place: of its connection in the block."""
NULL = np.iinfo(np.int64).min
UNSURE = 0.9
"""Of a time, that its bounds may be apart; beyond that it is not known."""
_AT_ONCE_NS = 10_000_000
"""A writer that closes later may have waited for an answer."""
_KINDS = ("", "time_", "width_")


def cut(block: Block, has_calls: bool, at_entry: bool = False) -> tuple[Array, Table]:
    """The exchanges of a block, an array of EXCHANGE, those of a connection in order; and what is
    known of its connections, see ends_of(). has_calls, at_entry: see calls_of().

    Of a connection that is older than the capture nobody knows yet which end asks: it is cut twice,
    as a client's and as a server's, of which choose() takes one. A request without an answer is an
    exchange too.
    """
    block = wanted(block)
    ends, events = ends_of(block), events_of(block, has_calls, at_entry)
    firsts, _ = runs(events["place"])
    ends["speaks"] = np.zeros(len(block.groups), np.bool_)
    ends["speaks"][events["place"][firsts]] = events["written"][firsts] > 0
    side = ends["side"][events["place"]]
    known, older = np.flatnonzero(side != UNKNOWN), np.flatnonzero(side == UNKNOWN)
    parts = [(events.take(known), side[known] == CLIENT)] if len(older) else [
        (events, side == CLIENT)]  # fmt: skip
    parts += [(events.take(older), np.full(len(older), one)) for one in (True, False)]
    rows = [_Cut(_as_asked(*part), ends).rows(has_calls) for part in parts if len(part[1])]
    return np.concatenate([np.zeros(0, EXCHANGE), *rows]), ends


def choose(rows: Array, ends: Table, servers: Array) -> Array:
    """The rows of each connection once, by the first one seen in the capture and number. servers:
    ports on which connections were accepted. A connection that is older than the capture has its
    server there; else who speaks first is the client."""
    local, remote = np.isin(ends["lport"], servers), np.isin(ends["rport"], servers)
    guess = np.where(local != remote, remote, ends["speaks"])
    is_client = np.where(ends["side"] == UNKNOWN, guess, ends["side"] == CLIENT)
    at = np.flatnonzero(rows["is_client"] == is_client[rows["place"]])
    return _taken(rows, at[np.argsort(ends["seen"][rows["place"][at]], kind="stable")])


def servers_of(ends: Table) -> Array:
    """The ports on which the connections that began in the capture were accepted."""
    return np.unique(np.concatenate([ends[name][ends["side"] == side] for name, side in (
        ("rport", CLIENT), ("lport", SERVER))]))  # fmt: skip


def _taken(rows: Array, at: Array) -> Array:
    """The rows at these places; numpy takes rows of many fields slowly."""
    return rows.view(f"V{rows.itemsize}")[at].view(rows.dtype)


def _as_asked(events: Events, is_client: Array) -> Events:
    """The streams by what they are: of requests (q), of answers (a), and what ends an answer's way
    here (s): it is read, or sent. asked: how much of q an answer's bytes can know of."""
    found = {name: events[name] for name in ("place", "time", "lost", "lost_before", "again",
                                             "rtt")}  # fmt: skip
    for name, (ours, theirs) in {"q": ("written", "arrived"), "a": ("arrived", "written"),
                                 "s": ("read", "sent")}.items():  # fmt: skip
        for kind in _KINDS:
            found[kind + name] = np.where(is_client, events[kind + ours], events[kind + theirs])
    found["asked"] = np.where(is_client, events["acked"], events["known"])
    found["is_client"] = is_client
    found["late_q"] = np.where(is_client, events["late_written"], 0)
    found["late_a"] = np.where(is_client, 0, events["late_written"])
    # More of the requests was there while the answer went on.
    more = np.where(is_client, events["written"] > events["acked"], events["unread"])
    late = ~is_client & (events["brings"] > 0) & (events["acked"] < events["written"])
    found["on_answer"], found["flagged"] = more, np.cumsum(late)
    return Events(found)


class _Cut:
    """Finds the exchanges in events of at least one connection."""

    def __init__(self, events: Events, ends: Table) -> None:
        self._events, self._ends = events, ends
        place = events["place"]
        self._firsts, self._lasts = runs(place)
        self._places = place[self._firsts]
        self._group = np.repeat(np.arange(len(self._firsts)), self._lasts - self._firsts + 1)
        self._ranked = {name: events[name] + self._group * MOST for name in "qs"}
        self._is_answer = events["a"] > shifted(events["a"], self._firsts, 0)

    def _cross(self, name: str, group: Array, upto: Array) -> Array:
        """The first row of a group at which a stream has come so far; its last row + 1: none."""
        found = np.searchsorted(self._ranked[name], upto + group * MOST)
        return np.asarray(np.clip(found, self._firsts[group], self._lasts[group] + 1))

    def rows(self, has_calls: bool) -> Array:
        """All of them, by connection and number."""
        answered, settled, widths = self._answered(has_calls)
        unanswered, asked = self._unanswered(answered, has_calls)
        rows = np.concatenate([answered, unanswered])
        order = np.argsort(rows["place"], kind="stable")
        rows = _taken(rows, order)
        over = np.concatenate([settled, asked])[order]
        width = np.concatenate([widths, np.zeros(len(asked), np.int64)])[order]
        firsts, lasts = runs(rows["place"])
        rows["number"] = np.arange(len(rows)) - np.repeat(firsts, lasts - firsts + 1)
        since = self._ends["since"][rows["place"][firsts]]
        old = np.zeros(len(rows), np.bool_)
        old[firsts] = since < 0
        wait = np.maximum(rows["start_ns"] - shifted(over, firsts, since), 0)
        rows["wait_ns"] = np.where(old, NULL, wait)
        # When the one before was over is a bound of this one's pause too.
        width = shifted(width, firsts, 0)
        width = np.where(rows["is_client"], np.minimum(width, wait), width)
        rows["uncertain_ns"] += width
        rows["wait_uncertain_ns"] = width
        rows["exact"] &= (width == 0) & ~old
        rows["certain"] &= ~old
        return rows

    def _answered(self, has_calls: bool) -> tuple[Array, Array, Array]:
        """Those with an answer, when each was over, and within which bounds."""
        events, at = self._events, np.flatnonzero(self._is_answer)
        group = self._group[at]
        firsts, lasts = runs(group)
        known = np.minimum(events["asked"][at], events["q"][at])
        known[firsts] = np.maximum(known[firsts], -1)
        known = running_maxima(known, group)
        before = shifted(known, firsts, -1)
        new = np.flatnonzero(known > before)
        group, first = group[new], at[new]
        same = np.append(group[1:], -1) == group
        of_group = np.searchsorted(self._group[at][firsts], group)
        last = at[np.where(same, np.append(new[1:], len(at)) - 1, lasts[of_group])]
        following = np.where(same, np.append(first[1:], 0), self._lasts[group] + 1)
        start_q, end_q, end_a = np.maximum(before[new], 0), known[new], events["a"][last]
        top = self._lasts[group]
        asks = np.minimum(self._cross("q", group, start_q + 1), top)
        asked = np.minimum(self._cross("q", group, end_q), top)
        settled = self._cross("s", group, end_a)
        is_settled = settled <= top
        settled = np.minimum(settled, top)

        rows = np.zeros(len(first), EXCHANGE)
        is_client, greets = events["is_client"][first], end_q == start_q
        rows["place"], rows["is_client"] = events["place"][first], is_client
        answer, done = events["time_a"][first], events["time_a"][last]
        begun = np.where(greets, answer, events["time_q"][asks])
        sent = np.where(greets, answer, np.maximum(events["time_q"][asked], begun))
        answer = np.maximum(answer, sent)
        done = np.maximum(done, answer)
        settle = np.where(is_settled, np.maximum(events["time_s"][settled], done), done)
        whole = answer - sent
        trip = np.where(is_client & ~greets, np.minimum(events["rtt"][first], whole), 0)
        rows["start_ns"], rows["request_ns"] = begun, sent - begun
        rows["think_ns"] = np.where(greets, NULL, whole - trip)
        rows["network_ns"] = np.where(is_client, trip, NULL)
        rows["response_ns"] = np.where(is_client, done, settle) - answer
        rows["read_ns"] = np.where(is_client & is_settled, settle - done, NULL)
        rows["total_ns"] = settle - begun
        rows["request_bytes"] = end_q - start_q
        rows["response_bytes"] = end_a - shifted(end_a, runs(group)[0], 0)
        unsure = events.widths(((asks, "q", ~greets), (asked, "q", ~greets & (asked != asks)),
                                (first, "a", True), (last, "a", last != first),
                                (settled, "s", is_settled & ~(~is_client & (settled == last)))),
                         )  # fmt: skip
        # What was written later is less of the thinking; an answer's end is open.
        late_a = events["late_a"][last]
        unsure += np.where(greets, 0, np.minimum(events["late_q"][asked], whole - trip)) + late_a
        rows["read_uncertain_ns"] = events.widths(((settled, "s", is_client & is_settled),))
        low = np.where(greets, first, np.minimum(asks, first))
        self._judge(rows, low, np.maximum(last, np.where(is_settled, settled, last)), unsure,
                    has_calls)  # fmt: skip
        on_answer = np.cumsum(events["on_answer"] & self._is_answer)
        rows["pipelined"] = on_answer[last] - on_answer[first] + events["on_answer"][first] > 0
        end = np.minimum(following - 1, top)
        rows["pipelined"] |= events["flagged"][end] - events["flagged"][first] > 0
        return rows, settle, np.where(is_settled, events["width_s"][settled], 0) + late_a

    def _unanswered(self, answered: Array, has_calls: bool) -> tuple[Array, Array]:
        """What each connection asked last, and was never answered; and when it had."""
        events, ends = self._events, self._ends
        upto = np.zeros(len(self._places), np.int64)
        np.add.at(upto, np.searchsorted(self._places, answered["place"]), answered["request_bytes"])
        groups = np.flatnonzero(events["q"][self._lasts] > upto)
        upto, end = upto[groups], self._lasts[groups]
        asks = self._cross("q", groups, upto + 1)
        asked = self._cross("q", groups, events["q"][end])
        rows = np.zeros(len(groups), EXCHANGE)
        rows["place"] = place = self._places[groups]
        rows["is_client"] = is_client = events["is_client"][end]
        rows["start_ns"], over = events["time_q"][asks], events["time_q"][asked]
        rows["request_ns"] = np.maximum(over - rows["start_ns"], 0)
        for name in ("think_ns", "network_ns", "read_ns", "total_ns"):
            rows[name] = NULL
        rows["request_bytes"] = events["q"][end] - upto
        # Whether the end that asks closed at once behind it, and was the first to do so.
        sent, came = ends["fin_sent"][place], ends["fin_came"][place]
        asker, other = np.where(is_client, (sent, came), (came, sent))
        goodbye = (events["a"][end] > 0) & (asker <= other) & (asker - over <= _AT_ONCE_NS)
        rows["goodbye"] = goodbye
        unsure = events.widths(((asks, "q", True), (asked, "q", asked != asks)))
        self._judge(rows, asks, end, unsure + events["late_q"][asked], has_calls)
        return rows, over

    def _judge(self, rows: Array, low: Array, high: Array, unsure: Array, has_calls: bool) -> None:
        """What is known of exchanges of these rows; unsure: by how much their times may differ."""
        events = self._events
        rows["uncertain_ns"] = unsure
        rows["lost_records"] = lost = events["lost"][high] - events["lost_before"][low]
        rows["certain"] = lost == 0
        rows["exact"] = has_calls & (unsure == 0) & (lost == 0)
        rows["retransmits"] = events["again"][high] - events["again"][low]
