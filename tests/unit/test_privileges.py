# SPDX-License-Identifier: Apache-2.0
"""Privileges: given up for good, in a process of the test's own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from collector.linux.privileges import KEPT, needed_capabilities

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from collector.linux.privileges import *; import os\n" + code],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_capabilities_are_dropped_for_good() -> None:
    out = run(
        "before = capability_sets()\n"
        "drop_capabilities(['CAP_PERFMON', 'CAP_SYS_NICE'])\n"
        "wanted = 1 << 38 | 1 << 23\n"
        "effective, permitted, inheritable = capability_sets()\n"
        "assert effective == permitted == before[1] & wanted, (effective, permitted)\n"
        "assert inheritable == 0\n"
        "drop_capabilities([])\n"
        "drop_capabilities(['CAP_PERFMON'])\n"
        "print(capability_sets())\n"
        "print(open('/proc/self/status').read())\n"
    )
    assert out.startswith("(0, 0, 0)\n")
    if os.geteuid() == 0 and "CapBnd:\t000001ffffffffff" in Path("/proc/self/status").read_text():
        assert "CapBnd:\t0000000000000000" in out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_without_capabilities_may_not_do_what_root_may() -> None:
    out = run(
        "drop_capabilities([])\n"
        "try:\n"
        "    os.chroot('/')\n"
        "    print('allowed')\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    assert out == "refused\n"


def test_new_privileges_are_forbidden() -> None:
    out = run("forbid_new_privileges()\nprint(open('/proc/self/status').read())\n")
    assert "NoNewPrivs:\t1" in out


def test_limits_are_raised_to_what_is_allowed() -> None:
    out = run(
        "import resource\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "raise_limits()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "print(*resource.getrlimit(resource.RLIMIT_MEMLOCK))\n"
    )
    files, memory = (tuple(map(int, line.split())) for line in out.splitlines())
    hard = files[1]
    assert files[0] == (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))
    assert memory[0] == memory[1]


def test_scheduling_is_the_threads_own_and_not_inherited() -> None:
    out = run(
        "first = run_first()\n"
        "policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK\n"
        "assert (policy == os.SCHED_FIFO) == first\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(os.sched_getscheduler(0))\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(first)\n"
    )
    assert out.split() in (["True"], ["False"])


def test_kernels_that_open_perf_events_for_administrators_only(tmp_path: Path) -> None:
    paranoid = tmp_path / "perf_event_paranoid"
    assert needed_capabilities(paranoid) == KEPT
    for level, wanted in (("-1", KEPT), ("2", KEPT), ("3", (*KEPT, "CAP_SYS_ADMIN"))):
        paranoid.write_text(f"{level}\n")
        assert needed_capabilities(paranoid) == wanted


ENTRIES = (
    "collector.commands.collect",
    "collector.commands.tcpkmon",
    "collector.session.session",
    "collector.klogger",
    "collector.loader.sock_diag",
)


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_library_starts_a_thread_and_the_environment_stays(entry: str) -> None:
    code = f"import os\nbefore = dict(os.environ)\nimport {entry}\nimport numpy.linalg\n"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", code + "assert before == dict(os.environ)\n"
         "print(len(os.listdir('/proc/self/task')))\n"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n"


THREAD = """
import threading, time
def settle():
    time.sleep(0.2)
    if {settles}:
        forbid_new_privileges()
        drop_capabilities(())
    time.sleep(60)
def start():
    threading.Thread(target=settle, daemon=True).start()
"""
GIVE_UP = "forbid_new_privileges()\ndrop_capabilities(['CAP_PERFMON'])\n"
CHECK = """
try:
    check_threads(['CAP_PERFMON'], {wait})
    print('good')
except PrivilegeError as error:
    print(error.message)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_thread_that_kept_its_privileges_is_refused() -> None:
    before, after = "start()\n" + GIVE_UP, GIVE_UP + "start()\n"
    keeps, settles = THREAD.format(settles=False), THREAD.format(settles=True)
    assert run(keeps + after + CHECK.format(wait=0.1)) == "good\n"
    assert run(settles + before + CHECK.format(wait=60)) == "good\n"
    out = run(keeps + before + CHECK.format(wait=0.5))
    assert "kept privileges" in out and "CAP_DAC_OVERRIDE" in out and "it may gain" in out
    assert "CAP_PERFMON" not in out
