# SPDX-License-Identifier: Apache-2.0
"""The part of a capture that klogger() logs: its events, counters and C text, for prepare.py."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tcpkmon.collector.linux.kernel_constants import measure_hz
from tcpkmon.collector.loader.perf_counters import Bound, c_text
from tcpkmon.collector.plan.event_codegen import event_lines
from tcpkmon.collector.plan.event_layout import EventLayout
from tcpkmon.collector.plan.probes import Plan
from tcpkmon.collector.plan.schema_sources import made_events


@dataclass(frozen=True)
class EventPart:
    """The events of a capture to Klogger files: `chosen` are recorded."""

    layout: EventLayout
    chosen: tuple[str, ...]
    counters: tuple[Bound, ...]

    @property
    def numbers(self) -> dict[str, int]:
        """The engine's point of each event that was asked for."""
        slots = {slot.name: slot.number for slot in self.layout.logged}
        return {name: slots[name] for name in self.chosen}

    def unreached(self, plan: Plan) -> dict[str, str]:
        """The events that no probe of their schema names, and why they are missing."""
        reached = {name for probe in plan.probes for name in probe.locations} | set(plan.missing)
        why = "no probe of its schema logs it"
        return {name: why for name in self.chosen if name not in reached}

    @property
    def highest(self) -> int:
        """The highest number of an event."""
        return max((slot.number for slot in self.layout.slots), default=0)

    def lines(self, reserved: Collection[str]) -> list[str]:
        """The C text. reserved: events that klogger() does not log, besides those of base."""
        schema = self.layout.schema
        reserved = {*made_events(schema), *reserved}
        return [
            f"#define KLOGGER_HZ {measure_hz()}",
            *event_lines(self.layout, reserved),
            c_text(self.counters, schema.arches),
        ]
