# SPDX-License-Identifier: Apache-2.0
"""The captures of tcpkmon selftest: many of one traffic, whose counts are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tcpkmon.collector import capturing
from tcpkmon.collector.commands.selftest_traffic import (
    RESET_PORT,
    Counts,
    End,
    Traffic,
)
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.traffic import Tally
from tcpkmon.formats.base.errors import TcpkmonError

NOT_HERE = "not on this kernel"
AT_ONCE = 4
ALL = ("--columns", "all", "--locations", "all", "--buffer-size", "1")

@dataclass(frozen=True)
class Finding:
    """One thing that was checked. expected and found are for people."""

    area: str
    name: str
    expected: str
    found: str
    result: str


@dataclass(frozen=True)
class Wanted:
    """A capture to make. ends: those that it must have, no others; None: all of the lab."""

    options: tuple[str, ...]
    ends: Callable[[Counts], Sequence[Tally]] | None = None
    schema: str = "tcp"
    suffix: str = ".pm"


@dataclass(frozen=True)
class Recorded:
    """Captures of counted traffic: their paths and what was wanted, by name. findings: captures
    that could not be made. rest: connections at rest, as their processes see them."""

    paths: Mapping[str, Path]
    wanted: Mapping[str, Wanted]
    counts: Counts
    rest: Sequence[tuple[End, bytes, str]]
    findings: Sequence[Finding]


def record(folder: Path, say: Callable[[str], None]) -> Recorded:
    """Make the traffic, and the captures in `folder`. Errors: those of Lab."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab())
        traffic = stack.enter_context(Traffic(lab))
        findings = []
        running: dict[str, capturing.Capture] = {}
        wanted = _captures(lab, traffic)
        first, *others = wanted
        say("compiling, and attaching the programs of all captures")
        start = {name: partial(_start, stack, folder, name, want) for name, want in wanted.items()}
        started = {first: start[first]()}  # the others find its image in the cache
        with ThreadPoolExecutor(AT_ONCE) as pool:
            started |= dict(zip(others, pool.map(lambda name: start[name](), others), strict=True))
        for name, result in started.items():
            if isinstance(result, capturing.Capture):
                running[name] = result
            else:
                words = str(result)
                findings.append(Finding(area_of(name), name, "captures", words, NOT_HERE))
        if "--cgroup" not in wanted:
            lacking = "no cgroup2 in which a group can be made"
            findings.append(Finding("filter", "--cgroup", "captures", lacking, NOT_HERE))
        say("counted traffic, losses, resets, full windows")
        counts = traffic.run()
        rest = traffic.at_rest()
        say("comparing")
        for capture in running.values():
            capture.stop()
    paths = {name: capture.output for name, capture in running.items()}
    return Recorded(paths, wanted, counts, rest, findings)


def _start(
    stack: ExitStack, folder: Path, name: str, want: Wanted
) -> capturing.Capture | TcpkmonError:
    """A capture that is attached; or why there is none."""
    path = folder / f"{name.strip('-')}{want.suffix}"
    try:
        return stack.enter_context(capturing.start(want.schema, path, options=want.options))
    except TcpkmonError as error:
        return error


AREAS = {
    "proof": "each capture adds up",
    "location": "records against calls and kernel counters",
    "value": "columns against TCP_INFO and ss",
    "filter": "exactly the connections asked for",
    "rings": "as many records",
    "file": "as many records",
}
"""What is checked, in the order of the report."""


def area_of(name: str) -> str:
    return "filter" if name.startswith("-") else "rings" if name == "perf" else "file"


def _captures(lab: Lab, traffic: Traffic) -> dict[str, Wanted]:
    """The captures by name; the first compiles, others find that in the cache."""
    lab_only = ("--netns", lab.a.name, "--netns", lab.b.name)
    same = (*lab_only, *ALL, "--format", "psc")
    v4, v6 = traffic.exchanges["v4"], traffic.exchanges["v6"]
    resets = traffic.exchanges["resets"]

    def filtered(
        ends: Callable[[Counts], Sequence[Tally]], *options: str, also: Sequence[str] = lab_only
    ) -> Wanted:
        return Wanted((*also, *ALL, "--format", "psc", *options), ends)

    def both(name: str) -> Callable[[Counts], Sequence[Tally]]:
        return lambda c: (c.exchanges[name].client, c.exchanges[name].server)

    ports = f"{v4.port},{v6.port},{resets.port}"
    found = {
        "all": Wanted(same),
        "perf": Wanted((*same, "--rings", "perf")),
        "klogger": Wanted((*lab_only, *ALL, "--format", "klogger"), suffix=".klog"),
        "magnet": Wanted((*lab_only, "--ports", str(v4.port), "--format", "magnet"),
                         schema="magnet", suffix=".magnet"),
        "--ports": filtered(both("v4"), "--ports", str(v4.port)),
        "-L": filtered(lambda c: [c.exchanges["v4"].server], "-L", str(v4.port)),
        "-D": filtered(lambda c: [c.exchanges["v4"].client], "-D", str(v4.port)),
        "--pair": filtered(lambda c: [c.exchanges["resets"].client],
                           "--pair", f"{RESET_PORT}.{resets.port}"),
        "--addr": filtered(both("v6"), "--addr", "fd77::/64", "--ports", ports),
        "-4": filtered(lambda c: [*both("v4")(c), *both("resets")(c)], "-4", "--ports", ports),
        "-6": filtered(both("v6"), "-6", "--ports", ports),
        "--netns": filtered(lambda c: [one.client for one in c.exchanges.values()],
                            "--netns", lab.a.name, "--ports", ports, also=()),
        "--pid": filtered(lambda c: [c.exchanges["v4"].client], "--pid", str(v4.client.pid)),
    }  # fmt: skip
    if traffic.cgroup is not None:
        found["--cgroup"] = filtered(
            lambda c: [c.exchanges["v6"].client], "--cgroup", str(traffic.cgroup)
        )
    return found


