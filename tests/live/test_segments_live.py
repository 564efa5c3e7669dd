# SPDX-License-Identifier: Apache-2.0
"""A capture in many files, of either format: every counted call is in one of them alone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.analysis.why import connections
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import verify_file
from tests.full import first
from tests.live.faults import TCPKMON, Collector, let_others_in, small_disk
from tests.unit.makers import LOCATION, LogMaker, Maker

PORT, CALLS = 20_000 + 2 * (os.getpid() % 5_000), 20_011
"""Tests run in several processes at once; outside of the ports that the kernel gives."""
TRAFFIC = f"""
import socket, threading, time
listener = socket.create_server(("127.0.0.1", {PORT}))
def serve():
    with listener.accept()[0] as end:
        while end.recv(1 << 16):
            pass
thread = threading.Thread(target=serve)
thread.start()
with socket.create_connection(("127.0.0.1", {PORT})) as client:
    for call in range({CALLS}):
        client.send(b"x")
        if not call % 1000:
            time.sleep(0.02)
thread.join()
"""


AS_NOBODY = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534"}


def collect(
    folder: Path, *options: str, code: int = 0, environment: dict[str, str] | None = None
) -> str:
    """Capture the calls of TRAFFIC; what collect prints."""
    command = [
        sys.executable, "-c", "from tcpkmon.collector.commands.collect import main; main()",
        "--ports", str(PORT), "--locations", "SEND_CALL,STATE_CHANGE", "-o", str(folder),
        *options, "--", "/usr/bin/python3", "-c", TRAFFIC,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env=environment)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("-C", "1", "-G", "1"), ("--format", "klogger", "--rotate-size", "200K", "-G", "1"),
    ],
)  # fmt: skip
def test_the_sum_of_all_segments_is_every_call(tmp_path: Path, options: tuple[str, ...]) -> None:
    folder, is_log = tmp_path / "out", "klogger" in options
    collect(folder, *options, environment=AS_NOBODY)
    segments = find_segments(folder)
    assert all(segment.sealed for segment in segments)
    assert {segment.suffix for segment in segments} == {".klog" if is_log else ".pm"}
    assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
    assert len(segments) > 2
    assert {path.stat().st_uid for path in folder.rglob("*")} == {65534}
    last_seq = 0
    for segment in segments:
        *_, report = format_of(segment.path(folder)).verify(segment.path(folder))
        assert not report.problems and report.exit_code == 0, report.problems
        if not is_log:
            with open_capture(segment.path(folder)) as capture:
                assert int(capture.seq(0, 1)[0]) == last_seq + 1
                last_seq = int(capture.seq()[-1])
    *parts, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0 and len(parts) == len(segments), chain.problems
    assert sum(row.in_file for row in chain.rows if row.name == "SEND_CALL") == CALLS
    if is_log:
        with open_log(folder) as log:
            sent = sum(1 for event in log.choose("SNAPSHOT", where=["location=SEND_CALL"]))
            assert not log.problems
        assert sent == CALLS


def test_the_caller_runs_the_command_and_old_files_go(tmp_path: Path) -> None:
    folder, seen = tmp_path / "out", tmp_path / "seen"
    let_others_in(tmp_path)
    seen.touch()
    os.chown(seen, 65534, 65534)
    code = f"import os, sys; print(os.getuid(), sys.argv[1], file=open({str(seen)!r}, 'a'))"
    command = shlex.join(["/usr/bin/python3", "-c", code])
    options = ("--rotate-size", "600K", "-W", "2", "--on-rotate", command)
    collect(folder, *options, environment=AS_NOBODY)
    lines = [line.split() for line in seen.read_text().splitlines()]
    assert len(lines) > 2 and {uid for uid, _ in lines} == {"65534"}
    segments = find_segments(folder)
    assert [str(one.path(folder)) for one in segments] == [path for _, path in lines[-2:]]
    assert {one.path(folder).stat().st_uid for one in segments} == {65534}
    *parts, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0 and len(parts) == 2, chain.problems
    deleted = f"{len(lines) - 2} segment(s) were deleted"
    assert any(deleted in note for note in chain.notes), chain.notes


@pytest.mark.parametrize("options", first(1, [(), (("--format", "klogger"),)]))
def test_a_full_disk_loses_records_and_the_capture_goes_on(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Without room the rings are drained; what is lost is counted, and the chain adds up."""
    with small_disk(tmp_path / "disk", "3m") as disk:
        assert "disk full" in collect(disk / "out", *options, "--rotate-size", "600K", code=3)
        *parts, chain = format_of(disk / "out").verify(disk / "out")
    assert not chain.problems and chain.exit_code == 3, chain.problems
    assert chain.proven_end and chain.totals.lost["disk full"] > 0
    sent = sum(row.attempts - row.filtered for row in chain.rows if row.name == "SEND_CALL")
    assert sent == CALLS and len(parts) > 1


def test_a_full_disk_is_made_free_by_retention(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        collect(disk / "out", "--rotate-size", "300K", "--keep-size", "2M")
        *_, chain = format_of(disk / "out").verify(disk / "out")
        size = sum(path.stat().st_size for path in (disk / "out").glob("*.pm"))
    assert not chain.problems and chain.exit_code == 0, chain.problems
    assert size <= 2 << 20 and any("were deleted" in note for note in chain.notes)


def test_files_of_the_caller_are_archived(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "out"
    told = collect(
        folder, "--rotate-size", "600K", "--archive", "zst", "--columns", "full",
        environment=AS_NOBODY,
    )  # fmt: skip
    assert "not archived" not in told
    segments = find_segments(folder)
    assert {one.archived for one in segments} == {".zst"}
    found = {os.stat(one.path(folder)) for one in segments}
    assert {(one.st_uid, one.st_mode & 0o777) for one in found} == {(65534, 0o640)}
    *_, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0, chain.problems
    assert sum(row.in_file for row in chain.rows if row.name == "SEND_CALL") == CALLS


@pytest.mark.parametrize(
    ("make_writer", "own", "frees_kb"),
    [
        (Maker, ("location", LOCATION), range(0, 400, 8)),
        (LogMaker, ("name", "PING"), range(0, 640, 64)),
    ],
    ids=["psc", "klogger"],
)
def test_a_rotation_on_a_disk_of_any_fill_adds_up(
    tmp_path: Path, make_writer: type[Maker | LogMaker], own: tuple[str, object], frees_kb: range
) -> None:
    """Whether the next file has room, or room for its beginning alone, or none: nothing is torn."""
    counts = set()
    for free_kb in frees_kb:
        with small_disk(tmp_path / str(free_kb), "2m") as disk:
            maker = make_writer(disk / "out")
            maker.records(200)
            maker.checkpoint()
            maker.stream._spool.put_call(lambda disk=disk, free=free_kb << 10: fill(disk, free))
            for _ in range(3):
                maker.columns = {"conn_id": np.arange(1, 101)}  # of PSC: and as many last records
                maker.records(100)
                maker.rotate()
            maker.close()
            *parts, chain = format_of(disk / "out").verify(disk / "out")
        assert not chain.problems, (free_kb, chain.problems)
        assert chain.proven_end, (free_kb, chain.notes)
        rows = [row for row in chain.rows if getattr(row, own[0]) == own[1]]
        assert sum(row.attempts for row in rows) == 2 * 500
        counts.add(len(parts))
    assert {1, 4} <= counts


def test_a_later_file_alone_has_a_connection_at_rest(tmp_path: Path) -> None:
    """One connection sends before the first rotation alone, the other all the time."""
    folder, port = tmp_path / "out", PORT + 1
    code = f"""
import socket, time
listener = socket.create_server(("127.0.0.1", {port}))
ends = [(socket.create_connection(("127.0.0.1", {port})), listener.accept()[0]) for _ in range(2)]
print(ends[0][0].getsockname()[1], flush=True)
for call in range(40):
    ends[call > 5][0].send(b"x" * 100)
    time.sleep(0.025)
"""
    command = [
        sys.executable, "-c", "from tcpkmon.collector.commands.collect import main; main()", "-q",
        "--ports", str(port), "--rotate-every", "0.3s", "-o", str(folder), "--",
        "/usr/bin/python3", "-c", code,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    at_rest = int(done.stdout)
    *parts, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0 and len(parts) > 2, (chain.problems, [p.problems for p in parts])
    assert chain.existing == 0  # both were opened while it ran
    alone = []
    for segment in find_segments(folder):
        found = connections(segment.path(folder))
        for row in np.flatnonzero((found["lport"] == at_rest) & (found["records"] == 1)):
            alone.append({name: found[name][row] for name in ("role", "raddr", "rport", "mss")})
    assert alone
    for one in alone:
        assert one["mss"] > 1000 and one["rport"] == port
        assert (one["role"], one["raddr"]) == ("existing", "127.0.0.1")
    with open_capture(folder) as capture:
        assert not (capture.column("location") == EXISTING).any() and capture.lost == 0
    found = connections(folder)
    assert sorted(found["role"].tolist()) == ["active", "active", "passive", "passive"]


def fill(disk: Path, free: int) -> None:
    """Leave so many bytes free."""
    room = os.statvfs(disk)
    with (disk / "filler").open("wb") as file:
        left = max(0, room.f_bavail * room.f_frsize - free)
        os.posix_fallocate(file.fileno(), 0, max(1, left))


def descendants(pid: int) -> list[tuple[int, int]]:
    """The processes below one, with their depth."""
    below = [
        int(one)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for one in (task / "children").read_text().split()
    ]
    return [(one, 1) for one in below] + [
        (each, depth + 1) for one in below for each, depth in descendants(one)
    ]


def test_killed_helpers_come_back(tmp_path: Path) -> None:
    """The processes that make, name and archive files are killed while it rotates."""
    folder = tmp_path / "out"
    options = ["--ports", str(PORT), "-o", str(folder), "--rotate-every", "1s", "--archive", "zst"]
    with Collector(*options) as running:
        running.ready()
        for _ in range(3):
            time.sleep(1.5)
            workers = [pid for pid, depth in descendants(running.pid) if depth == 2]
            assert len(workers) == 2
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
        running.says("the process that keeps files ended by SIGKILL; another goes on")
        time.sleep(1.5)
        done = running.finish(signal.SIGTERM)
        assert "the process that opens files" in done.stderr, done.stderr
    segments = find_segments(folder)
    assert len(segments) > 3 and {one.archived for one in segments} == {".zst"}, done.stderr
    *_, chain = format_of(folder).verify(folder)
    assert chain.exit_code == 0, chain.problems
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    sealed = [line["name"] for line in lines if line["what"] == "sealed"]
    assert sealed == [one.original for one in segments]


def test_without_the_process_that_names_files(tmp_path: Path) -> None:
    """It and its guard are killed: the last file is whole, and it is said how to finish it."""
    folder = tmp_path / "out"
    with Collector("--ports", str(PORT), "-o", str(folder), "--rotate-size", "100M") as running:
        running.ready()
        for pid, _ in descendants(running.pid):
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.5)
        done = running.finish(signal.SIGTERM)
    (one,) = find_segments(folder)
    part, new = one.path(folder), folder / one.name
    assert not one.sealed
    assert f"tcpkmon repair {part} -o {new}" in done.stderr, done.stderr
    assert "the process that opens files was killed" in done.stderr, done.stderr
    subprocess.run([TCPKMON, "repair", part, "-o", new], check=True, capture_output=True)
    assert verify_file(new).exit_code == 0
