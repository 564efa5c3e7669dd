# SPDX-License-Identifier: Apache-2.0
"""H1: each system call of some threads, and its exit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from scripts.experiments.context import Context
from scripts.experiments.tools import IN_TRACEFS
from scripts.host.checks import agree, figures_of, tables_of
from scripts.host.monitor import recording
from tcpkmon.formats.analysis import match_calls, open_log

NAME = "H1"
TITLE = "H1: system calls"
THREADS, CALLS, QUICK_CALLS = 4, 25_000, 2_500
PROGRAM = """
import os, sys, threading
def run():
    for _ in range(int(sys.argv[1])): os.getppid()
threads = [threading.Thread(target=run) for _ in range(int(sys.argv[2]))]
for one in threads: one.start()
for one in threads: one.join()
"""


def measure(context: Context) -> None:
    context.say(f"{NAME}: getppid by {THREADS} threads")
    calls = int(context.pick(CALLS, QUICK_CALLS))
    program = [sys.executable, "-I", "-c", PROGRAM, str(calls), str(THREADS)]
    told = context.folder / "perf"
    watched = "perf" not in context.missing
    perf = [*IN_TRACEFS, "perf", "stat", "-x,", "-o", str(told), "-e", "syscalls:sys_enter_getppid"]
    with recording(context.folder, "syscall", options=["--syscalls", "getppid,exit_group"]) as log:
        process = subprocess.Popen([*(perf if watched else []), *program])
        if process.wait():
            raise ValueError("the program with system calls failed")
    with open_log(log) as events:
        starts, exits = Counter[int](), Counter[int]()
        for event in events.choose("SYSCALL_START", "SYSCALL_EXIT", where=["number=getppid"]):
            (starts if event.type == "SYSCALL_START" else exits)[event["tid"]] += 1
        matched = match_calls(events)
        pairs = Counter(matched.pairs.keys[0].tolist())
    busy = [tid for tid, count in starts.items() if count >= calls // 2]
    results = context.results
    agree(results, NAME, "threads with calls", len(busy), THREADS)
    for at, tid in enumerate(sorted(busy), 1):
        agree(results, NAME, f"thread {at}: starts", starts[tid], calls)
        agree(results, NAME, f"thread {at}: exits", exits[tid], calls)
        agree(results, NAME, f"thread {at}: pairs", pairs[tid], calls)
    if watched:
        count = int(told.read_text().splitlines()[-1].split(",")[0])
        agree(results, NAME, "calls of the program, perf stat", sum(starts[t] for t in busy), count)
    agree(results, NAME, "exit_group without an exit, of as many starts",
          matched.without_exit.get("exit_group", 0), _count(log, "exit_group"))  # fmt: skip


def _count(log: object, call: str) -> int:
    with open_log(str(log)) as events:
        return sum(1 for _ in events.choose("SYSCALL_START", where=[f"number={call}"]))


figures, tables = figures_of(NAME), tables_of(NAME)
