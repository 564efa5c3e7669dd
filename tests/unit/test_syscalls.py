# SPDX-License-Identifier: Apache-2.0
"""The names of system calls: as the kernel's headers have them, --syscalls, and matched calls."""

from __future__ import annotations

import errno
import struct
import subprocess
from pathlib import Path

import pytest

from tcpkmon.collector.plan import filters, schema_sources
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.plan.syscall_choice import LEFT_OUT, NUMBERS, left_out, parse_syscalls
from tcpkmon.formats.analysis import match_calls, open_log
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.schema import load
from tests.unit.klogger_samples import LogMaker

ROOT = Path(__file__).resolve().parents[2]
SCHEMATA = ROOT / "bpf" / "schemata"
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
TEXT = """
enum syscall { getpid = 39, exit_group = 231, rt_sigreturn = 15 }
event SYSCALL_START { int tid; syscall number }
event SYSCALL_EXIT { int tid; syscall number }
"""


def test_errors_are_those_of_the_c_library() -> None:
    schema = load([SCHEMATA / "base.conf", SCHEMATA / "syscall.conf"])
    (errors,) = (enum.names() for enum in schema.enums if enum.name == "errno")
    for number, name in errno.errorcode.items():
        assert errors[-number] == name


@pytest.mark.skipif(not HEADER.exists(), reason="needs the kernel's headers")
def test_the_table_is_as_its_script_makes_it() -> None:
    assert subprocess.run([ROOT / "scripts" / "syscalls", "--check"], check=False).returncode == 0


def test_calls_are_chosen_by_name_and_number() -> None:
    assert parse_syscalls("read, write,451,read") == (0, 1, 451)
    for text in ("reed", "", "read,,write", "1023", "-1", "99999"):
        with pytest.raises(UsageError):
            parse_syscalls(text)
    with pytest.raises(UsageError, match="did you mean 'read'"):
        parse_syscalls("reed")


def test_arm64_has_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_sources, "ARM64", True)
    assert parse_syscalls("read,openat,futex_waitv") == (63, 56, 449)
    with pytest.raises(UsageError, match="no call is named 'open'"):
        parse_syscalls("open")
    schema = schema_sources.load_schema_of(schema_sources.find_sources(["syscall"]))
    (calls,) = (enum for enum in schema.enums if enum.name == "syscall")
    assert {member.name for member in calls.members} >= {"mmap", "clone3", "fstat"}
    assert any(enum.name == "errno" for enum in schema.enums)


def test_all_other_numbers_are_left_out() -> None:
    assert left_out(()) == []
    keys = {struct.unpack("=I", key)[0]: value for key, value in left_out((0, 39))}
    assert set(keys) == set(range(NUMBERS)) - {0, 39}
    assert set(keys.values()) == {struct.pack("=I", 1)}
    chosen = filters.parse(syscalls="getpid")
    assert len(chosen.entries()[LEFT_OUT]) == NUMBERS - 1
    assert (chosen.flags, chosen.describe()) == (0, {"syscalls": [39]})


def test_calls_need_their_schema() -> None:
    chosen = filters.parse(syscalls="getpid")
    with pytest.raises(UsageError, match="--schema syscall"):
        check_request(Request(filters=chosen, output="x"))
    check_request(Request(filters=chosen, output="x", schemata=("syscall",), file_format="klogger"))


def test_starts_and_exits_are_matched_by_thread(tmp_path: Path) -> None:
    maker = LogMaker(TEXT)
    for at, what, tid, number in (
        (1, "EXIT", 7, 39), (2, "START", 1, 39), (3, "START", 2, 39), (5, "EXIT", 2, 39),
        (6, "EXIT", 1, 39), (7, "START", 1, 15), (8, "EXIT", 1, -1), (9, "START", 2, 231),
    ):  # fmt: skip
        maker.add(f"SYSCALL_{what}", {"tid": tid, "number": number}, at=at)
    maker.write(tmp_path / "kernlog.dump.cpu0")
    with open_log(tmp_path) as log:
        calls = match_calls(log)
    assert list(zip(*(key.tolist() for key in calls.pairs.keys), strict=True)) == [(2, 39), (1, 39)]
    assert calls.pairs.durations_ns.tolist() == [2, 4]
    assert calls.without_exit == {"rt_sigreturn": 1, "exit_group": 1}
    assert calls.without_start == {"-1": 1, "getpid": 1}
    assert calls.by_name()["getpid"].total_ns == 6
