# SPDX-License-Identifier: Apache-2.0
"""How many records a second each tool takes from a flood, and what a record costs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark import tools
from scripts.benchmark.load import Done, Load
from scripts.benchmark.results import Results
from scripts.benchmark.session import Session, cpus
from scripts.benchmark.tools import Tool

NAME = "rates"
TITLE = "Record rate"
LEAN_FOLDER = Path(__file__).with_name("lean")
LEAN = "collect, lean record"
CLASSIC = "collect --columns classic"
DEFAULT = "collect"
PERF_LEAN = "perf record sys_enter_getppid"
PERF_SOCKET = "perf record sock_recv_length"
# By flood: the tools that record each of its calls, and nothing else.
FLOODS = {"getppid": (LEAN, PERF_LEAN), "receive": (CLASSIC, DEFAULT, PERF_SOCKET)}


@dataclass(frozen=True)
class Setting:
    """How many cores flood, and the rate of each (calls a second; 0: as fast as it can)."""

    name: str
    cores: int
    rate: float


ANY = Setting("one core, any rate", 1, 0)
BOTH = Setting("both cores, any rate", 2, 0)
PACED = (Setting("one core, 500,000/s", 1, 500e3), Setting("one core, 1,000,000/s", 1, 1e6))
SETTINGS = (ANY, *PACED, BOTH)
METRICS = ("calls", "records", "lost", "cpu_us", "kernel_us")
UNCOUNTED = "uncounted"
"""Calls that a tool neither recorded nor counted as lost."""


def subject(flood: str, setting: Setting, metric: str) -> str:
    return f"{flood}, {setting.name}: {metric}"


def find_tools(session: Session) -> list[Tool]:
    """Those that can be used here."""
    one_place = ("--locations", "RECEIVE_CALL", "--no-existing")
    wanted = (
        tools.collect(LEAN, "--schema", str(LEAN_FOLDER), "--format", "klogger"),
        tools.collect(CLASSIC, "--columns", "classic", *one_place),
        tools.collect(DEFAULT, *one_place),
        tools.perf(PERF_LEAN, "syscalls:sys_enter_getppid"),
        tools.perf(PERF_SOCKET, "sock:sock_recv_length"),
    )
    return tools.usable(session, NAME, wanted)


def measure(session: Session) -> None:
    """Each flood at each setting, without a tool and with each in turn."""
    known = find_tools(session)
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(session.lab())[1] for _ in range(2)]
        for load, cpu in zip(loads, cpus(), strict=True):
            load.pin(cpu, cpu)
        for _ in session.each_round(NAME):
            for flood, names in FLOODS.items():
                paced = PACED if flood == "getppid" else ()
                for setting in (ANY,) if session.quick else (ANY, *paced, BOTH):
                    for tool in known:
                        if session.quick and tool.name == CLASSIC:
                            continue
                        if tool.name in names and not session.results.is_skipped(NAME, tool.name):
                            with tools.tolerating(session, NAME, tool):
                                _one_tool(session, loads, flood, setting, tool)


def _one_tool(
    session: Session, loads: list[Load], flood: str, setting: Setting, tool: Tool
) -> None:
    bare = [] if setting.rate else _flood(session, loads, flood, setting)
    with tool.running(session.folder) as it:
        with_tool = _flood(session, loads, flood, setting)
        outcome = it.end()
    records = max(1, outcome.records)
    found = {
        "calls": sum(done.rate for done in with_tool),
        "records": outcome.records / max(done.seconds for done in with_tool),
        "lost": outcome.lost / (outcome.records + outcome.lost or 1),
        "cpu_us": 1e6 * outcome.cpu_s / records,
        "bytes": outcome.bytes / records,
        UNCOUNTED: max(0, sum(done.count for done in with_tool) - outcome.records - outcome.lost),
    }
    if bare:
        # CPU time, not wall time: others may have used the CPU.
        found["kernel_us"] = _cpu_us(with_tool) - _cpu_us(bare)
    for metric, value in found.items():
        session.results.add(NAME, subject(flood, setting, metric), tool.name, value)


def _flood(session: Session, loads: list[Load], flood: str, setting: Setting) -> list[Done]:
    """What each core did."""
    seconds = session.pick(0.5, 0.4)
    used = loads[: setting.cores]
    for load in used:
        load.start(f"{flood} {seconds} {setting.rate}")
    return [load.finish() for load in used]


def _cpu_us(flood: list[Done]) -> float:
    """CPU time of a call, in us."""
    return 1e6 * sum(done.cpu_s for done in flood) / sum(done.count for done in flood)


def cost_of(results: Results, case: str) -> tuple[float, float] | None:
    """Of a record of the getppid flood from one core, in us: in the kernel, in the reader."""
    kernel, reader = (
        results.median(NAME, subject("getppid", ANY, metric), case)
        for metric in ("kernel_us", "cpu_us")
    )
    return None if kernel is None or reader is None else (kernel, reader)
