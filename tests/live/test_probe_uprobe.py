# SPDX-License-Identifier: Apache-2.0
"""Probes of kind uprobe and uretprobe: each call of a function counts once."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.uprobes import find_offset
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.formats.base.errors import KernelError
from tests.live.schema_logs import logging, make_schema

TIMES = 500
CONF = """
event CALLED { int pid; longlong first; longlong second; longlong sixth }
event RETURNED { int pid; longlong result }
"""
TEXT = """
#include "klogger.h"

PROBE(called, "CALLED", "uprobe:{file}:{symbol}")
{{
    klogger(CALLED, bpf_get_current_pid_tgid(), ARG(0), ARG(1), ARG(5));
}}
PROBE(returned, "RETURNED", "uretprobe:{file}:{symbol}")
{{
    klogger(RETURNED, bpf_get_current_pid_tgid(), ARG(0));
}}
"""
PROGRAM = """
#include <stdlib.h>
__attribute__((noinline)) long work(long a, long b, long c, long d, long e, long f)
{ __asm__ volatile(""); return a + b + c + d + e + f; }
int main(int argc, char **argv)
{ volatile long sum = 0;
  for (long n = 0; n < atol(argv[1]); n++) sum += work(n, 2 * n, 3, 4, 5, -n);
  return 0; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of ours with a function work()."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("program")
    (folder / "work.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O1", "-o", folder / "work", folder / "work.c"], check=True)
    for path in (folder, folder / "work"):
        path.chmod(0o755)
    if why := Probing(Btf.from_kernel()).why_not("uprobe", f"{folder / 'work'}:work"):
        pytest.skip(why)
    return folder / "work"


def test_each_call_counts(tmp_path: Path, program: Path) -> None:
    """With its arguments and its result, in processes that were there and that come."""
    folder = make_schema(tmp_path / "calls", CONF, TEXT.format(file=program, symbol="work"))
    with logging(tmp_path / "log", str(folder)) as running:
        started = [subprocess.Popen([program, str(TIMES)]) for _ in range(3)]
        assert [one.wait() for one in started] == [0, 0, 0]
        log = running.finish()
    assert len(log.of("CALLED")) == len(log.of("RETURNED")) == 3 * TIMES
    for one in started:
        called = log.of("CALLED", pid=one.pid)
        expected = [(n, 2 * n, -n) for n in range(TIMES)]
        assert [(c["first"], c["second"], c["sixth"]) for c in called] == expected
        returned = log.of("RETURNED", pid=one.pid)
        assert [r["result"] for r in returned] == [2 * n + 12 for n in range(TIMES)]
    assert log.ways == {"CALLED": f"uprobe:{program}:work", "RETURNED": f"uretprobe:{program}:work"}


def test_what_cannot_be_probed_has_a_reason(tmp_path: Path, program: Path) -> None:
    asked = Probing(Btf.from_kernel())
    assert "no functions nothing" in asked.why_not("uprobe", f"{program}:nothing")
    assert "No such file" in asked.why_not("uprobe", "/no/such/file:main")
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert "no whole ELF file" in asked.why_not("uprobe", f"{plain}:main")
    # What others can write may change under the probe.
    other = tmp_path / "other"
    shutil.copy(program, other)
    other.chmod(0o777)
    assert "may be written by others" in asked.why_not("uretprobe", f"{other}:work")


def test_a_damaged_file_is_refused(program: Path, tmp_path: Path) -> None:
    """Whatever its headers say, there is an offset within it or a KernelError."""
    whole = program.read_bytes()
    for at in range(0, 4096, 13):
        torn = bytearray(whole)
        torn[at % len(torn) : at % len(torn) + 4] = b"\xff\xff\xff\xff"
        file = tmp_path / "torn"
        file.write_bytes(torn if at % 2 else torn[: at * 4])
        with open(file, "rb") as stream, contextlib.suppress(KernelError):
            assert 0 <= find_offset(stream.fileno(), "work") < len(whole)
