# SPDX-License-Identifier: Apache-2.0
"""The analysis of a sampler's log, on logs of known samples."""

from __future__ import annotations

import errno
import struct
import subprocess
from pathlib import Path

import pytest

from tcpkmon.collector.plan import filters, schema_sources
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.plan.syscall_choice import LEFT_OUT, NUMBERS, left_out, parse_syscalls
from tcpkmon.formats.analysis import collapse_stacks, count_samples, match_calls, open_log
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.condense import command as condense
from tcpkmon.formats.commands.flamegraph import command
from tcpkmon.formats.schema import load
from tests.unit.log_files import LogBuilder, LogMaker

CONF = """
enum cpu_state { USER, NICE, SYSTEM, IDLE }
enum stack_part { KERNEL, PROGRAM }
event SAMPLE { int pid; string16 comm; ulonglong pc; string40 symbol; cpu_state state; uint ticks;
               ulonglong period }
event SAMPLE_FRAME { stack_part part; uint depth; ulonglong address; string40 symbol }
event OTHER { int x }
"""
USER, NICE, SYSTEM, IDLE = range(4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two CPUs' logs; on CPU 0 stacks are recorded."""
    # The builder begins each log with states of these two.
    schema = f"{CONF} event SCHEDIN {{ int x }} event SCHEDOUT {{ int x }}"
    (tmp_path / "log").mkdir()
    first, second = (LogBuilder(cpu, schema=schema) for cpu in (0, 1))

    def sample(to: LogBuilder, at: int, **values: object) -> None:
        plain = {"pid": 1, "comm": "a b;c", "pc": 16, "symbol": "", "state": USER, "ticks": 1,
                 "period": 1000}  # fmt: skip
        to.log("SAMPLE", at, **{**plain, **values})

    for at in (1000, 5000):
        sample(first, at, state=SYSTEM, pc=1 << 63, symbol="inner")
        for part, depth, address, symbol in (
            (0, 0, 1 << 63, "inner"), (0, 1, (1 << 63) + 8, ""), (1, 0, 32, ""), (1, 1, 48, ""),
        ):  # fmt: skip
            first.log("SAMPLE_FRAME", at + 1, part=part, depth=depth, address=address,
                      symbol=symbol)  # fmt: skip
    sample(second, 1000, symbol="entry", state=NICE)
    sample(second, 1001, ticks=4)
    sample(second, 5001, state=IDLE, pid=-1, comm="swapper/1", period=2000)
    for cpu, build in enumerate((first, second)):
        build.end_dump().finish()
        build.write(tmp_path / "log" / f"kernlog.dump.cpu{cpu}")
    return tmp_path / "log"


def test_stacks_of_cpus_are_kept_apart(folder: Path) -> None:
    with open_log(folder) as log:
        assert collapse_stacks(log) == {
            "a_b_c;0x30;0x20;0x8000000000000008_[k];inner_[k]": 2,
            "a_b_c;entry_[k]": 1,
            "a_b_c;0x10": 1,
        }
        assert collapse_stacks(log, idle=True)["idle;0x10"] == 1


def test_time_is_counted_by_state(folder: Path) -> None:
    with open_log(folder) as log:
        found = count_samples(log)
    assert found.states == {"SYSTEM": 2, "NICE": 1, "USER": 1, "SKIPPED": 3, "IDLE": 1}
    assert found.time_ns["IDLE"] == 2000
    assert found.shares["SKIPPED"] == 3000 / 9000


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, [str(folder)], "tcpkmon") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a_b_c;entry_[k] 1"
    assert run(command, [str(folder), "--shares"], "tcpkmon") == 0
    assert "skipped\t33.33%\t3" in capsys.readouterr().out.splitlines()


def test_a_cut_log_is_unknown_and_a_damaged_one_damaged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = folder / "kernlog.dump.cpu0"
    data = log.read_bytes()
    log.write_bytes(data[: data.rindex(b"KLOGDUMP")])
    assert run(command, [str(folder)], "tcpkmon") == 3
    told = capsys.readouterr()
    assert run(condense, [str(folder)], "tcpkmon") == 3
    at = data.index(b"KLOGDUMP") + 80
    log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert run(command, [str(folder)], "tcpkmon") == 5
    assert run(condense, [str(folder)], "tcpkmon") == 5
    assert "tail unknown" in told.err


def test_a_log_without_samples(tmp_path: Path) -> None:
    build = LogBuilder()
    build.end_dump().finish()
    build.write(tmp_path / "kernlog.dump.cpu0")
    with open_log(tmp_path / "kernlog.dump.cpu0") as log, pytest.raises(UsageError, match="no sam"):
        collapse_stacks(log)


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
