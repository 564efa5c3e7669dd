# SPDX-License-Identifier: Apache-2.0
"""Who may speak to a collector, tried with real users and groups."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from collector.control_place import group_name
from collector.control_socket import ControlServer
from collector.privilege import capability_sets

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
GROUP = 12  # `man` on Debian: a group that exists and that nobody is in
LIMIT_S = 60


class Session:
    """Controls that answer, served by a thread as the session's main one."""

    def __init__(self, folder: Path, group: str | None) -> None:
        self.marks: list[tuple[int, int]] = []
        self._fd = os.eventfd(0)
        self._over = False
        self.server = ControlServer(folder, group, lambda: os.eventfd_write(self._fd, 1))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while not self._over:
            select.select([self._fd], [], [])
            os.eventfd_read(self._fd)
            self.server.serve_pending(self)

    def __enter__(self) -> Session:
        self.server.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        os.eventfd_write(self._fd, 1)
        self._thread.join()
        self.server.close()
        os.close(self._fd)

    def status(self) -> dict[str, Any]:
        return {"pid": os.getpid()}

    def set_enabled(self, names: Sequence[str] | None, on: bool) -> dict[str, Any]:
        return {}

    def mark(self, number: int, pid: int) -> dict[str, Any]:
        self.marks.append((number, pid))
        return {}

    def set_buffer_bytes(self, n: int) -> dict[str, Any]:
        return {}

    def set_low_water(self, percent: int) -> dict[str, Any]:
        return {}


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own, which others may not look into: the socket's mode is what is tested here.
    with tempfile.TemporaryDirectory(prefix="tcpkmon-test-", dir="/run") as made:
        os.chmod(made, 0o755)
        yield Path(made, "run")


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    with Session(folder, group_name(GROUP)) as session:
        yield session


# Imported while it is root: the tests' own folder need not be one that others may read.
AS_USER = """
import os, sys
import collector.controlling
from collector.commands.tcpkmon import main
uid, gid, *groups = [int(word) for word in sys.argv.pop(1).split(",")]
os.setgroups(groups)
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
main()
"""


def as_user(
    session: Session, groups: Sequence[int], *words: str, gid: int = NOBODY
) -> subprocess.CompletedProcess[str]:
    who = ",".join(map(str, (NOBODY, gid, *groups)))
    return subprocess.run(
        [sys.executable, "-c", AS_USER, who, *words],
        env={"TCPKMON_RUN": str(session.server.path.parent), "PYTHONPATH": str(ROOT),
             "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/", capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("groups", "gid"), [((GROUP,), NOBODY), ((1, GROUP), NOBODY), ((), GROUP)])
def test_a_member_of_the_group_may(session: Session, groups: tuple[int, ...], gid: int) -> None:
    done = as_user(session, groups, "mark", "7", gid=gid)
    assert (done.returncode, done.stderr) == (0, "")
    assert [number for number, _ in session.marks] == [7]
    assert session.marks[0][1] not in {os.getpid(), 0}


def test_others_are_told_which_group(session: Session) -> None:
    done = as_user(session, (1, 2), "mark", "7")
    assert done.returncode == 1
    assert f"root and the members of the group {group_name(GROUP)}" in done.stderr
    assert f"usermod -aG {group_name(GROUP)} nobody" in done.stderr
    assert session.marks == []


def test_the_peer_counts_not_the_files_mode(session: Session) -> None:
    session.server.path.chmod(0o666)
    done = as_user(session, (1, 2), "mark", "7")
    assert done.returncode == 1
    assert f"only root and the group {group_name(GROUP)} may ask this" in done.stderr
    assert session.marks == []
    assert as_user(session, (GROUP,), "mark", "8").returncode == 0


def test_without_a_group_root_alone(folder: Path) -> None:
    with Session(folder, None) as session:
        done = as_user(session, (0, GROUP), "mark", "7")
        assert "listens to root only" in done.stderr
        assert session.marks == []


def test_the_thread_has_no_capabilities(session: Session) -> None:
    assert as_user(session, (GROUP,), "enable").returncode == 0
    native = session.server._thread.native_id
    lines = Path(f"/proc/self/task/{native}/status").read_text().splitlines()
    told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert int(told["CapEff"], 16) == int(told["CapPrm"], 16) == 0
    assert told["NoNewPrivs"] == "1"
    assert capability_sets()[0] != 0, "the main thread keeps its own"
