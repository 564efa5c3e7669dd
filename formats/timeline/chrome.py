# SPDX-License-Identifier: Apache-2.0
"""Writes a timeline as JSON of the Trace Event Format, for viewers that read no Perfetto trace.

A group of tracks is a process there, each of its tracks a thread, a counter a counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from tcpkmon.formats.timeline.model import BEGIN, COUNTER, END, INSTANT, Array, Track

_HEAD = b'{"displayTimeUnit":"ns","traceEvents":[\n'
_PHASES = {BEGIN: "B", END: "E", INSTANT: "i"}


class ChromeSink:
    """See Sink. Times are CLOCK_MONOTONIC in us, with three decimals."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._names: dict[int, str] = {}
        self._roots: dict[int, int] = {}
        self._heads: dict[int, str] = {}
        self._clocks: list[str] = []
        self._is_first = True

    def track(self, track: Track) -> None:
        root = self._roots.get(track.parent, track.number)
        self._roots[track.number] = root
        if track.unit is not None:
            name = json.dumps(f"{track.name} [{track.unit}]")
            self._heads[track.number] = f'"pid":{root},"name":{name}'
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
        is_counter = events["kind"] == COUNTER
        if is_counter.any():
            self._write(self._counters(events[is_counter]))
        if not is_counter.all():
            self._write(self._others(events[~is_counter]))

    def finish(self, about: dict[str, str | int]) -> None:
        if self._is_first:
            self._out.write(_HEAD)
        # A whole clock list could be long in a damaged file: the ends of it tell most.
        clocks = self._clocks[:64]
        told = about | {"clocks_mono_realtime_ns": ", ".join(clocks)}
        self._out.write(b'\n],"otherData":' + json.dumps(told).encode() + b"}\n")

    def _counters(self, events: Array) -> Iterator[str]:
        value = events["value"]
        known = np.isfinite(value)
        texts = [
            (str(int(one)) if one == int(one) else repr(one)) if there else '"NaN"'
            for one, there in zip(value.tolist(), known.tolist(), strict=True)
        ]
        rows = zip(events["time"].tolist(), events["track"].tolist(), texts, strict=True)
        return (
            f'{{"ph":"C","ts":{ns // 1000}.{ns % 1000:03d},{self._heads[track]},'
            f'"args":{{"value":{text}}}}}'
            for ns, track, text in rows
        )

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
            yield f'{text},"ph":"{phase}","name":{names[name]}{more}{args}{_flow(flow)}}}'
            if flow2:
                yield f'{text},"ph":"X","dur":0,"name":{names[name]}{_flow(flow2)}}}'

    def _write(self, texts: Any) -> None:
        data = ",\n".join(texts)
        self._out.write(_HEAD if self._is_first else b",\n")
        self._out.write(data.encode())
        self._is_first = False


def _flow(number: int) -> str:
    return f',"bind_id":"{number:#x}","flow_in":true,"flow_out":true' if number else ""
