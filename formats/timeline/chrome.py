# SPDX-License-Identifier: Apache-2.0
"""Writes a timeline as JSON of the Trace Event Format, for viewers that read no Perfetto trace.

A group of tracks is a process there, each of its tracks a thread, a counter a counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from tcpkmon.formats.timeline.model import BEGIN, COUNTER, END, INSTANT, Array, Track

_HEAD = b'{"displayTimeUnit":"ns","traceEvents":[\n'
_VALUE = "%d}}"
_ROWS = 1 << 13
"""Counters that are written at once: so few that their memory is used again."""
_EXACT = float(1 << 53)
_FLOWS = 1 << 24
_PHASES = {BEGIN: "B", END: "E", INSTANT: "i"}


class ChromeSink:
    """See Sink. Times are CLOCK_MONOTONIC in us, with three decimals."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._names: dict[int, str] = {}
        self._roots: dict[int, int] = {}
        self._heads: dict[int, str] = {}
        self._counts: dict[int, str] = {}
        self._clocks: list[str] = []
        self._is_first = True
        self._begun = bytearray(_FLOWS)

    def track(self, track: Track) -> None:
        root = self._roots.get(track.parent, track.number)
        self._roots[track.number] = root
        if track.unit is not None:
            name = json.dumps(f"{track.name} [{track.unit}]")
            name = name.replace("%", "%%")
            self._counts[track.number] = (
                f'{{"ph":"C","ts":%d.%03d,"pid":{root},"name":{name},"args":{{"value":{_VALUE}'
            )
            return
        self._heads[track.number] = f'"pid":{root},"tid":{track.number}'
        kind = "thread_name" if track.parent else "process_name"
        told: dict[str, Any] = {"ph": "M", "pid": root, "tid": track.number, "name": kind,
                                "args": {"name": track.name}}  # fmt: skip
        self._write([json.dumps(told, separators=(",", ":"))])

    def name(self, number: int, text: str) -> None:
        self._names[number] = json.dumps(text)

    def clock(self, mono_ns: int, realtime_ns: int | None) -> None:
        if realtime_ns is not None:
            self._clocks.append(f"{mono_ns} {realtime_ns}")

    def dropped(self) -> None:
        """The slices of the losses tell it."""

    def events(self, events: Array) -> None:
        if events["flow"].any():  # an arrow must begin before it goes on
            events = events[np.argsort(events["time"], kind="stable")]
        is_counter = events["kind"] == COUNTER
        counters = events if is_counter.all() else events[is_counter]
        for low in range(0, len(counters), _ROWS):
            self._write([self._counters(counters[low : low + _ROWS])])
        if len(counters) < len(events):
            self._write(self._others(events[~is_counter]))

    def finish(self, about: dict[str, str | int]) -> None:
        if self._is_first:
            self._out.write(_HEAD)
        # A whole clock list could be long in a damaged file: the ends of it tell most.
        clocks = self._clocks[:64]
        told = about | {"clocks_mono_realtime_ns": ", ".join(clocks)}
        self._out.write(b'\n],"otherData":' + json.dumps(told).encode() + b"}\n")

    def _counters(self, events: Array) -> str:
        """Some counters: one format of all lines, and all numbers, as line by line takes longer."""
        value = events["value"]
        with np.errstate(invalid="ignore"):
            is_whole = (np.abs(value) < _EXACT) & (value == np.floor(value))
        lines = [self._counts[track] for track in events["track"].tolist()]
        for at in np.flatnonzero(~is_whole).tolist():
            text = repr(float(value[at])) if np.isfinite(value[at]) else '"NaN"'
            lines[at] = lines[at].removesuffix(_VALUE) + text + "}}"
        numbers = np.empty((len(events), 3), np.int64)
        numbers[:, 0], numbers[:, 1] = np.divmod(events["time"], 1000)
        numbers[:, 2] = np.where(is_whole, value, 0)
        there = np.ones(numbers.shape, np.bool_)
        there[:, 2] = is_whole
        return ",\n".join(lines) % tuple(numbers[there].tolist())

    def _others(self, events: Array) -> Iterator[str]:
        names = self._names
        for ns, track, kind, name, _, flow, flow2, arg, value in events.tolist():
            text = f'{{"ts":{ns // 1000}.{ns % 1000:03d},{self._heads[track]}'
            if kind == END:
                yield text + ',"ph":"E"}'
                continue
            args = f',"args":{{{names[arg]}:{value}}}' if arg else ""
            phase = _PHASES[kind]
            more = ',"s":"t"' if kind == INSTANT else ""
            if kind == INSTANT and flow:
                phase, more = "X", ',"dur":0'
            yield f'{text},"ph":"{phase}","name":{names[name]}{more}{args}{self._flow(flow)}}}'
            if flow2:
                yield f'{text},"ph":"X","dur":0,"name":{names[name]}{self._flow(flow2)}}}'

    def _flow(self, number: int) -> str:
        """An arrow begins where its number is new, as viewers want it, and goes on elsewhere.

        Two numbers have one place by chance: the second arrow then has no beginning.
        """
        if not number:
            return ""
        place = (number >> 1) % _FLOWS
        way = '"flow_in":true,"flow_out":true' if self._begun[place] else '"flow_out":true'
        self._begun[place] = 1
        return f',"bind_id":"{number:#x}",{way}'

    def _write(self, texts: Iterable[str]) -> None:
        data = ",\n".join(texts)
        self._out.write(_HEAD if self._is_first else b",\n")
        self._out.write(data.encode())
        self._is_first = False

