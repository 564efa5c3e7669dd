# SPDX-License-Identifier: Apache-2.0
"""U3: the monitor's counts and shares beside those of the kernel."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from contextlib import ExitStack

from scripts.experiments.context import ROOT, Context
from scripts.host import counters
from scripts.host.checks import agree, bound, figures_of, note_unseen, tables_of
from scripts.host.monitor import monitoring
from tests.live.disk_workload import loop_device, read_blocks
from tests.live.file_workload import PAGE, make_cold
from tests.live.memory_workload import little_memory, outgrow
from tests.live.tty_workload import run_login

NAME = "U3"
TITLE = "U3: the monitor and the kernel's counters"
FORKS, QUICK_FORKS = 500, 100
READS, QUICK_READS = 2000, 500
PAGES = 400
LOGINS = 3
SPIN_S, QUICK_SPIN_S = 5.0, 1.0
QUIET_S = 0.3
BETWEEN = "Between two quiet moments, at which the counters did not change while they were read."


def measure(context: Context) -> None:
    context.say(f"{NAME}: forks, reads, page-ins, page-outs, logins, counted by the kernel too")
    with ExitStack() as stack:
        device = stack.enter_context(loop_device(context.folder))
        if device is None:
            context.results.skip(NAME, "all", "this machine makes no loop device")
            return
        try:
            procs = stack.enter_context(little_memory())
        except OSError as error:
            procs = None
            context.results.skip(NAME, "page-outs", str(error))
        cold = make_cold(context.folder / "cold", PAGES)
        stack.callback(os.close, cold)
        note_unseen(context.results, NAME)
        with monitoring(context.folder, keep=True):
            time.sleep(QUIET_S)
            before = counters.read(device)
            for _ in range(int(context.pick(FORKS, QUICK_FORKS))):
                os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
            reads = int(context.pick(READS, QUICK_READS))
            subprocess.run(read_blocks(device.path, 4, reads // 4), cwd=ROOT, check=True)
            touch(cold)
            if procs is not None:
                subprocess.run(outgrow(procs), cwd=ROOT, check=True, capture_output=True)
            logged_in = sum(run_login() for _ in range(LOGINS))
            spin(context.pick(SPIN_S, QUICK_SPIN_S))
            time.sleep(QUIET_S)
            after = counters.read(device)
            time.sleep(QUIET_S)
    found = counters.find(context.folder / "monitor.out", device, before, after)
    results = context.results
    agree(results, NAME, "FORK: processes of /proc/stat", found.forks,
          after.processes - before.processes)  # fmt: skip
    disk = [b - a for a, b in zip(before.disk, after.disk, strict=True)]
    agree(results, NAME, "disk requests: /proc/diskstats", found.reads, disk[0] + disk[4])
    agree(results, NAME, "their bytes: /proc/diskstats", found.bytes, 512 * (disk[2] + disk[6]))
    seconds = (after.time_ns - before.time_ns) / 1e9
    agree(results, NAME, "disk utilization, %: io_ticks, within 2 points", 100 * found.disk,
          disk[9] / 10 / seconds, 2)  # fmt: skip
    agree(results, NAME, "page-ins with I/O: pgmajfault", found.major_faults,
          after.major_faults - before.major_faults)  # fmt: skip
    bound(results, NAME, "these page-ins are some", found.major_faults, least=PAGES // 2)
    if procs is not None:
        agree(results, NAME, "pages of page-outs: pswpout", found.swapped_out,
              after.swapped_out - before.swapped_out)  # fmt: skip
    busy, ticks = (b - a for a, b in zip(before.cpu, after.cpu, strict=True))
    agree(results, NAME, "CPU utilization, %: /proc/stat, within 1 point", 100 * found.cpu,
          100 * busy / max(1, ticks), 1)  # fmt: skip
    if logged_in:
        agree(results, NAME, "logins: runs of login", found.logins, logged_in)
    else:
        results.skip(NAME, "logins", "login makes no session here")


def touch(cold: int) -> None:
    """Every second page of a cold file, without read-ahead."""
    with mmap.mmap(cold, PAGES * PAGE) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        for page in range(0, PAGES, 2):
            memory[page * PAGE]


def spin(seconds: float) -> None:
    """A CPU is busy."""
    code = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\n"
    code += "while time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-I", "-c", code, str(seconds)], check=True)


figures, tables = figures_of(NAME, '"very accurate"'), tables_of(NAME, BETWEEN)
