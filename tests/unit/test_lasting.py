# SPDX-License-Identifier: Apache-2.0
"""Processes beside a capture that are killed: others go on with what waited, and it is told."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tcpkmon.collector.linux import lasting
from tcpkmon.collector.linux.deputy import Deputy
from tcpkmon.collector.linux.lasting import Lasting
from tcpkmon.collector.linux.privileges import settle
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session.keeper import KEEPING, Keeper, keep
from tcpkmon.collector.session.rights import OPENING
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.log_folder import LogFolder
from tcpkmon.collector.writer.segment_folder import OPEN, SEAL, SegmentFolder
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.errors import FileError, KernelError
from tcpkmon.formats.base.segments import find_segments, hidden, name_segment
from tests.unit.makers import Maker, index_of, make
from tests.unit.test_foreign_folders import ATTACKER

WAIT_S = 20.0


def leaves(pid: int | None = None) -> set[int]:
    """The processes below one that have no children of their own."""
    below: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
        for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
            below |= {int(one) for one in (task / "children").read_text().split()}
    return set().union(*map(leaves, below)) if below else {pid} if pid else set()


def worker_of(process: Lasting) -> int:
    """The one that does the work, once it is there."""
    wait_for(lambda: leaves(process._pid) - {process._pid})
    (worker,) = leaves(process._pid)
    return worker


def wait_for(what: object, seconds: float = WAIT_S) -> None:
    until_s = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_killed_keeper_comes_back_with_what_was_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)  # they have descriptor 2 alone
    pytest.importorskip("pyarrow")
    seen = tmp_path / "seen"
    code = f"import sys; open({str(seen)!r}, 'a').write(sys.argv[1] + chr(10))"
    rotation = Rotation(every_s=1, archive="zst", on_rotate=(sys.executable, "-c", code))
    paths = make(tmp_path / "out", segments=6, count=20)
    lines = (tmp_path / "out" / "index.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out" / "index.jsonl").unlink()
    for path in paths:  # sealed while it runs
        path.rename(tmp_path / path.name)
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    before = leaves()
    with Keeper(rotation, fd, str(tmp_path / "out"), None) as keeper:
        for process in keeper._processes:
            os.kill(worker_of(process), signal.SIGKILL)
        for path in paths:
            if path in paths[1::3]:
                os.kill(worker_of(keeper._processes[-1]), signal.SIGKILL)
            (tmp_path / path.name).rename(path)
            with (tmp_path / "out" / "index.jsonl").open("a") as index:
                index.write(lines.pop(0))
            status = path.stat()
            keeper.sealed(path.name, (status.st_dev, status.st_ino))
        last = f"{paths[-1].name}.zst\n"
        wait_for(lambda: seen.exists() and seen.read_text().endswith(last))
        with pytest.raises(KernelError, match="started again"):
            keeper.check()
    os.close(fd)
    said = capfd.readouterr().err
    assert "ended by SIGKILL; another goes on" in said, said
    names = [*dict.fromkeys(Path(one).name for one in seen.read_text().splitlines())]
    assert names == [f"{path.name}.zst" for path in paths]
    assert [one.archived for one in find_segments(tmp_path / "out")] == [".zst"] * len(paths)
    assert leaves() == before


def test_what_a_killed_capture_left_is_archived_by_the_next(tmp_path: Path) -> None:
    """Names that waited in its keeper are in the index."""
    pytest.importorskip("pyarrow")
    paths = make(tmp_path / "out", segments=3, count=20)
    (tmp_path / "out" / f".{paths[0].name}.zst.part").write_bytes(b"half")
    stranger = tmp_path / "out" / name_segment("b", 0, 1, ".pm")
    stranger.write_bytes(b"not in the index")
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    Keeper(Rotation(every_s=1, archive="zst"), fd, str(tmp_path / "out"), None).close()
    os.close(fd)
    names = {one.name for one in (tmp_path / "out").iterdir()} - {"index.jsonl", stranger.name}
    assert names == {f"{path.name}.zst" for path in paths}


def test_a_file_at_which_keepers_end_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)  # they have descriptor 2 alone
    monkeypatch.setattr(lasting, "_WAITS_S", (0.0, 0.01))
    from tcpkmon.collector.session import keeper as module

    paths = make(tmp_path / "out", segments=3, count=20)
    (tmp_path / "out" / "index.jsonl").unlink()

    class Fatal(module.Archive):
        def take(self, name: str, known: tuple[int, int] | None = None) -> str:
            if name == paths[0].name:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().take(name, known)

    monkeypatch.setattr(module, "Archive", Fatal)
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    with Keeper(Rotation(every_s=1, archive="zst"), fd, str(tmp_path / "out"), None) as keeper:
        for path in paths:
            keeper.sealed(path.name)
    os.close(fd)
    assert f"{paths[0].name} stays as it is" in capfd.readouterr().err
    assert [one.archived for one in find_segments(tmp_path / "out")] == ["", ".zst", ".zst"]


def test_a_killed_guard_is_told(tmp_path: Path) -> None:
    make(tmp_path / "out", segments=1)
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    with Keeper(Rotation(every_s=1, keep_files=1), fd, str(tmp_path / "out"), None) as keeper:
        (process,) = keeper._processes
        keeper.check()
        worker = worker_of(process)
        os.kill(process._pid, signal.SIGKILL)
        wait_for(lambda: "Z" in Path(f"/proc/{process._pid}/stat").read_text().split(")")[1])
        with pytest.raises(KernelError, match=r"what starts .* again was killed"):
            keeper.check()
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: process.has_ended)
        with pytest.raises(KernelError, match="was killed, and what would start it again"):
            keeper.check()
    os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="it gives up root's privileges")
def test_a_killed_deputy_comes_back_and_finishes(tmp_path: Path) -> None:
    """It is killed between a segment's name and its line in the index."""
    folder = SegmentFolder(tmp_path / "out")
    name = name_segment("a", 0, 1, ".pm")
    mark = tmp_path / "out" / "killed"

    def answer(request: int, data: bytes) -> int:
        if request == SEAL and not mark.exists():
            mark.touch()
            os.rename(hidden(name), name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
            os.kill(os.getpid(), signal.SIGKILL)
        return folder.answer(request, data)

    ended = tmp_path / "out" / "ended"
    give_up = partial(settle, OPENING, folders=[folder.fd], forks=True)
    with Deputy(answer, ended.touch, give_up, keep=[folder.fd]) as deputy:
        os.close(deputy.open_file(OPEN, name.encode()))
        os.kill(worker_of(deputy._process), signal.SIGKILL)
        os.close(deputy.open_file(SEAL, json.dumps({"what": "sealed", "name": name}).encode()))
        with pytest.raises(KernelError, match="killed 2 times"):
            deputy.check()
    folder.discard()
    assert ended.exists() and (tmp_path / "out" / name).exists()
    assert [line["name"] for line in index_of(tmp_path / "out")] == [name]


@pytest.mark.skipif(os.geteuid() != 0, reason="it gives up root's privileges")
def test_what_the_guard_may() -> None:
    """Make processes, and pairs of sockets for them; the worker has no such right."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def status() -> dict[str, str]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def attempt(what: object) -> bool:
        try:
            what()  # type: ignore[operator]
        except PermissionError:
            return False
        return True

    def give_up() -> None:
        settle(KEEPING, forks=True)
        may = [attempt(what) for what in (socket.socketpair, socket.socket)]
        theirs.send(json.dumps([status()["CapEff"], status()["Seccomp"], may]).encode())

    def live(number: int, data: bytes) -> int:
        may = [attempt(what) for what in (os.fork, socket.socketpair, socket.socket)]
        theirs.send(json.dumps([status()["CapEff"], may]).encode())
        return os.open("/dev/null", os.O_RDONLY)

    with Deputy(live, lambda: None, give_up, keep=[theirs.fileno()]) as deputy:
        os.close(deputy.open_file(0, b""))
    guard, worker = json.loads(ours.recv(4096)), json.loads(ours.recv(4096))
    ours.close()
    theirs.close()
    assert int(guard[0], 16) == int(worker[0], 16) == 1 << 0 | 1 << 1  # CHOWN, DAC_OVERRIDE
    assert guard[1:] == ["2", [True, False]]
    assert worker[1] == [False, False, False]


def test_a_file_that_gets_no_name_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its deputy everything is dead that could give it one."""
    maker = Maker(tmp_path / "out")
    maker.records(5)

    def refuse(request: int, data: bytes) -> int:
        raise FileError("the process that opens files has ended")

    assert maker.stream.segments is not None
    maker.stream.segments.ask = refuse
    request = SimpleNamespace(rotation=Rotation(every_s=1), output=str(tmp_path / "out"))
    with ExitStack() as stack:
        assert isinstance(maker.stream, Stream)
        keep(stack, request, maker.stream, SimpleNamespace(hurry=False))  # type: ignore[arg-type]
        maker.close()
    said = capsys.readouterr().err
    (one,) = find_segments(tmp_path / "out")
    part, new = one.path(tmp_path / "out"), tmp_path / "out" / one.name
    assert not one.sealed and f"tcpkmon repair {part} -o {new}" in said
    from tcpkmon.collector.commands.tcpkmon import main  # noqa: F401
    from tcpkmon.formats.verify import repair_file

    assert repair_file(part, new).report.exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="it is about root")
def test_no_command_of_roots_gets_what_others_may_swap(tmp_path: Path) -> None:
    stream = Stream(STREAMS["psc"](), tmp_path / "out", rotates=True)
    os.chown(tmp_path / "out", ATTACKER, ATTACKER)
    request = SimpleNamespace(rotation=Rotation(every_s=1, on_rotate=("true",)), as_root=True,
                              output=str(tmp_path / "out"))  # fmt: skip
    with ExitStack() as stack, pytest.raises(FileError, match="others may swap"):
        keep(stack, request, stream, SimpleNamespace(hurry=False))  # type: ignore[arg-type]
    stream.discard()


def test_workers_that_do_nothing_are_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lasting, "_WAITS_S", (0.0,))

    def live(fd: int, deaths: int, busy: Callable[[bool], None]) -> None:
        raise ValueError("no way")

    with lasting.Lasting("the test's process", live, lambda: None, [], confine=lambda: None):
        pass  # close() waits for its end
    assert "no other is started" in capfd.readouterr().err


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: lasting._is_stopped(pid))  # noqa: B023


def until_end_of(fd: int, _: int, deaths: int, busy: Callable[[bool], None]) -> None:
    """The work of a process that waits for the end of another."""
    assert readable([fd], WAIT_S)


def test_stopped_processes_end_with_the_one_that_made_them() -> None:
    settle_as = partial(settle, (), None, (), forks=True)
    report, told = os.pipe()
    if not (daemon := os.fork()):
        try:
            ended = os.pidfd_open(os.getpid())
            process = Lasting("it", partial(until_end_of, ended), settle_as, [ended])
            os.write(told, f"{process._pid} {worker_of(process)}".encode())
            time.sleep(WAIT_S)
        finally:
            os._exit(1)
    pids = [int(word) for word in os.read(report, 100).split()]
    stop(*pids)
    os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids))


def test_close_does_not_wait_for_stopped_processes(capfd: pytest.CaptureFixture[str]) -> None:
    life, ended = os.pipe()
    process = Lasting("the test's process", partial(until_end_of, life), lambda: None, [life])
    guard, worker = process._pid, worker_of(process)
    stop(worker)
    process.close()
    assert f"is stopped (process {worker}) and is left behind" in capfd.readouterr().err
    os.close(ended)
    os.kill(guard, signal.SIGCONT)  # as the kernel does at the end of this process
    os.waitpid(guard, 0)


def test_it_makes_the_files_of_a_log(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path / "log")
    ended = tmp_path / "ended"

    def make(cpu: int, first: bytes) -> int:
        output = folder.output(cpu)
        output.begin(first)
        return output.fd

    pipe = os.pipe()
    with Deputy(make, ended.touch, lambda: None, keep=[folder.fd]) as deputy:
        os.close(pipe[1])
        assert os.read(pipe[0], 1) == b"", "it keeps no descriptor of others open"
        first = b"x" * 3_000_000
        fd = deputy.open_file(3, first)
        os.write(fd, b" and more")
        os.close(fd)
        with pytest.raises(FileError, match="exists"):
            deputy.open_file(3, first)
        os.kill(deputy._process._pid, signal.SIGTERM)
        os.close(deputy.open_file(4, b""))
        assert not ended.exists()
    assert ended.exists()
    assert (tmp_path / "log" / "kernlog.dump.cpu3").read_bytes() == first + b" and more"
    os.close(pipe[0])


def test_it_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\nfrom tcpkmon.collector.linux.deputy import Deputy\n"
        "Deputy(lambda n, d: 0, pathlib.Path(sys.argv[1]).touch, lambda: None)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "ended"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, check=False, timeout=60)
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_why_it_could_not_is_told() -> None:
    def refuse(number: int, data: bytes) -> int:
        raise FileError("no room") from OSError(errno.ENOSPC, "full")

    with (
        Deputy(refuse, lambda: None, lambda: None) as deputy,
        pytest.raises(FileError, match="no room") as caught,
    ):
        deputy.open_file(1, b"")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC


def test_a_deputy_that_ended_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "_WAITS_S", (0.0, 0.01))
    with Deputy(lambda number, data: os._exit(1), lambda: None, lambda: None) as deputy:
        for _ in range(2):
            with pytest.raises(FileError, match="has ended"):
                deputy.open_file(0, b"data")


def test_what_no_process_asks_is_refused() -> None:
    """Who asks may have been taken over."""

    def parse(number: int, data: bytes) -> int:
        return int({"one": 1}[data.decode()])

    with Deputy(parse, lambda: None, lambda: None) as deputy:
        for data in (b"\xff", b"two"):
            with pytest.raises(FileError):
                deputy.open_file(0, data)
        deputy._socket.sendall(struct.pack("=IQ", 0, 1 << 62))
        deputy._socket.settimeout(30)
        assert deputy._socket.recv(1) == b"", "it has ended, and took no such memory"
