# SPDX-License-Identifier: Apache-2.0
"""The privileges of a capture that runs, thread by thread, and what it holds open."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tcpkmon.collector.linux.privileges import mask_of, needed_capabilities
from tests.live.capturing import Running, capturing
from tests.live.faults import (
    COLLECT,
    TCPKMON,
    Done,
    Space,
    as_nobody,
    environment,
    let_others_in,
    run,
)

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Space() as space, capturing(tmp_path / "x.pm", "--netns", space.path) as made:
        yield made


def statuses(pid: int) -> list[dict[str, str]]:
    """The status of each thread of a process, the main thread's first."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name)):
        lines = (task / "status").read_text().splitlines()
        found.append(dict(line.split(":\t", 1) for line in lines if ":\t" in line))
    return found


def links(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(link))
    return found


def test_no_thread_has_more_than_it_needs(running: Running) -> None:
    first, *others = statuses(running.process.pid)
    assert len(others) == 2, "the writing thread, and that of the control socket"
    kept = mask_of(needed_capabilities())
    uids = {uid for status in (first, *others) for uid in status["Uid"].split()}
    assert len(uids) == 1 and "0" not in uids
    for status, allowed in ((first, kept), *((other, 0) for other in others)):
        for name in ("CapEff", "CapPrm", "CapBnd"):
            assert int(status[name], 16) == allowed, (status["Name"], name)
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2", "a filter"
        assert not status["Groups"].split()


def test_namespaces_are_released_after_the_walk(tmp_path: Path) -> None:
    """Else a container's network interface would stay until the capture's end."""
    with Space() as space:
        for number, options in enumerate(([], ["--netns", space.path], ["--no-existing"])):
            with capturing(tmp_path / f"{number}.pm", *options) as made:
                assert [link for link in links(made.process.pid) if "net:[" in link] == []


@pytest.mark.parametrize("form", ["psc", pytest.param("klogger", marks=pytest.mark.full)])
def test_under_sudo_the_output_is_the_callers(tmp_path: Path, form: str) -> None:
    sudo = environment(SUDO_UID=str(NOBODY), SUDO_GID="12")
    command = [COLLECT, "-q", "--format", form, "--duration", "50ms", "--ports", "1"]
    for name, marks, owner in (("a", sudo, (NOBODY, 12)), ("b", environment(), (0, 0))):
        done = run([*command, "-o", str(tmp_path / name)], env=marks)
        assert done.code == 0, done.stderr
        path = tmp_path / name
        for each in (path, *path.glob("*")):
            status = each.stat()
            assert (status.st_uid, status.st_gid) == owner, each
            assert stat.S_IMODE(status.st_mode) == (0o750 if each.is_dir() else 0o640)


def test_a_later_cpus_log_is_made_by_the_deputy(tmp_path: Path) -> None:
    """The writing thread itself may make no file any more. The log is of a folder of the caller."""
    late = (
        "from tcpkmon.collector.writer import klogger_codec; "
        "klogger_codec.online_cpus = lambda: (0,); "
        "from tcpkmon.collector.commands.collect import main; main()"
    )
    folder = tmp_path / "log"
    command = [sys.executable, "-c", late, "-q", "--schema", "sched", "-o", str(folder)]
    sockets = tmp_path / "run"
    sockets.mkdir(0o755)
    sudo = environment(SUDO_UID=str(NOBODY), SUDO_GID="12", TCPKMON_RUN=str(sockets))
    done = run([*command, "--duration", "1s"], env=sudo, cwd=ROOT)
    assert done.code == 0, done.stderr
    files = sorted(folder.iterdir())
    assert len(files) == len(os.sched_getaffinity(0)) > 1
    for file in files:
        assert (file.stat().st_uid, file.stat().st_gid) == (NOBODY, 12)
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert run([TCPKMON, "verify", *map(str, files)]).code in {0, 3}
    assert not list(sockets.iterdir())


def capture_as_nobody(caps: str, *arguments: str) -> Done:
    """Runs collect as a user who has these capabilities, and makes a connection meanwhile."""
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); " + (
        "c = socket.create_connection(s.getsockname()); s.accept(); "
        "print(open('/proc/self/status').read())"
    )
    words = ("--", "/usr/bin/python3", "-I", "-c", script)
    return run(as_nobody("collect", *arguments, *words, gid=12, caps=caps), cwd="/")


@pytest.mark.parametrize("form", ["psc", pytest.param("klogger", marks=pytest.mark.full)])
def test_a_user_with_capabilities_captures_too(tmp_path: Path, form: str) -> None:
    let_others_in(tmp_path)
    os.chown(tmp_path, NOBODY, -1)
    path = tmp_path / "out"
    done = capture_as_nobody("+bpf,+perfmon", "--format", form, "-o", str(path))
    assert done.code == 0, done.stderr
    for name in ("CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SYS_NICE"):
        assert f"this user lacks {name}: " in done.stderr
    told = dict(line.split(":\t", 1) for line in done.stdout.decode().splitlines() if ":\t" in line)
    assert int(told["CapEff"], 16) == int(told["CapAmb"], 16) == 0, "the command gets none of them"
    files = [path] if form == "psc" else sorted(path.iterdir())
    assert all(file.stat().st_uid == NOBODY for file in files)
    assert run([TCPKMON, "verify", *map(str, files)]).code == 0
    assert " 0 records" not in done.stderr and "lost: none" in done.stderr


def test_what_a_user_lacks_is_named(tmp_path: Path) -> None:
    for caps, missing in (("+bpf", "CAP_PERFMON"), ("+perfmon", "CAP_BPF"), ("-all", "CAP_BPF")):
        done = capture_as_nobody(caps, "-o", str(tmp_path / "x"))
        assert done.code == 1 and len(done.lines) == 1
        assert "needs root" in done.stderr and missing in done.stderr


LATE = """
import atexit, sys
from tcpkmon.collector.session import rights
give_up, before = rights.Rights.give_up, set()
rights.Rights.give_up = lambda self: (give_up(self), before.update(sys.modules))
atexit.register(lambda: print(sorted(set(sys.modules) - before)))
from tcpkmon.collector.commands.collect import main
main()
"""


def test_no_module_is_imported_later(tmp_path: Path) -> None:
    """The user that it is then may not be able to read them."""
    for options in (["--fail-on-loss"], ["--format", "klogger"], ["-v"]):
        command = [sys.executable, "-c", LATE, "-o", str(tmp_path / f"{len(options)}{options[0]}")]
        done = run([*command, *options, "--ports", "1", "--duration", "1500ms"], cwd=ROOT)
        assert (done.code, done.stdout) == (0, b"[]\n"), done.stderr
