# SPDX-License-Identifier: Apache-2.0
"""The events of schemata, and how this kernel attaches each: for tcpkmon events."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.loader.attach_trials import Declared, Probing
from tcpkmon.collector.plan.columns import LOCATIONS
from tcpkmon.collector.plan.event_layout import lay_out_sources
from tcpkmon.collector.plan.extension import tcp_schema
from tcpkmon.collector.plan.probes import find_probes, make_plan
from tcpkmon.collector.plan.schema_sources import (
    TCP,
    find_sources,
    has_tcp,
    made_events,
    read_texts,
)
from tcpkmon.formats.base.control import FIRST_CONTROL
from tcpkmon.formats.schema import Schema


@dataclass(frozen=True)
class Listed:
    """An event or location. on: recorded by default; where: kind:target of all its programs, ''
    where this process may not try; why_not: why this kernel cannot record it."""

    number: int
    name: str
    on: bool
    doc: str
    where: str = ""
    why_not: str = ""


def list_events(
    schemata: Sequence[str], control: bool = False, declared: bool = False
) -> list[Listed]:
    """The events of schemata but base, whose events are in every log. control: those of tcp too.

    Root also tries how each can be attached; others see what the kernel declares, if `declared`.
    """
    sources = find_sources(schemata, trusted_only=os.geteuid() == 0)
    rows: list[Listed] = []
    if has_tcp(sources):
        rows += _locations(tcp_schema(sources), control)
    others = [one for one in sources if not one.extends and (one.name != TCP or not one.shipped)]
    layout = lay_out_sources(others)
    base = made_events(layout.schema)
    rows += [
        Listed(slot.number, slot.name, slot in layout.logged, slot.event.doc)
        for slot in layout.slots
        if slot.name not in base
    ]
    if os.geteuid() == 0:
        return _with_places(rows, read_texts(sources), Probing)
    return _with_places(rows, read_texts(sources), Declared) if declared else rows


def _locations(schema: Schema, control: bool) -> list[Listed]:
    return [
        Listed(m.value, m.name, "extra" not in m.tags and m.value < FIRST_CONTROL, m.doc)
        for m in schema.enum(LOCATIONS).members
        if control or m.value < FIRST_CONTROL
    ]


def _with_places(rows: list[Listed], text: str, probing: type[Probing]) -> list[Listed]:
    btf = Btf.from_kernel()
    plan = make_plan(find_probes(text), {row.name for row in rows}, probing(btf).can, btf)
    found = []
    for row in rows:
        place = plan.kind_of(row.name) or ""
        why = plan.missing.get(row.name, "" if place else "no probe logs it")
        why = "" if row.number >= FIRST_CONTROL else why
        found.append(replace(row, where=place, why_not=why))
    return found
