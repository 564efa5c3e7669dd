# SPDX-License-Identifier: Apache-2.0
"""translate: decimal words for awk, and the records of 1987, byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from tcpkmon.formats.commands.translate import command
from tcpkmon.formats.history import NO_USER
from tests.unit.log_files import LogBuilder

SCHEMA = """
event SCHEDIN { int pid }
event SCHEDOUT { int pid; int prio; ulonglong runtime }
event EXEC { int pid; int tgid; int old_pid; string16 comm; string6 filename }
event PAGEIN_END { int tid; int tgid; uint uid; ulonglong cpu_time; ulonglong page }
event USER_EVENT { int tgid; uint uid; int group; int type; string8 aux }
"""
REALTIME = (1_732_200_000, 0)  # of the builder's clock: seconds, microseconds


def write(tmp_path: Path, **header: str) -> Path:
    build = LogBuilder(schema=SCHEMA, **header)
    build.log("SCHEDOUT", 1_500_000_000, pid=1, prio=2, runtime=7)
    build.log("EXEC", 1_500_001_000, pid=9, tgid=9, old_pid=8, comm="sh", filename="/bin/s")
    build.log("PAGEIN_END", 2_000_000_000, tid=5, tgid=70_000, uid=1000, cpu_time=3_000_000,
              page=0x12345)  # fmt: skip
    build.log("USER_EVENT", 2_000_002_000, tgid=70, uid=1000, group=7, type=1, aux="login")
    build.end_dump().finish()
    (tmp_path / "log").mkdir()
    build.write(tmp_path / "log" / "kernlog.dump.cpu0")
    return tmp_path / "log"


def test_words(tmp_path: Path) -> None:
    """66048 is thread 1, priority 2. EXEC makes three records; text is four characters a word."""
    result = CliRunner().invoke(command, [str(write(tmp_path)), "--names"])
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines()
             if line.split()[0] in ("swtch", "exec", "PAGEIN_END", "USER_EVENT")]  # fmt: skip
    second = REALTIME[0]
    sh = int.from_bytes(b"sh\0\0", "big")
    path = " ".join(str(int.from_bytes(part, "big")) for part in (b"/bin", b"/s\0\0"))
    assert lines == [
        f"swtch {second + 1} 500000 66048 7",
        f"exec {second + 1} 500001 {9 << 16} 9 8",
        f"exec {second + 1} 500001 {9 << 16} {sh} 0 0 0",
        f"exec {second + 1} 500001 {9 << 16} {path}",
        f"PAGEIN_END {second + 2} 0 5 70000 1000 3000000 74565",
        f"USER_EVENT {second + 2} 2 70 1000 7 1 {int.from_bytes(b'logi', 'big')}"
        f" {int.from_bytes(b'n' + bytes(3), 'big')}",
    ]


@pytest.mark.parametrize("without", [False, True])
def test_the_collector_is_no_user_of_its_own(tmp_path: Path, without: bool) -> None:
    build = LogBuilder(schema=SCHEMA, settings={"collector_pids": [50, 51]})
    for tgid, uid in ((50, 63_945), (51, 63_945), (7, 1000)):
        build.log("PAGEIN_END", tgid=tgid, tid=tgid, uid=uid, page=tgid)
    (tmp_path / "log").mkdir()
    build.end_dump().finish().write(tmp_path / "log" / "kernlog.dump.cpu0")
    path, option = str(tmp_path / "log"), ["--without-collector"] * without
    out = tmp_path / "out"
    assert CliRunner().invoke(command, [path, *option, "--records-1987", str(out)]).exit_code == 0
    data = out.read_bytes()
    told = [head[2:4] for head, _ in old_records(data) if head[1] >> 8]
    assert told == [(0, 50), (0, 51)] * (not without) + [(1000, 7)]
    assert struct.unpack_from(">7h32s16s4h", data)[-2] == 2 - without  # nusers
    lines = CliRunner().invoke(command, [path, *option, "--names"]).output.splitlines()
    assert sum(line.startswith("PAGEIN_END ") for line in lines) == 3 - 2 * without


def test_cpu_time_between_ticks(tmp_path: Path) -> None:
    """The kernel adds up at switches: what a thread used since is in its records all the same. EXIT
    has the time of all threads of its process."""
    ms = 1_000_000
    build = LogBuilder(schema="""
        event SCHEDIN { int pid; int tgid; ulonglong runtime }
        event SCHEDOUT { int pid; int tgid; ulonglong runtime }
        event PAGEIN_END { int tid; int tgid; uint uid; ulonglong cpu_time; ulonglong page }
        event EXIT { int pid; int tgid; int group_dead; uint uid; ulonglong runtime }
    """)
    begin = 1_500_000_000
    build.log("SCHEDIN", begin, pid=6, tgid=5)
    build.log("EXIT", begin + 4 * ms, pid=6, tgid=5, group_dead=0)
    build.log("SCHEDOUT", begin + 5 * ms, pid=6, tgid=5, runtime=5 * ms)
    build.log("SCHEDIN", begin + 6 * ms, pid=5, tgid=5, runtime=20 * ms)
    build.log("PAGEIN_END", begin + 8 * ms, tid=5, tgid=5, cpu_time=20 * ms)
    build.log("EXIT", begin + 9 * ms, pid=5, tgid=5, group_dead=1, runtime=20 * ms)
    (tmp_path / "log").mkdir()
    build.end_dump().finish().write(tmp_path / "log" / "kernlog.dump.cpu0")
    out = tmp_path / "out"
    CliRunner().invoke(command, [str(tmp_path / "log"), "--records-1987", str(out)])
    told = {head[1]: head[4] for head, _ in old_records(out.read_bytes()) if head[1] >> 8}
    assert told == {3 << 8 | 1: 22, 6 << 8 | 1: 27}


def test_the_records_of_1987(tmp_path: Path) -> None:
    out = tmp_path / "monitor.out"
    result = CliRunner().invoke(command, [str(write(tmp_path)), "--records-1987", str(out)])
    assert result.exit_code == 0
    assert "the process did not fit into the record of 1987 in 1 records" in result.stderr
    data = out.read_bytes()
    month, day, year = struct.unpack_from(">3h", data)
    assert (month, day, year) == (11, 21, 2024)
    assert struct.unpack_from(">14x32s16s", data)[1].startswith(b"Linux 6.")  # the system's version
    records = old_records(data)
    buffers = [(head[3], aux) for head, aux in records if head[1] == 2]
    assert buffers == [(0, b"\0\0")] * 3  # of CPU 0, nothing is lost from any
    (fault, page), (mine, aux), (trailer, _) = [one for one in records if one[0][1] != 2]
    assert fault == (20, 3 << 8 | 1, 1000, 70_000 & 0xFFFF, 3, fault[5])
    assert page == struct.pack(">I", 0x12345)
    assert mine[1] == 7 << 8 | 1
    assert aux == b"login\0"
    assert trailer[1] == 1
    assert trailer[5] >= fault[5] > 1900


def old_records(data: bytes) -> list[tuple[tuple[int, ...], bytes]]:
    """The records behind the header: len, event_id, user_id, pid, cpu_time, real_time; auxinfo."""
    at, found = struct.calcsize(">7h32s16s4h"), []
    while at < len(data):
        head = struct.unpack_from(">4HII", data, at)
        found.append((head, data[at + 16 : at + head[0]]))
        at += head[0]
    return found


def test_processes_users_and_losses_of_1987(tmp_path: Path) -> None:
    """Threads are no forks, nobody is not root, and each buffer tells what is missing from it."""
    build = LogBuilder(schema="""
        enum child_kind { PROCESS, THREAD }
        event FORK { int tgid; int child_pid; child_kind kind; uint uid; ulonglong runtime }
        event EXIT { int tgid; int group_dead; uint uid; ulonglong runtime }
        event DISK_INSERT { int tgid; uint uid; ulonglong cpu_time; uint device }
        event PAGEOUT_END { int tgid }
    """)
    build.log("FORK", tgid=5, child_pid=6, kind=0, uid=1000, runtime=9_000_000)
    build.log("FORK", tgid=6, child_pid=7, kind=1, uid=1000)
    build.log("EXIT", tgid=6, group_dead=0, uid=1000)
    build.log("EXIT", tgid=6, group_dead=1, uid=1001, runtime=2_000_000)
    build.end_dump()
    build.lose("ring_full", 3, "DISK_INSERT").log("DISK_INSERT", uid=NO_USER)
    build.log("PAGEOUT_END").end_dump()
    (tmp_path / "log").mkdir()
    build.finish().write(tmp_path / "log" / "kernlog.dump.cpu0")
    out = tmp_path / "out"
    CliRunner().invoke(command, [str(tmp_path / "log"), "--records-1987", str(out)])
    users = struct.unpack_from(">7h32s16s4h", out.read_bytes())[-2]
    assert users == 2
    told = old_records(out.read_bytes())
    assert [head[1:5] for head, _ in told if head[1] >> 8] == [
        (6 << 8, 1000, 5, 9), (6 << 8 | 1, 1001, 6, 2), (5 << 8, 65535, 0, 0),
        (4 << 8 | 1, 65535, 0, 0),
    ]  # fmt: skip
    lost = [int.from_bytes(aux, "big") for head, aux in told if head[1] == 2]
    assert sum(lost) == 3 and lost[2] == 3
