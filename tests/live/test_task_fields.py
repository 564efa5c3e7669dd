# SPDX-License-Identifier: Apache-2.0
"""The group of fields `task` in a user's schema: logged is what a thread says of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full import first
from tests.live.schema_logs import logging

CONF = """
fields ended { int group_dead }
event ENDED { fields task; fields ended }
event DONE { fields task }
"""
TEXT = """#include "klogger.h"
#include "klogger_task.h"

BPF_HASH(kept, u32, struct klogger_task);

PROBE(ended, "ENDED DONE", "btf:sched_process_exit raw:sched_process_exit")
{
    struct klogger_task task = klogger_current_task(), *found;
    u32 zero = 0;

    klogger(ENDED, KLOGGER_TASK(task), (u8)ARG(1));
    kept.update(&zero, &task);
    found = kept.lookup(&zero);
    klogger(DONE, KLOGGER_TASK(found ? *found : KLOGGER_NO_TASK));
}
"""
# Tells what each of its threads is, and the CPU time when it had nothing left to do.
TELLER = """
import json, os, threading
os.setresuid(12345, 0, 0)
with open("/proc/self/cgroup") as file:
    path = next(line for line in file if line.startswith("0::"))[3:].strip()
cgroup = os.stat(f"/sys/fs/cgroup{path}").st_ino
told = []

def tell():
    sum(range(1000000))
    with open("/proc/thread-self/schedstat") as file:
        used = int(file.read().split()[0])
    told.append([threading.get_native_id(), os.getpid(), os.getuid(), cgroup, used])

thread = threading.Thread(target=tell)
thread.start(), thread.join(), tell()
print(json.dumps(told), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kinds", first(1, ["btf", "raw"]))
def test_the_current_task(tmp_path: Path, kinds: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    for name, text in (("mine.conf", CONF), ("mine.bpf.c", TEXT)):
        (mine / name).write_text(text)
        os.chmod(mine / name, 0o644)
    with logging(tmp_path / "log", str(mine), kinds=kinds) as running:
        done = subprocess.run([sys.executable, "-c", TELLER], capture_output=True, check=True)
    log = running.finish()
    for number, (tid, tgid, uid, cgroup, used) in enumerate(json.loads(done.stdout)):
        found = log.one("ENDED", tid=tid)
        assert (found["tgid"], found["uid"], found["cgroup"]) == (tgid, 12345, cgroup)
        assert uid == 12345 and found["group_dead"] == number
        assert used <= found["cpu_time"] < used + 1e9
        kept = log.one("DONE", tid=tid)
        assert {**kept, "event": "", "time_ns": 0} == {
            **{name: found[name] for name in kept}, "event": "", "time_ns": 0,
        }  # fmt: skip
