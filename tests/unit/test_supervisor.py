# SPDX-License-Identifier: Apache-2.0
"""The supervisor and its processes: none is forgotten, and nothing that one held stays."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tcpkmon.collector.daemon import telling
from tcpkmon.collector.daemon.channel import pair
from tcpkmon.collector.daemon.child import Child, State
from tcpkmon.collector.daemon.held import Held
from tcpkmon.collector.daemon.mending import Mending
from tcpkmon.collector.daemon.plans import Plans
from tcpkmon.collector.daemon.supervisor import Supervisor
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.daemon.telling import HEARD_S, Telling
from tcpkmon.collector.linux import isolated
from tcpkmon.collector.writer import segment_folder
from tcpkmon.collector.writer.segment_folder import take_over_file
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments
from tests.descriptors import descriptors
from tests.unit.makers import Maker, index_of
from tests.unit.test_takeover import Killed

NOBODY: dict[str, object] = {"captures": {}, "group": None, "metrics": None}
FINISHES = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit());"


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    ends = socket.socketpair()
    requests = SimpleNamespace(fileno=ends[0].fileno, serve=lambda handlers: None)
    yield Supervisor(Plans(Path("none")), NOBODY, requests, Systemd({}))  # type: ignore[arg-type]
    for end in ends:
        end.close()


def child(folder: Path, code: str = "", state: State = State.ATTACHED) -> Child:
    """A capture whose process runs this."""
    made = Child("calls", {"folder": str(folder), "table": {}}, None,
                 Held(Systemd({}), "calls", {}))  # fmt: skip
    made.state, made.was_attached = state, True
    if code:
        made._process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert made._process.stdout is not None and made._process.stdout.readline()
    return made


def test_no_dataset_before_the_disks_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path / "run"))
    table = {"rotation": {"every": "1s", "dataset": "/srv/fleet"}}
    plan = {"captures": {"a": {"table": table, "static": table, "folder": "/x"}}}
    made = Plans(Path("none"), early=True)._begin_in_memory(plan)["captures"]["a"]
    assert made["table"]["rotation"] == made["static"]["rotation"] == {"every": "1s"}


def run(
    supervisor: Supervisor, after_s: float = 0.2, until: Callable[[], bool] = lambda: False
) -> None:
    """Until SIGTERM, after a time or when something is so, and until it has ended."""

    def end() -> None:
        limit_s = time.monotonic() + after_s
        while time.monotonic() < limit_s and not until():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end)
    ending.start()
    supervisor.run()
    ending.join()


def test_a_capture_that_waits_holds_nothing_when_it_is_removed(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    """It was killed, and waits to be started again. What its rings hold is finished first; where
    that takes too long, links would stay attached."""
    waits = child(tmp_path, state=State.WAITING)
    reader, writer = os.pipe()
    waits.held.add({"path": "p"}, ["link/f/0"], [reader], trusted=True)
    waits.leave(["a-20260101T000000Z-000001.pm"])
    supervisor._children["calls"] = waits
    supervisor._drop(supervisor._children.pop("calls"))
    assert (waits.state, waits.wanted, [*waits.held.fds]) == (State.WAITING, False, ["link/f/0"])
    supervisor._kill_all()
    assert (waits.state, waits.held.fds) == (State.GONE, {})
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")  # its only reader was closed
    os.close(writer)
    assert waits.orphans == ["a-20260101T000000Z-000001.pm"]


def test_the_one_before_finishes_its_files_too(tmp_path: Path, supervisor: Supervisor) -> None:
    """SIGTERM comes while another is to relieve it."""
    done = tmp_path / "done"
    slow = f"import time, signal, sys; from pathlib import Path\n" \
           f"def end(*_): time.sleep(0.7); Path({str(done)!r}).touch(); sys.exit()\n" \
           "signal.signal(signal.SIGTERM, end); print(flush=True); time.sleep(60)"  # fmt: skip
    quick = FINISHES + "print(flush=True); time.sleep(60)"
    other = child(tmp_path, quick, State.STARTING)
    other.relieves = child(tmp_path, slow)
    supervisor._children["calls"] = other
    run(supervisor)
    assert done.exists()


def killed_segment(folder: Path) -> str:
    """As a process that was killed leaves it."""
    maker = Maker(folder.with_name("made"))
    maker.records(20)
    maker.checkpoint()
    written = threading.Event()
    maker.stream.after(written.set)
    maker.stream.settle()
    assert written.wait(10)
    (last,) = find_segments(maker.folder)
    shutil.copytree(maker.folder, folder)
    maker.close()
    return last.name


@pytest.mark.skipif(os.geteuid() != 0, reason="who repairs gives up root's privileges")
def test_what_a_capture_leaves_that_dies_at_its_end_is_repaired(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    folder = tmp_path / "out"
    name = killed_segment(folder)
    dies = "import os, signal, time; signal.signal(15, lambda *_: os.kill(os.getpid(), 9));"
    supervisor._children["calls"] = child(folder, dies + "print(flush=True); time.sleep(60)")
    run(supervisor)
    (line,) = index_of(folder)
    assert (line["what"], line["name"], len(line["capture"])) == ("repaired", name, 32)
    assert [one.sealed for one in find_segments(folder)] == [True]


@pytest.mark.parametrize("moment", ["while it is relieved", "at its end"])
def test_who_was_killed_is_finished_before_it_is_let_go(
    tmp_path: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its rings have records that are in no file: another process takes them, and ends."""
    takes = tmp_path / "takes"
    code = f"""
import json, signal, sys, time
from tcpkmon.collector.daemon.channel import Channel
channel = Channel.of(int(sys.argv[2]))
names = channel.receive().what["parked"]["names"]
channel.send({{"what": "ready"}})
signal.sigwait([signal.SIGTERM])
open({str(takes)!r}, "w").write(json.dumps(names))
"""
    (tmp_path / "worker.py").write_text(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n" + code
    )
    real = subprocess.Popen

    def popen(words: list[str], **more: object) -> subprocess.Popen[bytes]:
        if "tcpkmon.collector.daemon.worker" in words:
            after = words[words.index("tcpkmon.collector.daemon.worker") + 1 :]
            words = [words[0], str(tmp_path / "worker.py"), *after]
        return real(words, **more)  # type: ignore[call-overload,no-any-return]

    dies = "import os, signal, time; signal.signal(15, lambda *_: os.kill(os.getpid(), 9));"
    old = child(tmp_path / "out", dies + "print(flush=True); time.sleep(60)")
    old.held.add({"path": "p"}, ["map/m"], [os.open(os.devnull, os.O_RDONLY)], trusted=True)
    other = child(tmp_path / "out", FINISHES + "print(flush=True); time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.setattr("tcpkmon.collector.daemon.child.subprocess.Popen", popen)
    supervisor._children["calls"] = other
    if moment == "at its end":
        supervisor._dismiss(old)
    else:
        other.relieves, other.state = old, State.STARTING
        assert old._process is not None
        old._process.kill()
        old._process.wait()
        threading.Timer(0.5, setattr, (other, "state", State.ATTACHED)).start()
    run(supervisor, 20, lambda: takes.exists() and old.state is State.GONE and not old.held.fds)
    assert takes.exists(), "nobody took what its rings hold"
    assert json.loads(takes.read_text()) == ["map/m"]
    assert old.state is State.GONE and not old.held.fds


def test_what_is_gone_on_with_is_not_repaired(tmp_path: Path) -> None:
    killed = Killed(tmp_path / "made")
    killed.records(20)
    killed.checkpoint()
    killed.wait()
    folder = tmp_path / "out"
    shutil.copytree(killed.folder, folder)
    stream, tail = killed.tail(folder, killed.notes())
    for expected in (0, 1):
        mending = Mending()
        mending.start_quiet(str(folder))
        assert len(mending._unquiet) == expected
        if not expected:
            os.close(tail.files[0].fd)
    stream.discard()
    killed.close()


def test_what_nobody_goes_on_with_is_repaired(tmp_path: Path, supervisor: Supervisor) -> None:
    """A process was killed, and goes on; another one, which it had relieved, was killed too."""
    name = killed_segment(tmp_path / "out")
    goes_on = child(tmp_path / "out", state=State.STARTING)
    goes_on.held.add({"path": "p"}, ["map/m"], [os.open(os.devnull, os.O_RDONLY)], trusted=True)
    goes_on.leave([name])
    ours, theirs = pair()
    with ours, theirs:
        goes_on.channel = ours
        theirs.send({"what": "ready"})
        goes_on.hear()
    supervisor._children["calls"] = goes_on
    supervisor._look_after("calls")
    assert supervisor._mending._unquiet == [(str(tmp_path / "out"), name)]
    goes_on.held.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="who repairs gives up root's privileges")
def test_what_a_capture_writes_is_not_repaired(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out")
    maker.records(20)
    (live,) = find_segments(maker.folder)
    link = maker.folder / ".a-20260101T000000Z-000001.pm.part"
    (tmp_path / "other").write_bytes(b"x" * 1000)
    link.symlink_to(tmp_path / "other")
    words = isolated.command(
        "tcpkmon.collector.daemon.repairing", str(maker.folder), live.name, link.name[1:-5]
    )
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    why = f"{link} cannot be repaired: {link.name} is a symbolic link"
    assert (done.stderr, live.path(maker.folder).exists()) == (f"tcpkmon daemon: {why}\n", True)
    maker.close()
    assert [line["what"] for line in index_of(maker.folder)] == ["sealed"]


def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have no memory or no process left."""
    waits = child(tmp_path, state=State.WAITING)
    fds = descriptors()
    monkeypatch.setattr(isolated, "PYTHON", (str(tmp_path / "none"), "-I"))
    for wait_s in (0, 1):
        waits.start()
        assert waits.said.pop() == f"cannot be started: No such file or directory; " \
                                   f"again in {wait_s} s"  # fmt: skip
    waits.start()
    assert (waits.said, waits.state) == ([], State.WAITING)
    assert descriptors() == fds


def test_a_parked_name_cannot_tell_the_service_manager_more() -> None:
    """Each is a part of a message of lines."""
    with Held(Systemd({}), "calls", {}) as held:
        held.add({"path": "p"}, ["link/f/0"], [os.open(os.devnull, os.O_RDONLY)], trusted=True)
        names = ["more/f/0", "more/f\nMAINPID=1/0", "link/g/0", "more/", "more/" + "x" * 300,
                 "more/f/4", "more/g/0", "more/f/\u0661"]  # fmt: skip
        fds = [os.open(os.devnull, os.O_RDONLY) for _ in names]
        held.add({}, names, fds, trusted=False)
        assert list(held.fds) == ["link/f/0", "more/f/0"]


def test_a_log_that_goes_while_it_is_looked_at_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder renames it between two calls."""
    part = tmp_path / ".a-20260101T000000Z-000001.klog.part"
    part.mkdir()
    looked = Path.is_symlink

    def rename_after(path: Path) -> bool:
        found = looked(path)
        if path == part and part.exists():
            part.rename(tmp_path / "away")
        return found

    monkeypatch.setattr(Path, "is_symlink", rename_after)
    Mending().start_quiet(str(tmp_path))
    assert (tmp_path / "away").exists()


class Capture:
    state, name, records, lost, heard_s = State.ATTACHED, "web", 0, 0, 0.0


class Told:
    def __init__(self) -> None:
        self.words: list[str] = []

    def tell(self, text: str) -> None:
        self.words.append(text)


def test_a_capture_that_stands_still_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, told, capture = [0.0], Told(), Capture()
    monkeypatch.setattr(telling.time, "monotonic", lambda: now[0])
    told_of: Any = Telling(told)  # type: ignore[arg-type]

    def rounds(count: int, *, heard: bool) -> str:
        told.words.clear()
        for _ in range(count):
            now[0] += 1.0
            if heard:
                capture.heard_s = now[0]
            told_of.tell([capture], True)
        return capsys.readouterr().err

    assert rounds(6, heard=True) == "" and told.words.count("WATCHDOG=1") == 6
    said = rounds(20, heard=False)
    assert said.count("\n") == 1 and f"web has not drained its rings for {HEARD_S:g} s" in said
    assert told.words.count("WATCHDOG=1") == 4  # of the first seconds
    assert any("web stands still" in word for word in told.words)
    said = rounds(6, heard=True)
    assert said == "tcpkmon daemon: capture web drains its rings again\n"


def test_a_file_is_not_taken_over_while_its_writer_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_folder, "HANDOVER_S", 0.05)
    path = tmp_path / "one"
    path.write_bytes(b"")
    writer = os.open(path, os.O_WRONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    other = os.open(path, os.O_WRONLY)
    with pytest.raises(FileError, match="has not ended"):
        take_over_file(other, "one")
    os.close(writer)
    take_over_file(other, "one")
    os.close(other)
