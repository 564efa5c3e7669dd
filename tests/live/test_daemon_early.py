# SPDX-License-Identifier: Apache-2.0
"""tcpkmon daemon --early: captures in memory until their disk can be written, then on it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector.daemon.moving import move
from tests.live.daemons import Daemon
from tests.live.faults import GUEST, Flood, Space, verify, wait_until
from tests.live.test_daemon_live import CAPTURE, numbers_in

BOTH = """
locations = ["STATE_CHANGE", "RECEIVE_CALL"]
[capture.calls.rotation]
every = "1h"
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that cannot be written yet."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as made:
        made.options = ["--early"]
        yield made


def configure(daemon: Daemon, space: Space, port: int) -> None:
    text = CAPTURE.format(space=space.path, ports=[port]).replace("@/calls", "@/disk/calls")
    daemon.configure(text.replace('locations = ["RECEIVE_CALL"]\n', "") + BOTH)


def remount(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


def files_of(disk: Path) -> list[Path]:
    return sorted((disk / "calls").glob("*.pm"))


def test_all_calls_are_on_the_disk(
    daemon: Daemon, disk: Path, tmp_path: Path
) -> None:
    memory = tmp_path / "run-early/calls"
    with Space() as space, Flood(space) as flood:
        configure(daemon, space, flood.port)
        daemon.start()
        flood.begin(0, rate=1000 if GUEST else 2_000)  # the rings have room for half a minute
        flood.advance(500)
        done = daemon.command("reload")
        assert done.code == 1
        assert f"capture calls goes on in memory: {disk}/calls cannot be written" in done.stderr
        daemon.kill()  # the next one goes on there: nobody has told that the disk is there
        daemon.start()
        flood.advance(500)
        remount(disk)
        assert b"relieved by another" in daemon.command("reload").stdout
        daemon.says("files of the time before the disks are in")
        wait_until(lambda: not memory.exists(), "nothing stays in memory")
        early = files_of(disk)
        flood.advance(500)
        daemon.kill()  # and this one goes on on the disk
        daemon.start()
        assert not memory.exists()
        flood.advance(500)
        made = flood.halt()
        assert daemon.finish().code == 0
    assert not list(disk.glob("calls/.*"))
    assert len(early) >= 1
    assert len(files_of(disk)) > len(early)
    for path in files_of(disk):
        verify(path, 0)
    # While one capture relieves the other, both have a call.
    assert set().union(*map(numbers_in, files_of(disk))) == set(range(made))
    index = [json.loads(line) for line in (disk / "calls/index.jsonl").read_text().splitlines()]
    assert {one["name"] for one in index if one["what"] == "sealed"} == {
        path.name for path in files_of(disk)
    }


def test_a_file_of_this_name_is_there_already(tmp_path: Path) -> None:
    """A clock that begins at the same time with each boot."""
    source, folder = tmp_path / "memory", tmp_path / "disk"
    name = "host-19700101T000001Z-000001.pm"
    for place, text in ((source, "new"), (folder, "old")):
        place.mkdir()
        (place / name).write_text(text)
    (source / f".{name}".replace("000001.pm", "000002.pm.part")).write_text("unfinished")
    (folder / f".{name}.moving").write_text("of a process that was killed")
    assert move(str(source), str(folder)) == [name]
    (other,) = folder.glob("boot-*")
    assert [(folder / name).read_text(), (other / name).read_text()] == ["old", "new"]
    assert [path.name for path in source.iterdir()] == [".host-19700101T000001Z-000002.pm.part"]
