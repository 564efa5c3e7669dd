# SPDX-License-Identifier: Apache-2.0
"""Privileges: given up for good, in a process of the test's own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector.linux.confinement import landlock_version
from tcpkmon.collector.linux.privileges import KEPT, find_user, needed_capabilities

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c",
         "from tcpkmon.collector.linux.privileges import *; import os\n" + code],
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


def test_no_library_starts_a_thread_and_the_environment_stays() -> None:
    code = (
        "import os\nbefore = dict(os.environ)\n"
        "from tcpkmon.collector.commands.collect import import_quietly\nimport_quietly()\n"
        "import tcpkmon.collector.loader.sock_diag, numpy.linalg\n"
        "assert before == dict(os.environ)\nprint(len(os.listdir('/proc/self/task')))\n"
    )
    for value in ({}, {"OPENBLAS_NUM_THREADS": "4", "OMP_NUM_THREADS": "3"}):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=os.environ | value,
            capture_output=True, text=True, timeout=120, check=True,
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
    check_threads(['CAP_PERFMON'], wait_s={wait})
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


CONFINED = """
import socket, subprocess, sys, threading
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.syscalls import system_call
folder = os.open(sys.argv[1], os.O_PATH)
user = find_user()
os.chown(sys.argv[1], user.uid, user.gid)
opened = open("/etc/passwd")
program = bpf.prog_load(17, bpf.RETURN_ZERO, "x", 0, 0)
kept = ["CAP_BPF", "CAP_PERFMON"]
settle(kept, user, [folder])
check_threads(kept, user)
def attempt(name, call):
    try:
        call()
        print(name, "allowed")
    except (OSError, Exception) as error:
        print(name, "refused")
attempt("root's file", lambda: open("/etc/passwd", "a"))
attempt("another folder", lambda: open("/tmp/tcpkmon-confined", "w"))
attempt("its folder", lambda: open(sys.argv[1] + "/file", "w"))
attempt("fork", os.fork)
attempt("program", lambda: subprocess.run(["true"]))
attempt("exec", lambda: os.execv("/bin/true", ["true"]))
attempt("socket", socket.socket)
attempt("root", lambda: os.setresuid(0, 0, 0))
attempt("signal", lambda: os.kill(1, 0))
attempt("mount", lambda: system_call(165, None, None, None, 0, None))
attempt("map", lambda: bpf.map_create(bpf.BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0, "x"))
attempt("attach", lambda: bpf.raw_tracepoint_open("inet_sock_set_state", program))
attempt("BPF program", lambda: bpf.prog_load(17, bpf.RETURN_ZERO, "x", 0, 0))
attempt("thread", lambda: threading.Thread(target=int).start())
attempt("open file", opened.read)
attempt("reading", lambda: open("/proc/stat").read())
print(os.getresuid() == (user.uid,) * 3, os.getresgid() == (user.gid,) * 3, os.getgroups())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_a_settled_thread_may_still_do(tmp_path: Path) -> None:
    for above in (tmp_path, *tmp_path.parents):
        if above.owner() == "root" and not above.stat().st_mode & 0o001:
            above.chmod(0o755)
    code = f"import sys; sys.argv.append({str(tmp_path)!r})\n{CONFINED}"
    told = [line for line in run(code).splitlines() if line]
    refused = {line.rsplit(" ", 1)[0] for line in told if line.endswith("refused")}
    allowed = {line.rsplit(" ", 1)[0] for line in told if line.endswith("allowed")}
    assert allowed == {"its folder", "map", "attach", "thread", "open file", "reading"} | (
        set() if landlock_version() else {"another folder"}
    )
    assert refused >= {"root's file", "fork", "program", "exec", "socket", "root", "signal",
                       "mount", "BPF program"}  # fmt: skip
    assert told[-1] == "True True []"


def test_a_user_is_one_that_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        assert find_user() is None
        return
    found = find_user()
    assert found is not None and found.uid != 0
    code = f"import os; os.setuid({found.uid}); print('', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    other = find_user()
    holder.communicate(b"\n")
    assert other is not None and other.uid not in {0, found.uid}
