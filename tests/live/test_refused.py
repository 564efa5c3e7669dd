# SPDX-License-Identifier: Apache-2.0
"""What the kernel refuses a capture or a CPU reaches the user: kinds of rings, ring, counters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector.control.client import Client, Collector
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.formats.klogger.reader import LogReader
from tests.live.capturing import ROOT, capturing, wait_until
from tests.live.schema_logs import make_schema

CONF = "event LEFT { ulonglong faults }\narch any { counter1 page_faults; }\n"
TEXT = """#include "klogger.h"
PROBE(switched, "LEFT", "btf:sched_switch raw:sched_switch")
{ klogger(LEFT, klogger_get_page_faults_ll()); }
"""
# The last CPU comes online before the file begins, and gets no ring; CPU 0 gets no counters.
DRIVER = """
import errno, os, sys
from tcpkmon.collector.commands import collect
from tcpkmon.collector.loader import perf_counters
from tcpkmon.collector.ring import rings
from tcpkmon.collector.session import takeover

cpu = int(sys.argv.pop(1))
online, give = rings.online_cpus, rings.DEFAULT_TRANSPORT.ring

def refuse(number):
    raise OSError(number, os.strerror(number))

class Rings(rings.Rings):
    def __init__(self, *arguments):
        rings.online_cpus = lambda: online()[:-1]
        super().__init__(*arguments)
        rings.online_cpus = online
        self.refresh()
        perf_counters.online_cpus = lambda: ()
        perf_counters._open = lambda counter, number: refuse(errno.EMFILE)

rings.DEFAULT_TRANSPORT.ring = lambda maps, number, *rest: (
    refuse(errno.ENOMEM) if number == cpu else give(maps, number, *rest))
takeover.Rings = Rings
sys.argv[0] = "collect"
collect.main()
"""


def test_why_collect_did_not_start_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"collect did not start: .*no-such-space"),
        capturing(tmp_path / "a.pm", "--netns", "no-such-space"),
    ):
        pass


def errors_of(running: subprocess.Popen[str]) -> str:
    assert running.stderr is not None
    return running.stderr.read()


def test_what_is_refused_is_told(tmp_path: Path) -> None:
    folder = make_schema(tmp_path / "mine", CONF, TEXT)
    last = online_cpus()[-1]
    log = tmp_path / "log"
    running = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(last), "--schema", str(folder), "-o", str(log)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={"TCPKMON_RUN": str(tmp_path / "run"), "PATH": "/usr/bin:/usr/sbin:/bin"},
    )  # fmt: skip
    try:
        listening = tmp_path / "run" / f"{running.pid}.sock"
        wait_until(lambda: listening.exists() or running.poll() is not None)
        client = Client(Collector(running.pid, listening))
        told = wait_until(
            lambda: running.poll() is not None or "counters of CPU 0" in str(client.status())
        )
        assert told and running.poll() is None, errors_of(running)
        refused = client.status()["refused"]
        shown = subprocess.run(
            [sys.executable, "-c", "from tcpkmon.collector.commands.tcpkmon import main; main()",
             "status"],
            cwd=ROOT, env={"TCPKMON_RUN": str(tmp_path / "run")}, capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip
    finally:
        running.terminate()
        _, errors = running.communicate()
    ring, counters = f"ring of CPU {last}", "counters of CPU 0"
    assert refused.keys() == {ring, counters}
    assert f"opening the ring of CPU {last}" in refused[ring]
    assert "page_faults" in refused[counters]
    for what, why in refused.items():
        assert f"collect: {what}: {why}\n" in errors
        assert f"{what}: " in " ".join(shown.split())
    with LogReader(log / "kernlog.dump.cpu0") as reader:
        assert reader.header["settings"]["refused"] == {ring: refused[ring]}


# Asks for a type of map that no kernel has, as BPF's ring buffers are to Linux 5.7.
OLD_KERNEL = """
import sys
from tcpkmon.collector.linux import bpf

bpf.BPF_MAP_TYPE_RINGBUF = 10_000
sys.argv[0] = "collect"
from tcpkmon.collector.commands import collect
collect.main()
"""


def run_on_old_kernel(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OLD_KERNEL, "--schema", "stopwatch", *arguments, "--", "true"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_without_bpf_rings_the_default_is_perf_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run_on_old_kernel("-o", str(log))
    assert done.returncode == 0, done.stderr
    why = "collect: this kernel refuses bpf rings: making the BPF map klogger_ring"
    [told] = [line for line in done.stderr.splitlines() if line.startswith(why)]
    assert told.endswith("(EINVAL); the capture has perf rings")
    with LogReader(log / "kernlog.dump.cpu0") as reader:
        assert reader.header["settings"]["rings"] == "perf"


def test_rings_that_the_kernel_refuses_are_an_error_for_people(tmp_path: Path) -> None:
    done = run_on_old_kernel("-o", str(tmp_path / "log"), "--rings", "bpf")
    assert done.returncode == 4
    assert "refuses bpf rings" in done.stderr and "--rings" in done.stderr
    assert not (tmp_path / "log").exists()
