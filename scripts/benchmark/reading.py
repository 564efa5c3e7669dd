# SPDX-License-Identifier: Apache-2.0
"""How fast files are read, printed and exported, beside perf script and tcpdump -r."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark import samples
from scripts.experiments.context import BIN, Context

NAME = "reading"
TITLE = "Reading, text and export"
WALL = "wall ns"
CPU = "CPU ns"
START = "start ms"
RECORDS = "records"
READ = "read every column"
LIKE = "pmgraph -T, tcp_probe's columns"
TEXT = "pmgraph -T, every column"
VERIFY = "tcpkmon verify"
DECODE = "tcpkmon decode"
PARQUET = "tcpkmon export, Parquet"
ARROW = "tcpkmon export, Arrow"
CSV = "tcpkmon export, CSV"
JSON = "tcpkmon export, JSON lines"
PERF_SCRIPT = "perf script"
TCPDUMP_READ = "tcpdump -r"
CASES = (READ, LIKE, TEXT, VERIFY, PARQUET, ARROW, CSV, JSON, DECODE, PERF_SCRIPT, TCPDUMP_READ)
TCP_PROBE = (
    "comm", "pid", "cpu", "location", "family", "laddr", "raddr", "seg_len", "snd_nxt", "snd_una",
    "snd_cwnd_segs", "snd_ssthresh", "snd_wnd", "srtt_us", "rcv_wnd", "conn_id",
)  # fmt: skip
"""The columns that perf script prints of tcp_probe; -T always prints the time and the ports."""
READER = """
import sys, tcpkmon
with tcpkmon.open(sys.argv[1]) as capture:
    for rows in capture.chunks(8192):
        capture.columns([c.name for c in capture.columns_by_name.values()], rows.start, rows.stop)
"""


@dataclass(frozen=True)
class Command:
    """A command on a file with few records, and on one with `records` more."""

    few: list[str]
    many: list[str]
    records: int


def measure(context: Context) -> None:
    """All commands, one after the other, in each round."""
    commands = _commands(context)
    for _ in context.each_round(NAME):
        for case, command in commands.items():
            _read(context, case, command)


def _read(context: Context, case: str, command: Command) -> None:
    """The start: the time for the nearly empty file. A record: the difference, divided."""
    start, whole = timed(command.few), timed(command.many)
    records = max(1, command.records)
    add = context.results.add
    add(NAME, WALL, case, 1e9 * max(0.0, whole[0] - start[0]) / records)
    add(NAME, CPU, case, 1e9 * max(0.0, whole[1] - start[1]) / records)
    add(NAME, START, case, 1e3 * start[0])
    add(NAME, RECORDS, case, records)


def timed(argv: Sequence[str]) -> tuple[float, float]:
    """Runs it without output; its wall and CPU seconds. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    subprocess.run(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wall_s = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _commands(context: Context) -> dict[str, Command]:
    """The commands by case; those that fail here are skipped."""
    made = samples.make(context, NAME)
    tcpkmon, pmgraph, python = (str(BIN / name) for name in ("tcpkmon", "pmgraph", "python"))

    def export(path: Path, form: str) -> list[str]:
        to = ["-o", str(context.folder / f"exported.{form}"), "--force"]
        is_text = form in {"csv", "json"}
        return [tcpkmon, "export", str(path), "--format", form, *([] if is_text else to)]

    candidates: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
        READ: (samples.FULL, lambda path: [python, "-I", "-c", READER, str(path)]),
        LIKE: (
            samples.FULL,
            lambda path: [pmgraph, str(path), "-T", "--show", ",".join(TCP_PROBE)],
        ),
        TEXT: (samples.FULL, lambda path: [pmgraph, str(path), "-T"]),
        VERIFY: (samples.FULL, lambda path: [tcpkmon, "verify", str(path)]),
        PARQUET: (samples.FULL, lambda path: export(path, "parquet")),
        ARROW: (samples.FULL, lambda path: export(path, "arrow")),
        CSV: (samples.FULL, lambda path: export(path, "csv")),
        JSON: (samples.FULL, lambda path: export(path, "json")),
        DECODE: (samples.KLOGGER, lambda path: [tcpkmon, "decode", *_files(path)]),
        PERF_SCRIPT: (samples.PERF, lambda path: ["perf", "script", "-i", str(path)]),
        TCPDUMP_READ: (samples.TCPDUMP, lambda path: ["tcpdump", "-n", "-r", str(path)]),
    }
    found = {}
    for case, (sample, argv) in candidates.items():
        if sample not in made:
            continue
        pair = made[sample]
        command = Command(
            argv(pair.few.path), argv(pair.many.path), pair.many.records - pair.few.records
        )
        done = subprocess.run(
            command.few, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            context.results.skip(NAME, case, said[0])
            continue
        found[case] = command
    return found


def _files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir())
