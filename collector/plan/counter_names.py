# SPDX-License-Identifier: Apache-2.0
"""Checks the names of machines and counters in a schema's `arch` blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tcpkmon.collector.linux.perf_names import find_counter, table
from tcpkmon.formats.base.errors import Problem
from tcpkmon.formats.schema import Arch, Suggestions

ANY = "any"
MACHINES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"x86_64": ("x86_64",), "arm64": ("arm64",), "PentiumIV": ("x86_64",), ANY: ()}
)
"""The names that may follow `arch`, and their machines; any is all."""


def check(arches: Iterable[Arch]) -> list[Problem]:
    """The unknown names of machines and counters in `arch` blocks, whatever this machine is."""
    problems = []
    suggest = Suggestions().suggest
    for arch in arches:
        where = (arch.position.file, arch.position.line, arch.position.column)
        if arch.name not in MACHINES:
            near = suggest(arch.name, MACHINES)
            names = ", ".join(MACHINES)
            problems.append(Problem(*where, f"expected one of {names}, found '{arch.name}'{near}"))
        places = arch.counter_positions or (arch.position,) * len(arch.counters)
        for (number, name), place in zip(arch.counters, places, strict=True):
            if find_counter(name) is None:
                near = suggest(name, table())
                text = f"expected the name of a counter after {number}, found '{name}'{near}"
                problems.append(Problem(place.file, place.line, place.column, text))
    return problems
