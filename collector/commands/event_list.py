# SPDX-License-Identifier: Apache-2.0
"""What the schemata can record, and where each event hangs on this kernel: tcpkmon events, doctor.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from collector.linux.btf import Btf
from collector.loader.attach_trials import Probing
from collector.loader.prepare import TCP, lay_out_events
from collector.plan.columns import LOCATIONS, load_schema
from collector.plan.probes import find_probes, make_plan
from collector.plan.schema_sources import BASE, find_sources, read_texts
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
    if any(source.shipped and source.name == TCP for source in sources):
        rows += _locations(control)
    others = [source for source in sources if source.name != TCP or not source.shipped]
    layout = lay_out_events(others)
    base = {e.name for e in lay_out_events([s for s in sources if s.name == BASE]).schema.events}
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
    plan = make_plan(find_probes(text), {row.name for row in rows}, Probing(btf), btf)
    found = []
    for row in rows:
        places = [f"{p.kind}:{p.target}" for p in plan.probes if row.name in p.locations]
        why = plan.missing.get(row.name, "" if places else "no probe logs it")
        if row.number >= FIRST_CONTROL:
            why = ""
        found.append(
            Listed(row.number, row.name, row.on, row.doc, " ".join(dict.fromkeys(places)), why)
        )
    return found
