# SPDX-License-Identifier: Apache-2.0
"""The handlers of requests to a running capture: switches, marks, rings, status.

They run in the session's main thread. collector/control/server.py calls them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tcpkmon.collector.control.changes import Changes
from tcpkmon.collector.linux.syscalls import wait_for_running
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.metrics.watching import Watching
from tcpkmon.collector.plan.filters import parse
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring.points import COUNTERS, row_of
from tcpkmon.collector.ring.rings import Rings, pages_of
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.formats.base.causes import KERNEL_CAUSES
from tcpkmon.formats.base.control import Mark
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.installing import own_version
from tcpkmon.formats.base.text import suggest

HOUR_S = 3600.0
SAMPLER = "sampler"
"""The program of bpf/schemata/sampler.bpf.c."""
_PUBLIC = (
    "tcpkmon", "pid", "format", "schemata", "data", "enabled", "rings", "buffer_bytes",
    "low_water_percent", "records", "bytes", "rates", "ring_fill", "reader_lag_s", "cost",
    "disk_free_bytes", "unproven", "segment", "segment_bytes", "rotation_failing", "shed_level",
    "shed_events", "lost", "events",
)  # fmt: skip
"""Of the status, for everybody."""
_RINGS_PART = 16
"""Of the memory, for rings that are made larger."""


class Handlers:
    """One method for each kind of request. TcpkmonError when it is refused.

    losses: records lost so far, by cause. refused: what the kernel refuses a CPU, and why.
    pulse: rates and costs. watching: counts the records.
    """

    def __init__(
        self,
        request: Request,
        kernel: Kernel,
        rings: Rings,
        stream: Stream,
        losses: Callable[[], Mapping[str, int]],
        refused: Callable[[], Mapping[str, str]],
        pulse: Callable[[], Mapping[str, Any]] = dict,
        watching: Watching | None = None,
    ) -> None:
        self._request = request
        self._kernel = kernel
        self._rings = rings
        self._stream = stream
        self._losses = losses
        self._refused = refused
        self._pulse = pulse
        self._watching = watching or Watching(None, {})
        self.changes = Changes(kernel, rings, stream)
        self._on = dict.fromkeys(kernel.states(), True)
        pages = os.sysconf("SC_PHYS_PAGES") // _RINGS_PART // os.sysconf("SC_NPROCESSORS_ONLN")
        self._most_buffer_bytes = max(kernel.buffer_bytes, pages * os.sysconf("SC_PAGESIZE"))
        self._dumped_s: list[float] = []
        """When the group asked for dumps."""
        self.next_file: Callable[[str], None] = lambda why: None
        """Begins the next file of a capture that rotates, which says what holds now."""
        self.free: Callable[[], None] = rings.free
        """Releases the records that were drained, as far as no later process needs them."""
        self.budget: Callable[[], Mapping[str, Any]] = dict
        """What a budget leaves out now."""
        found = {state for _, state in kernel.states().values()}
        self._was_off = 0 in found and 1 not in found
        """A process that was killed had switched all off: logging, or each event."""
        self.enabled = not self._was_off
        """Whether logging is on. An event is recorded if it and logging are on."""

    def public_status(self) -> dict[str, Any]:
        """What everybody may know: settings and counts, nothing of who talks to whom."""
        told = self.status()
        return {name: told[name] for name in _PUBLIC if name in told}

    def status(self) -> dict[str, Any]:
        self._adopt()
        accounts = self._kernel.heads()["accounts"]
        sampler = self._kernel.loaded.perf_event(SAMPLER)
        events = []
        for event, (number, state) in self._kernel.states().items():
            row = row_of(number)
            counts = {name: int(accounts[name][:, row].sum()) for name in COUNTERS}
            events.append(
                {
                    "number": number,
                    "name": event,
                    "enabled": "missing" if state < 0 else self._on[event],
                    "attempts": counts["attempts"],
                    "limited": counts["limited"],
                    "written": counts["written"],
                    "lost": sum(counts[cause] for cause in KERNEL_CAUSES),
                }
            )
        return {
            "tcpkmon": own_version(),
            "pid": os.getpid(),
            "name": self._request.name,
            "output": self._request.output,
            "format": self._request.file_format,
            "schemata": " ".join(self._request.schemata),
            "data": self._request.data,
            "enabled": self.enabled,
            "rings": self._rings.transport.name,
            "buffer_bytes": self._kernel.buffer_bytes,
            "low_water_percent": self._kernel.low_water_percent,
            "sampler_period_ns": None if sampler is None else sampler.period,
            "records": self._stream.records,
            "bytes": self._stream.bytes_written(),
            **self._pulse(),
            **self._files(),
            **self.budget(),
            "unproven": sorted(self._kernel.unproven),
            "lost": dict(self._losses()),
            **({} if (window := self._stream.window()) is None else {"recorder": window}),
            "refused": dict(self._refused()),
            "events": events,
        }

    def _files(self) -> dict[str, Any]:
        """Of a capture that rotates: the file that is written now, and why there is no next one."""
        if self._request.rotation is None:
            return {}
        error = self._stream.written.rotation_error
        return {
            "segment": self._stream.written.segment,
            "segment_bytes": self._stream.segment_bytes,
            "rotation_error": "" if error is None else str(error),
            "rotation_failing": error is not None,
        }

    def metrics(self) -> dict[str, Any]:
        """The status with all outcomes of each event, and the counts of TCP: no addresses."""
        accounts = self._kernel.heads()["accounts"]
        outcomes = {
            event: {name: int(accounts[name][:, row_of(number)].sum()) for name in COUNTERS}
            for event, (number, _) in self._kernel.states().items()
        }
        return {**self.status(), "outcomes": outcomes, "tcp": self._watching.metrics()}

    def top(self, sort: str, most: int, by: str = "", wanted: str = "") -> dict[str, Any]:
        """The first connections, with their addresses, or groups of them."""
        return {"pid": os.getpid(), **self._watching.top(sort, most, by, wanted)}

    def set_enabled(self, names: Sequence[str] | None, on: bool) -> dict[str, Any]:
        """Switch these events; None: switch logging."""
        self._adopt()
        if names is None:
            self._was_off = False
            if on != self.enabled:
                self.enabled = on
                self._apply(list(self._on))
                if not on:
                    self._settle()
                    self._stream.pause()
                else:
                    self._stream.resume()
            return {"enabled": self.enabled}
        states = self._kernel.states()
        for name in names:
            if name not in states:
                raise UsageError(
                    f"the capture has no event '{name}'{suggest(name, states)}",
                    "tcpkmon status lists them",
                )
            if states[name][1] < 0:
                raise TcpkmonError(f"this kernel has no place to log {name}", "run tcpkmon doctor")
        if self._was_off and on:  # then it was each event
            self._was_off, self.enabled = False, True
            self._on = dict.fromkeys(self._on, False)
        for name in names:
            self._on[name] = on
        self._apply(names)
        self._stream.switched(names)
        return {name: self._on[name] for name in names}

    def mark(self, number: int, pid: int) -> dict[str, Any]:
        most = self._stream.largest_mark
        if number > most:
            form = self._request.file_format
            raise UsageError(f"mark {number} is too large for this file", f"{form}: 0 to {most}")
        if not self._stream.marks([Mark(number, f"process {pid}")], pid):
            raise TcpkmonError("the mark was not set: the disk is too slow", "try it again")
        return {"number": number, "pid": pid}

    def dump(self, pid: int, is_owner: bool = True) -> dict[str, Any]:
        """Let the flight recorder write what it keeps. is_owner: root or the collector's user asks.
        Others together get as many an hour as triggers do, or the disk would be theirs to fill."""
        recorder, now_s = self._request.recorder, time.monotonic()
        if recorder is not None and not is_owner:
            recent = [at_s for at_s in self._dumped_s if now_s - at_s < HOUR_S]
            if len(recent) >= recorder.dumps_per_hour:
                raise TcpkmonError(
                    f"the group has asked for {len(recent)} dumps within an hour",
                    "root may ask for more; --dumps-per-hour",
                )
            self._dumped_s = [*recent, now_s]
        number = self._stream.ask(pid)
        after_s = recorder.after_s if recorder is not None else 0.0
        return {"dump": number, "folder": self._request.output, "after_s": after_s}

    def set_buffer_bytes(self, n: int) -> dict[str, Any]:
        """Give each CPU a new ring: the largest power of two of pages in `n` bytes.

        The rings of all CPUs have a sixteenth of the memory at most, or what they began with: the
        group may ask for it, and this process maps it."""
        self._refuse_while_enabled("the buffer size")
        if n > self._most_buffer_bytes:
            most = self._most_buffer_bytes >> 20
            raise UsageError(f"{n >> 20:,} MiB for each CPU: {most:,} are the most for a capture "
                             "that runs", "begin one with a larger --buffer-size")  # fmt: skip
        self._resize(pages_of(n), self._kernel.low_water_percent)
        return {"buffer_bytes": self._kernel.buffer_bytes}

    def set_low_water(self, percent: int) -> dict[str, Any]:
        """Set the wake-up threshold: the free share of a ring below which it is drained."""
        self._refuse_while_enabled("the low-water mark")
        if not 1 <= percent <= 99:
            raise UsageError(f"a low-water mark of {percent}%", "choose 1 to 99")
        self._resize(pages_of(self._kernel.buffer_bytes), percent)
        return {"low_water_percent": percent}

    def set_filters(self, given: Mapping[str, Any], is_owner: bool = True) -> dict[str, Any]:
        """Other filters; what passes both is recorded all the while. given: see filters.parse().

        is_owner: root or the collector's user asks. Then the next file begins, which names them.
        Others in a loop would fill the folder with small files, for which older ones are deleted.
        """
        kept = self._kernel.filters.namespaces
        # The capture may not look up the same ones again: it gave up the right to.
        same = [space.name for space in kept] == given.get("namespaces", [])
        filters = parse(**{**given, "namespaces": []} if same else given)
        try:
            with self.changes.making(of_filters=True):
                self._kernel.set_filters(replace(filters, namespaces=kept) if same else filters)
        finally:
            filters.close()
        found = {"filters": self._kernel.filters.describe()}
        self._stream.describe(found)
        if is_owner:
            self.next_file("filters")
        return found

    def set_limits(self, limits: Mapping[str, int]) -> dict[str, Any]:
        """These limits by event, records a second and CPU, and no others."""
        if unknown := limits.keys() - self._kernel.states().keys():
            raise UsageError(f"the capture has no event {min(unknown)!r}")
        with self.changes.making():
            self._kernel.set_limits(limits)
        return {"limits": dict(limits)}

    def set_sampler_period(self, period_ns: int) -> dict[str, Any]:
        """Sample the CPUs with this period from now on. Each sample has its period."""
        event = self._kernel.loaded.perf_event(SAMPLER)
        if event is None:
            raise TcpkmonError("the capture has no sampler", "collect --schema sampler")
        event.set_period(period_ns)
        return {"sampler_period_ns": period_ns}

    def _refuse_while_enabled(self, what: str) -> None:
        if self.enabled:
            raise TcpkmonError(
                f"{what} cannot change while logging is on", "first: tcpkmon disable"
            )

    def _resize(self, pages: int, percent: int) -> None:
        ring_bytes = pages * os.sysconf("SC_PAGESIZE")
        with self.changes.making():
            self._rings.resize(pages, max(1, ring_bytes * (100 - percent) // 100))
            self._kernel.buffer_bytes = ring_bytes
            self._kernel.low_water_percent = percent
        self._stream.describe({"buffer_bytes": ring_bytes, "low_water_percent": percent})

    def _apply(self, names: Sequence[str]) -> None:
        with self.changes.making():
            for wanted in (True, False):
                chosen = [name for name in names if (self._on[name] and self.enabled) is wanted]
                if chosen:
                    self._kernel.switch(chosen, wanted)

    def _adopt(self) -> None:
        """Take over what others switched."""
        self.changes.look()
        if self.enabled:
            self._on = {name: state != 0 for name, (_, state) in self._kernel.states().items()}

    def _settle(self) -> None:
        """Write all records from before the switch."""
        wait_for_running()
        self._stream.push(self._rings.drain())
        self._stream.release(FOREVER_NS)
        self.free()
