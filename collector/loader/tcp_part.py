# SPDX-License-Identifier: Apache-2.0
"""The schema tcp's part of a capture: its columns, locations and C text, for prepare.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collector.linux.btf import Btf
from collector.linux.kallsyms import KALLSYMS, Kallsyms
from collector.linux.kernel_constants import Facts, read_facts
from collector.plan.columns import (
    EVENT,
    Layout,
    choose_columns,
    load_schema,
    locations_of,
    make_layout,
)
from collector.plan.probes import absent_columns
from collector.plan.tcp_codegen import Switches, snapshot_lines
from formats.base.control import EXISTING
from formats.klogger.describe import IN_HEAD
from formats.psc.columns import CLASSIC

IDENTITY = ("state_change", "destroy", "accepted")
"""Probes that run whatever is asked for: they tell connections apart, and whose they are."""
OWNERS = ("receive_call", "send_call")
"""The same with --pid. Where only these columns ask for the owner, the first is enough: what an
application accepts it seldom only sends on, and each program costs all calls of the machine."""
OWNER_COLUMNS = {"pid", "comm"}
TIMER_FUNCTION = "tcp_write_timer"
TIMER_LOCATIONS = ("RTO", "LOSS_PROBE", "ZERO_WINDOW_PROBE", "REO_TIMEOUT")


@dataclass(frozen=True)
class TcpPart:
    """What a capture stores and records of the schema tcp, and what that needs of this kernel."""

    layout: Layout
    facts: Facts
    switches: Switches
    socket_bytes: int
    """Of struct tcp_sock: room for a copy of one."""
    existing: bool
    timer_address: int
    """Of the function that all of a connection's timers call; 0: unknown."""

    @property
    def numbers(self) -> dict[str, int]:
        """The engine's point of each location that was asked for."""
        known = locations_of(self.layout.schema)
        found = {name: known[name] for name in self.switches.enabled}
        return {**found, "EXISTING": EXISTING} if self.existing else found

    @property
    def missing(self) -> dict[str, str]:
        """The locations that no probe can tell apart on this kernel, and why."""
        if self.timer_address:
            return {}
        why = f"{TIMER_FUNCTION} is not in {KALLSYMS}"
        return {name: why for name in self.switches.enabled if name in TIMER_LOCATIONS}

    @property
    def always(self) -> tuple[str, ...]:
        """Names of the probes to attach whatever is recorded."""
        if self.switches.by_inode:
            return (*IDENTITY, *OWNERS)
        stored = {column.name for column in self.layout.columns}
        return (*IDENTITY, *OWNERS[: bool(stored & OWNER_COLUMNS)])

    def lines(self) -> list[str]:
        """The C text."""
        symbols = {TIMER_FUNCTION: self.timer_address}
        return snapshot_lines(self.layout, self.facts, self.switches, symbols)


def make_tcp_part(
    locations: Sequence[str],
    text: str,
    btf: Btf,
    *,
    columns: str,
    watch: Sequence[str],
    connections: int,
    by_inode: bool,
    existing: bool,
    klogger: bool,
) -> TcpPart:
    """Chooses columns and finds out what this kernel has of them. text: the C text of the schemata.

    klogger: for a Klogger log, whose records have IN_HEAD in their head.
    """
    schema = load_schema()
    chosen = choose_columns(schema.event(EVENT), columns)
    if klogger:
        chosen = tuple(name for name in chosen if name in CLASSIC or name not in IN_HEAD)
    absent = list(absent_columns(text, btf))
    facts = read_facts(btf)
    if facts.mss_overhead is None:
        absent.append("sb_net_target")
    addresses = Kallsyms().functions(TIMER_FUNCTION)
    return TcpPart(
        make_layout(schema, chosen, absent),
        facts,
        Switches(tuple(locations), tuple(watch), connections, by_inode=by_inode),
        btf.struct("tcp_sock").size_bytes,
        existing,
        addresses[0] if addresses else 0,
    )
