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

from collections.abc import Iterable, Iterator

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, join, runs, shifted
from tcpkmon.formats.analysis.exchanges.ranked import first_rows, running_maxima
from tcpkmon.formats.analysis.exchanges.resting import Resting
from tcpkmon.formats.analysis.exchanges.streams import CLIENT, Events, Streams
from tcpkmon.formats.analysis.why import Snapshots
from tcpkmon.formats.analysis.why.grouping import Kept

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
"""A row of the table, with its null as NULL."""
NULL = np.iinfo(np.int64).min
UNSURE = 0.9
"""Of a time, that its bounds may be apart; beyond that it is not known."""
_AT_ONCE_NS = 10_000_000
"""A writer that closes later may have waited for an answer."""
_KINDS = ("", "time_", "width_")


class Exchanges:
    """Reads snapshots piece by piece, puts out exchanges that are over; see Streams."""

    def __init__(self, has_calls: bool, at_entry: bool = False) -> None:
        self.streams = Streams(has_calls, at_entry)
        self._has_calls = has_calls
        self._open = Resting("place")
        self._kept = Kept(self.streams.places)

    def add(self, piece: Snapshots) -> Array:
        """The exchanges that are over: an array of EXCHANGE, those of a connection in order."""
        return self._cut(self.streams.add(piece), False) if len(piece) else np.zeros(0, EXCHANGE)

    def finish(self) -> Array:
        """Those that were open at the end; a request without an answer is one too."""
        return self._cut(self.streams.finish(), True)

    def _cut(self, new: Events, to_end: bool) -> Array:
        streams = self.streams
        streams.tell_sides(new)
        events = self._as_asked(new)
        held = self._open.take_all() if to_end else self._open.take(streams.touched)
        if held is not None:
            events = Events(join([held, events.columns]))
        if not len(events):
            return np.zeros(0, EXCHANGE)
        events = events.take(np.argsort(events["place"], kind="stable"))
        cut = _Cut(events, *self._come(), streams, to_end)
        rows = self._rows(cut)
        self._open.put(events.take(cut.needed()).columns)
        return rows

    def _come(self) -> tuple[Array, Array]:
        """How far the streams of requests (-1: not at all) and of answers were cut, by place."""
        return self._kept.of("asked", fill=-1), self._kept.of("answered")

    def _as_asked(self, events: Events) -> Events:
        """The streams by what they are: of requests (q), of answers (a), and what ends an answer's
        way here (s): it is read, or sent. asked: how much of q an answer's bytes can know of."""
        place = events["place"]
        is_client = self.streams.side[place] == CLIENT
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
        found["on_answer"], found["on_request"] = more, late
        firsts, lasts = runs(place)
        sums, flagged = np.cumsum(late, dtype=np.int64), self._kept.of("flagged")
        base = flagged[place[firsts]] - sums[firsts] + late[firsts]
        found["flagged"] = sums + np.repeat(base, lasts - firsts + 1)
        flagged[place[firsts]] = found["flagged"][lasts]
        return Events(found)

    def _rows(self, cut: _Cut) -> Array:
        """Rows of the exchanges that are over, and what is known of their connections then."""
        rows = cut.rows(self._has_calls, self.streams.since)
        place, ends = rows["place"], cut.ends
        firsts, lasts = runs(place)
        mine, counts = place[firsts], lasts - firsts + 1
        number, free, free_width = (self._kept.of(name) for name in ("number", "free", "width"))
        rows["number"] = number[place] + np.arange(len(rows)) - np.repeat(firsts, counts)
        since, begins = self.streams.since[mine], number[mine] == 0
        old = np.zeros(len(rows), np.bool_)
        old[firsts] = begins & (since < 0)
        was_free = shifted(ends, firsts, np.where(begins, since, free[mine]))
        wait = np.maximum(rows["start_ns"] - was_free, 0)
        rows["wait_ns"] = np.where(old, NULL, wait)
        # When the one before was over is a bound of this one's pause too.
        width = shifted(cut.ends_width, firsts, np.where(begins, 0, free_width[mine]))
        width = np.where(rows["is_client"], np.minimum(width, wait), width)
        rows["uncertain_ns"] += width
        rows["wait_uncertain_ns"] = width
        rows["exact"] &= (width == 0) & ~old
        rows["certain"] &= ~old
        number[mine] += counts
        free[mine], free_width[mine] = ends[lasts], cut.ends_width[lasts]
        asked, answered = self._come()
        asked[mine], answered[mine] = cut.asked_upto[lasts], cut.answered_upto[lasts]
        return rows


class _Cut:
    """Finds the exchanges in events: a step of Exchanges. ends, ends_width, asked_upto,
    answered_upto: of the rows, when they were over, within which bounds, and how far the streams
    had come."""

    def __init__(
        self, events: Events, asked: Array, answered: Array, streams: Streams, to_end: bool
    ) -> None:
        self.events = events
        place = events["place"]
        self._firsts, self._lasts = runs(place)
        self._places = place[self._firsts]
        self._group = np.repeat(np.arange(len(self._firsts)), self._lasts - self._firsts + 1)
        self._over = streams.ended[self._places] | to_end
        self._streams = streams
        a_before = shifted(events["a"], self._firsts, answered[self._places])
        is_answer = events["a"] > a_before
        self._at = np.flatnonzero(is_answer)
        self._find(asked, answered)

    def _find(self, asked: Array, answered: Array) -> None:
        """The answers' rows, and where each exchange begins and ends among them."""
        at, events = self._at, self.events
        group = self._group[at]
        firsts, lasts = runs(group)
        base = asked[self._places[group[firsts]]]
        known = events["asked"][at].astype(np.int64)
        known = np.minimum(known, events["q"][at])
        known[firsts] = np.maximum(known[firsts], base)
        known = running_maxima(known, firsts)
        before = shifted(known, firsts, base)
        new = np.flatnonzero(known > before)
        # An answer that goes on after its exchange was put out cannot be: that waits for the next.
        self.group = group[new]
        self.first = at[new]
        ends = np.append(new[1:], len(at)) - 1
        same = np.append(self.group[1:], -1) == self.group
        of_group = np.searchsorted(group[firsts], self.group)
        self.last = at[np.where(same, ends, lasts[of_group])]
        self.next = np.where(same, np.append(self.first[1:], 0), self._lasts[self.group] + 1)
        self.closed = same | self._over[self.group]
        self.start_q = np.maximum(before[new], 0)
        self.end_q = known[new]
        self.end_a = events["a"][self.last]
        ones, _ = runs(self.group)
        self.start_a = shifted(self.end_a, ones, answered[self._places[self.group[ones]]])
        self.asks = self._cross("q", self.group, self.start_q + 1)
        self.asked = self._cross("q", self.group, self.end_q)
        self.settled = self._cross("s", self.group, self.end_a)
        self.is_settled = self.settled <= self._lasts[self.group]
        self.over = self.closed & (self.is_settled | self._over[self.group])
        # The last ones, of which the exchange goes on or is not read, stay.
        upto = asked[self._places]
        upto[self.group] = self.end_q  # of several the last one stays
        self._upto = np.maximum(upto, 0)

    def _cross(self, name: str, group: Array, upto: Array) -> Array:
        """The first row of a group at which a stream has come so far; its last row + 1: none."""
        return first_rows(self.events[name], self._firsts, group, upto)

    def rows(self, has_calls: bool, since: Array) -> Array:
        """Those that are over, without what only their connection tells; then unanswered ones."""
        events, chosen = self.events, np.flatnonzero(self.over)
        rows = np.zeros(len(chosen), EXCHANGE)
        first, last, group = self.first[chosen], self.last[chosen], self.group[chosen]
        top = self._lasts[group]
        asks, asked = (np.minimum(one[chosen], top) for one in (self.asks, self.asked))
        settled, is_settled = self.settled[chosen], self.is_settled[chosen]
        settled = np.minimum(settled, top)
        is_client = events["is_client"][first]
        greets = self.end_q[chosen] == self.start_q[chosen]
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
        rows["request_bytes"] = self.end_q[chosen] - self.start_q[chosen]
        rows["response_bytes"] = self.end_a[chosen] - self.start_a[chosen]
        unsure = events.widths(((asks, "q", ~greets), (asked, "q", ~greets & (asked != asks)),
                                (first, "a", True), (last, "a", last != first),
                                (settled, "s", is_settled & ~(~is_client & (settled == last)))),
                         )  # fmt: skip
        # What was written later is less of the thinking; an answer's end is open.
        late_a = events["late_a"][last]
        unsure += np.where(greets, 0, np.minimum(events["late_q"][asked], whole - trip)) + late_a
        rows["uncertain_ns"] = unsure
        read = events.widths(((settled, "s", is_client & is_settled),))
        rows["read_uncertain_ns"] = read
        low = np.where(greets, first, np.minimum(asks, first))
        high = np.maximum(last, np.where(is_settled, settled, last))
        lost = events["lost"][high] - events["lost_before"][low]
        rows["lost_records"], rows["certain"] = lost, lost == 0
        rows["exact"] = has_calls & (unsure == 0) & (lost == 0)
        on_answer = np.cumsum(events["on_answer"] & self._is_answer())
        rows["pipelined"] = on_answer[last] - on_answer[first] + events["on_answer"][first] > 0
        end = np.minimum(self.next[chosen] - 1, top)
        rows["pipelined"] |= events["flagged"][end] - events["flagged"][first] > 0
        rows["retransmits"] = events["again"][high] - events["again"][low]
        self.ends, self.asked_upto = settle, self.end_q[chosen]
        self.ends_width = np.where(is_settled, events["width_s"][settled], 0) + late_a
        self.answered_upto = self.end_a[chosen]
        return self._with_unanswered(rows, has_calls) if self._over.any() else rows

    def _is_answer(self) -> Array:
        found = np.zeros(len(self.events), np.bool_)
        found[self._at] = True
        return found

    def _with_unanswered(self, rows: Array, has_calls: bool) -> Array:
        """Of connections that are over: also what was asked last, and never answered."""
        events, upto = self.events, self._upto
        groups = np.flatnonzero(self._over & (events["q"][self._lasts] > upto))
        if not len(groups):
            return rows
        asks = self._cross("q", groups, upto[groups] + 1)
        end = self._lasts[groups]
        asked = self._cross("q", groups, events["q"][end])
        more = np.zeros(len(groups), EXCHANGE)
        more["place"], more["is_client"] = self._places[groups], events["is_client"][end]
        more["start_ns"] = events["time_q"][asks]
        more["request_ns"] = np.maximum(events["time_q"][asked] - more["start_ns"], 0)
        for name in ("think_ns", "network_ns", "response_ns", "read_ns", "total_ns"):
            more[name] = NULL
        more["response_ns"] = 0
        more["request_bytes"] = events["q"][end] - upto[groups]
        closed = self._streams.closed_by_asker(more["place"])
        is_last = (events["a"][end] > 0) & (closed - events["time_q"][asked] <= _AT_ONCE_NS)
        more["goodbye"] = is_last
        more["uncertain_ns"] = events.widths(((asks, "q", True), (asked, "q", asked != asks)))
        more["uncertain_ns"] += events["late_q"][asked]
        lost = events["lost"][end] - events["lost_before"][asks]
        more["lost_records"], more["certain"] = lost, lost == 0
        more["exact"] = has_calls & (more["uncertain_ns"] == 0) & (lost == 0)
        more["retransmits"] = events["again"][end] - events["again"][asks]
        both = np.concatenate([rows, more])
        order = np.argsort(both["place"], kind="stable")
        self.ends = np.concatenate([self.ends, events["time_q"][asked]])[order]
        self.ends_width = np.concatenate([self.ends_width, np.zeros(len(more), np.int64)])[order]
        self.asked_upto = np.concatenate([self.asked_upto, events["q"][end]])[order]
        self.answered_upto = np.concatenate([self.answered_upto, events["a"][end]])[order]
        return both[order]

    def needed(self) -> Array:
        """The rows that what is not over yet needs: where its streams crossed what bounds it."""
        events, left = self.events, np.flatnonzero(~self.over)
        goes_on = ~self._over
        keep = np.zeros(len(events), np.bool_)
        keep[self._lasts] = True
        for rows in (self.asks, self.asked, self.first, self.last, self.settled, self.next - 1):
            some = rows[left]
            keep[some[some <= self._lasts[self.group[left]]]] = True
        groups = np.arange(len(self._places))
        waits = self._cross("q", groups, self._upto + 1)
        keep[waits[waits <= self._lasts]] = True
        # A client's request may be cut at any byte that is not acknowledged yet.
        acked = np.maximum(events["asked"][self._lasts], self._upto)
        keep |= events["is_client"] & (events["q"] > acked[self._group])
        keep &= goes_on[self._group]
        return np.flatnonzero(keep)


def cut(pieces: Iterable[Snapshots], cutter: Exchanges) -> Iterator[Array]:
    """All exchanges of a capture, as arrays of EXCHANGE; those of a connection in order."""
    for piece in pieces:
        yield cutter.add(piece)
    yield cutter.finish()
