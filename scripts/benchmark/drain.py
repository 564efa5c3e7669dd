# SPDX-License-Identifier: Apache-2.0
"""Section 5: the way from the ring to the file alone, and how fast files are read again."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.clocks import Clocks
from collector.filters import parse
from collector.kernel import Kernel
from collector.preparing import Wish, prepare
from collector.privilege import raise_limits
from collector.records import Batch, row_bytes
from collector.rings import Rings, pages_of
from collector.sequencer import Sequencer
from collector.sinks import FileSink
from collector.writer import Writer, Written
from scripts.benchmark import samples
from scripts.benchmark.context import ROOT, BenchError, Context, cpus

NAME = "drain"
TITLE = "Drain and reading"
COLUMNS = ("classic", "default", "all")
STEPS = ("order", "write")
READ = "read every column"
PMGRAPH = "pmgraph -T"
VERIFY = "tcpkmon verify"
DECODE = "tcpkmon decode"
EXPORT = "tcpkmon export"
PERF_SCRIPT = "perf script"
TCPDUMP_READ = "tcpdump -r"
RING_BYTES = 128 << 20
PIECE_BYTES = 1 << 20
"""What one wake-up finds in a ring of 4 MiB at the default low-water mark."""
READER = """
import sys, formats
with formats.open(sys.argv[1]) as capture:
    for rows in capture.chunks(8192):
        capture.columns([c.name for c in capture.columns_by_name.values()], rows.start, rows.stop)
"""


@dataclass(frozen=True)
class Command:
    """A command on a file with few records, and on one with so many more."""

    few: list[str]
    many: list[str]
    records: int


def measure(context: Context) -> None:
    """Records real rings once, then replays them; reads one file of each tool."""
    raise_limits()
    recorded = {columns: record(context, columns) for columns in COLUMNS}
    commands = _commands(context)
    for number in range(context.rounds):
        context.say(f"{NAME}: round {number + 1} of {context.rounds}")
        for columns, (dtype, raw) in recorded.items():
            for step, seconds in replay(dtype, raw, context.folder / "replayed").items():
                per_record = seconds / (len(raw) // row_bytes(dtype.itemsize))
                context.results.add(NAME, f"drain, {step}", columns, 1e9 * per_record)
            (context.folder / "replayed").unlink()
        for case, command in commands.items():
            _read(context, case, command)


def _read(context: Context, case: str, command: Command) -> None:
    """The start is what the command takes for next to nothing; a record, what more takes more."""
    start, whole = timed(command.few), timed(command.many)
    records = max(1, command.records)
    add = context.results.add
    add(NAME, "read, wall ns", case, 1e9 * max(0.0, whole[0] - start[0]) / records)
    add(NAME, "read, CPU ns", case, 1e9 * max(0.0, whole[1] - start[1]) / records)
    add(NAME, "read, start ms", case, 1e3 * start[0])
    add(NAME, "read, records", case, records)


def record(context: Context, columns: str) -> tuple[np.dtype[Any], NDArray[np.uint8]]:
    """The rows that stand in a ring after a flood."""
    seconds = context.pick(0.3, 0.1)
    prepared = prepare(Wish(columns=columns, locations="RECEIVE_CALL", existing=False))
    with context.lab() as (_, load), Kernel(prepared, parse()) as kernel:
        load.pin(cpus()[1], cpus()[1])
        pages = pages_of(RING_BYTES)
        with Rings(kernel.loaded.maps, prepared.dtype, pages, RING_BYTES // 2) as rings:
            kernel.loaded.attach()
            kernel.switch(prepared.numbers, True)
            load.run(f"receive {seconds} 0")
            kernel.loaded.detach()
            entries = max((batch.entries for batch in rings.drain()), key=len)
            if not len(entries):
                raise BenchError("the flood left nothing in the rings")
            rows = np.zeros((len(entries), row_bytes(prepared.dtype.itemsize)), np.uint8)
            whole = np.ascontiguousarray(entries).view(np.uint8)
            rows[:, : prepared.dtype.itemsize] = whole.reshape(len(entries), -1)
    return prepared.dtype, rows.reshape(-1)


def replay(dtype: np.dtype[Any], raw: NDArray[np.uint8], path: Path) -> dict[str, float]:
    """CPU seconds by step; order is with the copy out of the ring."""
    clocks = Clocks()
    sequencer = Sequencer(dtype, clocks.to_epoch)
    writer = Writer(
        FileSink(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), dtype.itemsize),
        dtype,
        clocks.to_epoch,
        Written(),
    )
    spent = dict.fromkeys(STEPS, 0.0)
    row = row_bytes(dtype.itemsize)
    for start in range(0, len(raw), PIECE_BYTES // row * row):
        piece = raw[start : start + PIECE_BYTES // row * row]
        entries: NDArray[Any] = np.ndarray((len(piece) // row,), dtype, piece.data, 0, (row,))
        times = [time.process_time()]
        sequencer.push(Batch(0, entries, 0))
        ordered = sequencer.release(int(time.monotonic_ns()))
        sequencer.settle()
        times.append(time.process_time())
        writer.write(ordered)
        times.append(time.process_time())
        for name, begin, end in zip(STEPS, times, times[1:], strict=False):
            spent[name] += end - begin
    writer.close()
    return spent


def timed(argv: Sequence[str]) -> tuple[float, float]:
    """Runs it, its output thrown away; its wall and CPU seconds. Raises CalledProcessError."""
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
    """By case; those that do not work here are skipped."""
    made = samples.make(context, NAME)
    bins = ROOT / ".venv" / "bin"
    tcpkmon = str(bins / "tcpkmon")
    target = str(context.folder / "exported.parquet")
    candidates: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
        READ: (samples.DEFAULT, lambda path: [str(bins / "python"), "-c", READER, str(path)]),
        PMGRAPH: (samples.DEFAULT, lambda path: [str(bins / "pmgraph"), str(path), "-T"]),
        VERIFY: (samples.DEFAULT, lambda path: [tcpkmon, "verify", str(path)]),
        EXPORT: (
            samples.DEFAULT,
            lambda path: [tcpkmon, "export", str(path), "-o", target, "--force"],
        ),
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
