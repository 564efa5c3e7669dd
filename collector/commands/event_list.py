# SPDX-License-Identifier: Apache-2.0
"""What the schemata can record, and how each event is attached on this kernel: for tcpkmon events.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collector.linux.btf import Btf
from collector.loader.attach_trials import Probing
from collector.plan.columns import LOCATIONS, load_schema
from collector.plan.event_layout import lay_out_sources
from collector.plan.probes import find_probes, make_plan
from collector.plan.schema_sources import TCP, find_sources, has_tcp, made_events, read_texts
from formats.base.control import FIRST_CONTROL


@dataclass(frozen=True)
class Listed:
    """An event or location. on: recorded unless told otherwise; where: kind:target, all of them;
    '' where this process may not try. why_not: the reason why this kernel has no place for it."""

    number: int
    name: str
    on: bool
    doc: str
    where: str = ""
    why_not: str = ""


def list_events(schemata: Sequence[str], control: bool = False) -> list[Listed]:
    """The events of schemata, base's apart (they are in every log). control: tcp's too.

    Asks the kernel by attaching for an instant, which root alone can do.
    """
    sources = find_sources(schemata, trusted_only=os.geteuid() == 0)
    rows: list[Listed] = []
    if has_tcp(sources):
        rows += _locations(control)
    others = [source for source in sources if source.name != TCP or not source.shipped]
    layout = lay_out_sources(others)
    base = made_events(layout.schema)
    logged = {slot.name for slot in layout.logged}
    rows += [
        Listed(slot.number, slot.name, slot.name in logged, slot.event.doc)
        for slot in layout.slots
        if slot.name not in base
    ]
    if os.geteuid() != 0:
        return rows
    return _with_places(rows, read_texts(sources))


def _locations(control: bool) -> list[Listed]:
    return [
        Listed(m.value, m.name, "extra" not in m.tags and m.value < FIRST_CONTROL, m.doc)
        for m in load_schema().enum(LOCATIONS).members
        if control or m.value < FIRST_CONTROL
    ]


def _with_places(rows: list[Listed], text: str) -> list[Listed]:
    btf = Btf.from_kernel()
    plan = make_plan(find_probes(text), {row.name for row in rows}, Probing(btf).can, btf)
    found = []
    for row in rows:
        place = plan.kind_of(row.name) or ""
        why = plan.missing.get(row.name, "" if place else "no probe logs it")
        found.append(
            replace(row, where=place, why_not="" if row.number >= FIRST_CONTROL else why)
        )
    return found
