# SPDX-License-Identifier: Apache-2.0
"""The schema tcp's part of a capture: its columns, locations and C text, for prepare.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tcpkmon.collector.linux.kallsyms import KALLSYMS
from tcpkmon.collector.linux.kernel_constants import Facts, read_facts
from tcpkmon.collector.loader.kernel_answers import KernelAnswers
from tcpkmon.collector.plan.budget import WATCHED
from tcpkmon.collector.plan.columns import (
    EVENT,
    Layout,
    choose_columns,
    locations_of,
    make_layout,
)
from tcpkmon.collector.plan.extension import find_fills
from tcpkmon.collector.plan.filters import Flag
from tcpkmon.collector.plan.named_groups import GROUP_MADE
from tcpkmon.collector.plan.probes import absent_columns
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.plan.tcp_codegen import Switches, snapshot_lines
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.psc.columns import CLASSIC
from tcpkmon.formats.schema import Schema

IDENTITY = ("state_change", "destroy", "accepted")
"""Probes that are always attached: they find the identities of connections and their owners."""
OWNERS = ("receive_call", "send_call")
"""Always attached with --pid. Where only OWNER_COLUMNS need the owner, the first is attached alone:
an application rarely sends on a connection and never receives, and each program slows all calls."""
OWNER_COLUMNS = {"pid", "comm"}
TIMER_FUNCTION = "tcp_write_timer"
TIMER_LOCATIONS = ("RTO", "LOSS_PROBE", "ZERO_WINDOW_PROBE", "REO_TIMEOUT")


@dataclass(frozen=True)
class TcpPart:
    """What a capture stores and records of the schema tcp, and facts of this kernel for it."""

    layout: Layout
    facts: Facts
    switches: Switches
    socket_bytes: int
    """Size of struct tcp_sock, for a copy."""
    existing: bool
    timer_address: int
    """Address of the function that all timers of a connection call; 0: unknown."""
    fills: tuple[str, ...]
    """Of users' schemata."""

    @property
    def numbers(self) -> dict[str, int]:
        """The engine's point of each location that was asked for."""
        known = locations_of(self.layout.schema)
        found = {name: known[name] for name in self.switches.enabled}
        return {**found, "EXISTING": EXISTING} if self.existing else found

    @property
    def missing(self) -> dict[str, str]:
        """The locations that no probe can distinguish on this kernel, and why."""
        if self.timer_address:
            return {}
        why = f"{TIMER_FUNCTION} is not in {KALLSYMS}"
        return {name: why for name in self.switches.enabled if name in TIMER_LOCATIONS}

    @property
    def always(self) -> tuple[str, ...]:
        """Names of the probes that are attached in any case."""
        stored = {column.name for column in self.layout.columns}
        owners = OWNERS if self.switches.by_inode else OWNERS[: bool(stored & OWNER_COLUMNS)]
        return (*IDENTITY, *owners, *([GROUP_MADE] if "cgroup" in stored else ()))

    def lines(self) -> list[str]:
        """The C text."""
        symbols = {TIMER_FUNCTION: self.timer_address}
        return snapshot_lines(self.layout, self.facts, self.switches, symbols, self.fills)


def make_tcp_part(
    schema: Schema,
    locations: Sequence[str],
    text: str,
    btf: KernelAnswers,
    request: Request,
) -> TcpPart:
    """Chooses columns and finds those that this kernel lacks. schema: tcp, with what extends it.
    text: the C text of the schemata.
    """
    chosen = choose_columns(schema.event(EVENT), request.stored_columns)
    if request.format.holds_events:
        # In logs the columns IN_HEAD are in the head of a record. Only they need this slow import.
        from tcpkmon.formats.klogger.describe import IN_HEAD

        chosen = tuple(name for name in chosen if name in CLASSIC or name not in IN_HEAD)
    absent = list(absent_columns(text, btf))
    facts = read_facts(btf)
    if facts.mss_overhead is None:
        absent.append("sb_net_target")
    layout = make_layout(schema, chosen, absent)
    watch = request.when_changed
    if by_budget := request.budget is not None and not watch:
        stored = {column.name for column in layout.columns if column.length}
        watch = tuple(name for name in WATCHED if name in stored)
    return TcpPart(
        layout,
        facts,
        Switches(
            tuple(locations),
            watch,
            request.identities,
            by_inode=Flag.PID in request.filters.flags,
            sheds_unchanged=by_budget and bool(watch),
        ),
        btf.struct_bytes("tcp_sock"),
        request.existing,
        btf.address_of(TIMER_FUNCTION),
        find_fills(text),
    )
