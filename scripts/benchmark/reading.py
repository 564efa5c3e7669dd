# SPDX-License-Identifier: Apache-2.0
"""How fast files of the same traffic are read, asked and exported, beside perf script."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark import tools
from scripts.benchmark.load import Load
from scripts.benchmark.results import Results
from scripts.benchmark.session import BIN, Session, cpus
from scripts.benchmark.tools import Tool

NAME = "reading"
TITLE = "Reading, text and export"
WALL, CPU, START, RECORDS = "wall ns", "CPU ns", "start ms", "records"
FULL, KLOGGER, PERF = "PSC, --columns full", "Klogger, --columns full", "perf.data, tcp:tcp_probe"
READ = "read every column"
PERF_SCRIPT = "perf script"
READER = """
import sys, tcpkmon
with tcpkmon.open(sys.argv[1]) as capture:
    for rows in capture.chunks(8192):
        capture.columns([c.name for c in capture.columns_by_name.values()], rows.start, rows.stop)
"""
COMMANDS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    READ: (FULL, lambda path: [str(BIN / "python"), "-I", "-c", READER, str(path)]),
    "tcpkmon verify": (FULL, lambda path: _tcpkmon("verify", path)),
    "tcpkmon why": (FULL, lambda path: _tcpkmon("why", path)),
    "tcpkmon connections": (FULL, lambda path: _tcpkmon("connections", path)),
    "pmgraph -T, every column": (FULL, lambda path: [str(BIN / "pmgraph"), str(path), "-T"]),
    "tcpkmon export, Parquet": (
        FULL,
        lambda path: _tcpkmon("export", path, "-o", path.with_suffix(".parquet"), "--force"),
    ),
    "tcpkmon decode": (KLOGGER, lambda path: _tcpkmon("decode", *sorted(path.iterdir()))),
    PERF_SCRIPT: (PERF, lambda path: ["perf", "script", "-i", str(path)]),
}
"""By case: of which file, and the command."""


def _tcpkmon(*words: object) -> list[str]:
    return [str(BIN / "tcpkmon"), *map(str, words)]


@dataclass(frozen=True)
class Pair:
    """A command on a file with next to nothing, and on one with `records` more."""

    few: list[str]
    many: list[str]
    records: int


def measure(session: Session) -> None:
    """All commands, one after the other, in each round."""
    commands = _commands(session)
    for _ in session.each_round(NAME):
        for case, command in commands.items():
            _read(session, case, command)


def _read(session: Session, case: str, command: Pair) -> None:
    """The start: the time for the nearly empty file. A record: the difference, divided."""
    start, whole = timed(command.few), timed(command.many)
    records = max(1, command.records)
    add = session.results.add
    add(NAME, WALL, case, 1e9 * max(0.0, whole[0] - start[0]) / records)
    add(NAME, CPU, case, 1e9 * max(0.0, whole[1] - start[1]) / records)
    add(NAME, START, case, 1e3 * start[0])
    add(NAME, RECORDS, case, records)


def timed(argv: Sequence[str]) -> tuple[float, float]:
    """Runs it without output; its wall and CPU seconds. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    quiet = subprocess.DEVNULL
    subprocess.run(list(argv), stdin=quiet, stdout=quiet, stderr=quiet, check=True)
    wall_s = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _commands(session: Session) -> dict[str, Pair]:
    """The commands by case; those that fail here are skipped."""
    made = _samples(session)
    found = {}
    for case, (sample, argv) in COMMANDS.items():
        if sample not in made:
            continue
        (few, empty), (many, records) = made[sample]
        command = Pair(argv(few), argv(many), records - empty)
        done = subprocess.run(
            command.few, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            session.results.skip(NAME, case, said[0])
            continue
        found[case] = command
    return found


Sample = tuple[Path, int]
"""A file (or a folder), and its records."""


def _samples(session: Session) -> dict[str, tuple[Sample, Sample]]:
    """By name a file with next to nothing, and one with much, of the same traffic each."""
    session.say("one file of each tool, of the same traffic")
    found = {}
    with session.lab() as (_, load):
        load.pin(*cpus())
        full = ("--columns", "full")
        wanted = (
            tools.collect(FULL, *full),
            tools.collect(KLOGGER, "--format", "klogger", *full),
            tools.perf(PERF, "tcp:tcp_probe"),
        )
        for number, tool in enumerate(tools.usable(session, NAME, wanted)):
            with tools.tolerating(session, NAME, tool):
                few = _record(session, load, tool, 0, f"few{number}")
                # Ours are read faster: more records, so that a run takes long enough.
                times = 2 if tool.name == FULL else 1
                found[tool.name] = few, _record(session, load, tool, times, f"many{number}")
    return found


def _record(session: Session, load: Load, tool: Tool, times: int, name: str) -> Sample:
    """One file of so many times the traffic."""
    seconds = times * session.pick(0.6, 0.15)
    with tool.running(session.folder) as it:
        for order in ("pingpong 64", "churn", "bulk") if times else ():
            load.run(f"{order} {seconds}")
        outcome = it.end()
        path = it.file.rename(session.folder / name)
    return path, outcome.records


def faster_than_perf(results: Results, case: str) -> float | None:
    """How many times as many records a second as perf script reads."""
    ours, perf = (results.median(NAME, WALL, one) for one in (case, PERF_SCRIPT))
    return perf / ours if ours and perf else None
