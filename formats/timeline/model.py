# SPDX-License-Identifier: Apache-2.0
"""What a timeline is made of: tracks, their events as arrays, and the sinks that write both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import address_of, endpoint

Array = NDArray[Any]
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Kinds of events; the numbers are those of TrackEvent.Type."""
EVENT = np.dtype(
    [
        ("time", "i8"), ("track", "u8"), ("kind", "u1"), ("name", "u4"), ("value", "f8"),
        ("flow", "u8"), ("flow2", "u8"), ("arg", "u4"), ("arg_value", "i8"),
    ]
)  # fmt: skip
"""time: CLOCK_MONOTONIC [ns]. track: its number. name: a number of Names, 0 for COUNTER and END.
value: of a COUNTER; NaN where it is not known. flow, flow2: what joins events, 0: nothing. arg:
the name of arg_value, 0: there is none."""
_LAST_NS = (1 << 63) - 1


@dataclass(frozen=True)
class Track:
    """A line of the timeline, or a group of them. parent: the number of its group, 0: none.

    unit: of a counter, else None. pid, tid: a thread's, so that viewers put it to its process.
    """

    number: int
    parent: int
    name: str
    unit: str | None = None
    pid: int = 0
    tid: int = 0


class Sink(Protocol):
    """Writes a timeline. Names and tracks are told before the events that use them."""

    def track(self, track: Track) -> None:
        """A track begins."""

    def name(self, number: int, text: str) -> None:
        """An event's or an argument's name."""

    def clock(self, mono_ns: int, realtime_ns: int | None) -> None:
        """CLOCK_MONOTONIC and CLOCK_REALTIME at one moment; None: the capture does not know."""

    def events(self, events: Array) -> None:
        """(n,) of EVENT. Viewers sort them by time; those of a track and one time are in order."""

    def dropped(self) -> None:
        """Records are missing before the next events."""

    def finish(self, about: dict[str, str | int]) -> None:
        """The end. about: what the viewer tells of the whole."""


class Timeline:
    """Gives out the numbers of tracks and names, and passes all to a sink.

    records: so many the timeline was made of.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.records = 0
        self._names: dict[str, int] = {}
        self._tracks: dict[Any, int] = {}
        self._count = 0
        self._held: list[Array] | None = None

    def name(self, text: str) -> int:
        """The number of a name."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names) + 1
            self.sink.name(number, for_terminal(text))
        return number

    def names(self, texts: list[str]) -> Array:
        """(n,) the numbers of names."""
        return np.array([self.name(text) for text in texts], np.uint32)

    def track(
        self, key: Any, name: str, parent: int = 0, unit: str | None = None, pid: int = 0,
        tid: int = 0,
    ) -> int:  # fmt: skip
        """The number of the track with this key, which is made where it is new."""
        number = self._tracks.get(key)
        if number is None:
            number = self._tracks[key] = self.new_track(name, parent, unit, pid, tid)
        return number

    def new_track(
        self, name: str, parent: int = 0, unit: str | None = None, pid: int = 0, tid: int = 0
    ) -> int:
        """The number of a new track, which the caller keeps."""
        self._count += 1
        self.sink.track(Track(self._count, parent, for_terminal(name), unit, pid, tid))
        return self._count

    def add(self, events: Array) -> None:
        """Some events."""
        if len(events):
            np.clip(events["time"], 0, _LAST_NS, out=events["time"])
            if self._held is not None:
                self._held.append(events)
            else:
                self.sink.events(events)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is added in here is told at its end, so that a sink can sort it."""
        held: list[Array] = []
        self._held = held
        yield
        self._held = None
        if held:
            self.sink.events(np.concatenate(held))


def title_of(row: Callable[[str], Any], number: int) -> str:
    """The title of a connection. row: gives its columns by name."""
    # numpy leaves out zeros at the end of an address.
    local, remote = (
        endpoint(address_of(row(f"{end}addr").tobytes().ljust(16, b"\0")[:16]), row(f"{end}port"))
        for end in "lr"
    )
    return f"{local} -> {remote} #{number}"


def make(kind: int, time: Array, track: Array | int, **columns: Any) -> Array:
    """Events of one kind; columns: of EVENT."""
    events = np.zeros(len(time), EVENT)
    events["kind"], events["time"], events["track"] = kind, time, track
    for name, values in columns.items():
        events[name] = values
    return events


def slices(begin: Array, end: Array, track: Array | int, **columns: Any) -> Array:
    """Begin and end of each slice, one behind the other."""
    events = np.zeros(2 * len(begin), EVENT)
    events[::2] = make(BEGIN, begin, track, **columns)
    events[1::2] = make(END, np.maximum(begin, end), track)
    return events


def flow_of(*parts: Array | int) -> Array:
    """(n,) a number, never 0, for each combination of these numbers."""
    found = np.uint64(0x9E3779B97F4A7C15)
    mixed: Any = found
    for part in parts:
        mixed = (mixed ^ np.asarray(part).astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = mixed ^ (mixed >> np.uint64(29))
    return np.asarray(mixed | np.uint64(1))
