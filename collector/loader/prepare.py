# SPDX-License-Identifier: Apache-2.0
"""What a capture decides before it touches the kernel: columns, events, probes, the compiled image.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from collector.linux.btf import Btf
from collector.linux.kernel_constants import Facts, measure
from collector.loader import attach_trials
from collector.loader.compiler import Image, compile_text
from collector.loader.perf_counters import Bound, bind, c_text
from collector.plan import kernel_types
from collector.plan.columns import (
    EVENT,
    Layout,
    choose_columns,
    choose_locations,
    load_schema,
    locations_of,
    make_layout,
)
from collector.plan.engine_config import Engine, make_engine
from collector.plan.event_codegen import event_lines
from collector.plan.event_layout import EventLayout, lay_out, ring_dtype
from collector.plan.probes import Plan, absent_columns, find_probes, make_plan, require_any
from collector.plan.request import Request
from collector.plan.schema_lint import read_checked
from collector.plan.schema_sources import BASE, Source, find_sources, load_schema_of, read_texts
from collector.plan.tcp_codegen import Switches, snapshot_lines
from formats.base.control import EXISTING
from formats.base.errors import PrivilegeError, UsageError

KALLSYMS = Path("/proc/kallsyms")
SYMBOLS = ("tcp_write_timer",)
TCP = "tcp"
IDENTITY = ("state_change", "destroy", "accepted")
"""Probes that run whatever is asked for: they tell connections apart, and whose they are."""
OWNERS = ("receive_call", "send_call")
"""The same with --pid. Where only these columns ask for the owner, the first is enough: what an
application accepts it seldom only sends on, and each program costs all calls of the machine."""
OWNER_COLUMNS = {"pid", "comm"}
TIMER_LOCATIONS = {"RTO", "LOSS_PROBE", "ZERO_WINDOW_PROBE", "REO_TIMEOUT"}
# A value of the wrong kind in klogger() is a mistake, not a warning.
STRICT = ("-Werror=int-conversion", "-Werror=incompatible-pointer-types")


@dataclass(frozen=True)
class Snapshots:
    """The part of a capture that is the schema tcp: its columns and what they need."""

    layout: Layout
    facts: Facts
    switches: Switches


@dataclass(frozen=True)
class Prepared:
    """A capture that can start: nothing of it is in the kernel yet.

    numbers: the engine's point of every location and event that was asked for, by name. events is
    None where the schema tcp alone goes into a PSC file.
    """

    btf: Btf
    plan: Plan
    engine: Engine
    image: Image
    numbers: Mapping[str, int]
    tcp: Snapshots | None = None
    events: EventLayout | None = None
    counters: tuple[Bound, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The columns of the schema tcp, for captures that have it."""
        assert self.tcp is not None
        return self.tcp.layout

    @property
    def dtype(self) -> np.dtype[Any]:
        """A record in the ring: the capture's columns, or the head of any event."""
        if self.events is None:
            return self.layout.dtype
        return ring_dtype(self.engine.entry_size)

    @property
    def enabled(self) -> tuple[str, ...]:
        """What is recorded: asked for, and there on this kernel."""
        return tuple(name for name in self.numbers if name not in self.plan.missing)


@dataclass(frozen=True)
class Wish:
    """What to prepare: see collector/plan/request.py. `kinds` narrows the ways to attach."""

    schemata: tuple[str, ...] = (TCP,)
    columns: str = "default"
    locations: str | None = None
    watch: Sequence[str] = ()
    existing: bool = True
    by_inode: bool = False
    kinds: Collection[str] | None = None
    connections: int = 131072
    klogger: bool = False
    """Events go into Klogger files."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Records a second and CPU, by event."""
    using: tuple[str, ...] = ()
    """Log levels, in place of those that their schemata use."""


def wish_of(request: Request) -> Wish:
    """What a request needs to be prepared."""
    return Wish(
        schemata=request.schemata,
        columns=request.columns,
        locations=request.locations,
        watch=request.when_changed,
        existing=request.existing,
        by_inode=bool(request.filters.pids),
        kinds=request.kinds,
        klogger=request.format.any_schema,
        limits=dict(request.limits),
        using=request.using,
    )


def check_privilege() -> None:
    """Raises PrivilegeError unless this process is root."""
    if os.geteuid() != 0:
        raise PrivilegeError("capturing needs root", "run it with sudo")


def prepare(wish: Wish) -> Prepared:
    """Chooses columns, events and probes, and compiles the text (or takes it from the cache).

    Raises UsageError for unknown names, SchemaError, KernelError where this kernel cannot do what
    was asked.
    """
    sources = find_sources(wish.schemata)
    has_tcp = any(source.shipped and source.name == TCP for source in sources)
    if not all(source.shipped for source in sources):
        read_checked(sources)
    text = read_texts(sources)
    btf = Btf.from_kernel()
    events = lay_out_events(sources, wish.using) if wish.klogger else None
    locations, chosen = _choose(wish.locations, has_tcp, events)
    tcp: Snapshots | None = None
    unknown = ""
    symbols: dict[str, int] = {}
    if has_tcp:
        tcp = _prepare_tcp(wish, locations, text, btf)
        symbols, unknown = _find_symbols()
    usable = set(locations) - (TIMER_LOCATIONS if unknown else set())
    plan = make_plan(
        find_probes(text),
        usable | set(chosen) | ({"EXISTING"} if has_tcp and wish.existing else set()),
        attach_trials.Probing(btf),
        btf,
        always=_always(tcp, wish.by_inode),
        kinds=wish.kinds,
    )
    missing = dict(plan.missing)
    missing.update({name: f"{unknown} is not in {KALLSYMS}" for name in set(locations) - usable})
    reached = {name for probe in plan.probes for name in probe.locations} | set(missing)
    missing.update({n: "no probe of its schema logs it" for n in chosen if n not in reached})
    plan = Plan(plan.probes, missing, plan.arguments, plan.unused)
    require_any(plan, (*locations, *chosen))
    counters = bind(events.schema.arches) if events is not None else ()
    entry_size = max(
        tcp.layout.entry_size if tcp is not None else 0,
        events.entry_size if events is not None else 0,
    )
    engine = make_engine(
        entry_size,
        plan,
        btf.struct("tcp_sock").size_bytes if has_tcp else 0,
        max((slot.number for slot in events.slots), default=0) if events is not None else 0,
    )
    lines = ["/* generated by tcpkmon from the schemata */", *engine.lines(plan)]
    if tcp is not None:
        lines += snapshot_lines(tcp.layout, tcp.facts, tcp.switches, symbols)
    if events is not None:
        lines += event_lines(events, {EVENT} if has_tcp else ())
        lines.append(c_text(counters, events.schema.arches))
    image = compile_text(
        kernel_types.make(btf, text) + "\n".join(lines) + "\n" + text,
        [probe.name for probe in plan.probes],
        user_schema=not all(source.shipped for source in sources),
        flags=STRICT if events is not None else (),
    )
    numbers = _number(tcp, locations, chosen, events)
    if has_tcp and wish.existing:
        numbers["EXISTING"] = EXISTING
    return Prepared(
        btf, plan, engine, image, numbers, tcp, events, counters, _check_limits(wish, chosen)
    )


def lay_out_events(sources: Sequence[Source], using: Sequence[str] = ()) -> EventLayout:
    """The events of several schemata, numbered; SNAPSHOT of the schema tcp is logged otherwise.

    using: log levels that take the place of those that their schemata use.
    """
    has_tcp = any(source.shipped and source.name == TCP for source in sources)
    schema = load_schema_of(sources)
    if using:
        files = {schema.loglevel(name).position.file for name in using}
        used = schema.using or [level.name for level in schema.loglevels]
        kept = [name for name in used if schema.loglevel(name).position.file not in files]
        schema = replace(schema, using=(*kept, *using))
    base = [e.name for e in load_schema_of([s for s in sources if s.name == BASE]).events]
    return lay_out(schema, [*base, *([EVENT] if has_tcp else [])])


def _choose(
    text: str | None, has_tcp: bool, events: EventLayout | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The locations of the schema tcp and the events of others that --locations names."""
    logged = [slot.name for slot in events.logged] if events is not None else []
    if not logged:
        return choose_locations(load_schema(), text), ()
    schema = load_schema() if has_tcp else None
    known = set(locations_of(schema)) if schema is not None else set()
    if both := known & set(logged):
        raise UsageError(f"{min(both)} is an event and a location of the schema tcp", "rename it")
    words = [word.strip() for word in (text or "default").split(",") if word.strip()]
    ours, theirs, names = [], [], set(logged)
    for word in words:
        name = word.lstrip("-+")
        if name.lower() in {"default", "all"}:
            ours.append(word)
            theirs.append(word)
        elif name.upper() in known:
            ours.append(word)
        elif name in names:
            theirs.append(word)
        else:
            every = [slot.name for slot in events.slots] if events is not None else []
            why = "its log level is not in use" if name in every else "tcpkmon events lists them"
            raise UsageError(f"no such event to record: {name}", why)
    locations = choose_locations(schema, ",".join(ours)) if schema is not None and ours else ()
    return locations, _narrow(theirs, logged)


def _narrow(words: Sequence[str], logged: Sequence[str]) -> tuple[str, ...]:
    """Of the events that are logged, those that the words leave."""
    if not words:
        return ()
    chosen: set[str] = set(logged) if words[0].startswith("-") else set()
    for word in words:
        name = word.lstrip("-+")
        group = set(logged) if name.lower() in {"default", "all"} else {name}
        chosen = chosen - group if word.startswith("-") else chosen | group
    if not chosen:
        raise UsageError("no event is left to record", "tcpkmon events lists them")
    return tuple(name for name in logged if name in chosen)


def _prepare_tcp(wish: Wish, locations: tuple[str, ...], text: str, btf: Btf) -> Snapshots:
    schema = load_schema()
    chosen = choose_columns(schema.event(EVENT), wish.columns)
    facts = measure(btf)
    absent = list(absent_columns(text, btf))
    if facts.mss_overhead is None:
        absent.append("sb_net_target")
    layout = make_layout(schema, chosen, absent)
    switches = Switches(locations, tuple(wish.watch), wish.connections, by_inode=wish.by_inode)
    return Snapshots(layout, facts, switches)


def _always(tcp: Snapshots | None, by_inode: bool) -> tuple[str, ...]:
    if tcp is None:
        return ()
    tells = any(column.name in OWNER_COLUMNS for column in tcp.layout.columns)
    return (*IDENTITY, *OWNERS[: 2 if by_inode else int(tells)])


def _number(
    tcp: Snapshots | None,
    locations: Sequence[str],
    chosen: Sequence[str],
    events: EventLayout | None,
) -> dict[str, int]:
    numbers: dict[str, int] = {}
    if tcp is not None:
        known = locations_of(tcp.layout.schema)
        numbers.update({name: known[name] for name in locations})
    if events is not None:
        slots = {slot.name: slot.number for slot in events.logged}
        numbers.update({name: slots[name] for name in chosen})
    return numbers


def _check_limits(wish: Wish, chosen: Sequence[str]) -> Mapping[str, int]:
    for name in wish.limits:
        if name not in chosen:
            raise UsageError(
                f"--limit {name}: no such event is recorded", "it holds for events of schemata"
            )
    return dict(wish.limits)


def _find_symbols() -> tuple[dict[str, int], str]:
    """The addresses of SYMBOLS (0 where unknown), and the name of the first that is missing."""
    found = dict.fromkeys(SYMBOLS, 0)
    listing = KALLSYMS.read_bytes()
    for name in SYMBOLS:
        # Lines are "ADDRESS KIND NAME", and "\t[MODULE]" after some.
        end = listing.find(f" {name}\n".encode())
        if end > 0:
            line = listing[listing.rfind(b"\n", 0, end) + 1 : end]
            found[name] = int(line.split()[0], 16)
    return found, next((name for name, address in found.items() if not address), "")


def describe_kernel() -> str:
    """Release, version and machine, as uname gives them."""
    name = platform.uname()
    return f"{name.release} {name.version} {name.machine}"
