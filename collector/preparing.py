# SPDX-License-Identifier: Apache-2.0
"""What a capture decides before it touches the kernel: columns, probes, the compiled image."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector import kheader, probing
from collector.btf import Btf
from collector.codegen import Switches, make_header
from collector.compiler import Image, compile_text
from collector.facts import Facts, measure
from collector.layout import (
    Layout,
    choose_columns,
    choose_locations,
    load_schema,
    make_layout,
)
from collector.plan import Plan, absent_columns, find_probes, make_plan, read_text, require_any
from formats.errors import PrivilegeError

KALLSYMS = Path("/proc/kallsyms")
SYMBOLS = ("tcp_write_timer",)
IDENTITY = ("state_change", "destroy", "accepted")
"""Probes that run whatever is asked for: they tell connections apart, and whose they are."""
OWNERS = ("send_call", "receive_call")
"""The same with --pid: they tell whose a connection is."""
TIMER_LOCATIONS = {"RTO", "LOSS_PROBE", "ZERO_WINDOW_PROBE", "REO_TIMEOUT"}


@dataclass(frozen=True)
class Prepared:
    """A capture that can start: nothing of it is in the kernel yet."""

    btf: Btf
    facts: Facts
    layout: Layout
    plan: Plan
    switches: Switches
    image: Image

    @property
    def enabled(self) -> tuple[str, ...]:
        """The locations that are recorded: asked for, and there on this kernel."""
        return tuple(n for n in self.switches.enabled if n not in self.plan.missing)


def check_privilege() -> None:
    """Raises PrivilegeError unless this process is root."""
    if os.geteuid() != 0:
        raise PrivilegeError("capturing needs root", "run it with sudo")


def prepare(
    columns: str,
    locations: str | None,
    watch: Sequence[str],
    existing: bool,
    by_inode: bool,
    kinds: Collection[str] | None = None,
    connections: int = 131072,
) -> Prepared:
    """Chooses columns and probes, and compiles the text for them (or takes it from the cache).

    `kinds` narrows the ways to attach. Raises UsageError for unknown names, KernelError where this
    kernel cannot do what was asked.
    """
    schema = load_schema()
    text = read_text()
    chosen = choose_columns(schema.event("SNAPSHOT"), columns)
    asked = choose_locations(schema, locations)
    btf = Btf.from_kernel()
    facts = measure(btf)
    absent = list(absent_columns(text, btf))
    if facts.mss_overhead is None:
        absent.append("sb_net_target")
    layout = make_layout(schema, chosen, absent)
    symbols, unknown = _find_symbols()
    usable = set(asked) - (TIMER_LOCATIONS if unknown else set())
    plan = make_plan(
        find_probes(text),
        usable | ({"EXISTING"} if existing else set()),
        probing.Probing(btf),
        btf,
        always=(*IDENTITY, *(OWNERS if by_inode else ())),
        kinds=kinds,
    )
    missing = dict(plan.missing)
    missing.update({name: f"{unknown} is not in {KALLSYMS}" for name in set(asked) - usable})
    plan = Plan(plan.probes, missing, plan.arguments)
    require_any(plan, asked)
    switches = Switches(asked, tuple(watch), connections, by_inode=by_inode)
    size = btf.struct("tcp_sock").size_bytes
    header = make_header(layout, plan, facts, switches, symbols, size)
    image = compile_text(
        kheader.make(btf, text) + header + text, [probe.name for probe in plan.probes]
    )
    return Prepared(btf, facts, layout, plan, switches, image)


def _find_symbols() -> tuple[dict[str, int], str]:
    """The addresses of SYMBOLS (0 where unknown), and the name of the first that is missing."""
    found = dict.fromkeys(SYMBOLS, 0)
    pattern = re.compile(rf"^([0-9a-f]+) \w ({'|'.join(SYMBOLS)})$", re.MULTILINE)
    for address, name in pattern.findall(KALLSYMS.read_text()):
        found[name] = int(address, 16)
    return found, next((name for name, address in found.items() if not address), "")


def describe_kernel() -> str:
    """Release, version and machine, as uname gives them."""
    name = platform.uname()
    return f"{name.release} {name.version} {name.machine}"
