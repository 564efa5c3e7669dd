# SPDX-License-Identifier: Apache-2.0
"""The privileges of a capture that runs, thread by thread, and what it holds open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from collector.linux.privileges import mask_of, needed_capabilities
from tests.live.capturing import Running, capturing
from tests.live.faults import COLLECT, Space, environment, run

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
    for status, allowed in ((first, kept), *((other, 0) for other in others)):
        for name in ("CapEff", "CapPrm", "CapBnd"):
            assert int(status[name], 16) == allowed, (status["Name"], name)
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert status["NoNewPrivs"] == "1"


def test_namespaces_are_released_after_the_walk(tmp_path: Path) -> None:
    """Else a container's network interface would stay until the capture's end."""
    with Space() as space:
        for number, options in enumerate(([], ["--netns", space.path], ["--no-existing"])):
            with capturing(tmp_path / f"{number}.pm", *options) as made:
                assert [link for link in links(made.process.pid) if "net:[" in link] == []


@pytest.mark.parametrize("form", ["psc", "klogger"])
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
