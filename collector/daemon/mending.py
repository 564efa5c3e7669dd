# SPDX-License-Identifier: Apache-2.0
"""Has the segments repaired that a killed capture left without their end: repairing.py does it."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tcpkmon.collector.linux import isolated
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.segments import Segment, find_segments

QUIET_S = 10.0
"""A segment that was not written for so long is nobody's: captures write each second."""
END_S = 10.0
LOOK_S = 1.0


class Mending:
    """The processes that repair, for the supervisor."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._unquiet: list[tuple[str, str]] = []
        """Folders and names that are looked at again."""
        self._look_at_s = 0.0

    def start_quiet(self, folder: str) -> None:
        """Repair the segments that are in the folder now, once each is nobody's: see QUIET_S."""
        names = [one.name for one in _unsealed(folder) if _is_nobodys(one.path(folder))]
        self._unquiet += [(folder, name) for name in names if (folder, name) not in self._unquiet]
        self._look_at_s = 0.0
        self.reap()

    def start(self, folder: str, names: Sequence[str]) -> None:
        """Repair these segments."""
        if names:
            words = isolated.command("tcpkmon.collector.daemon.repairing", folder, *names)
            try:
                self._processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
            except OSError as error:  # the next daemon does it
                say(f"tcpkmon daemon: {folder} is not repaired now: {error.strerror}")

    def finish(self) -> None:
        """Wait for them, but not for long: what is left the next daemon repairs."""
        wait_for(self._processes, END_S)

    def reap(self) -> None:
        """Forget those that have ended; start those whose segments are quiet by now."""
        self._processes = [one for one in self._processes if one.poll() is None]
        if time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + LOOK_S
        for folder in {folder for folder, _ in self._unquiet}:
            waiting = {name for where, name in self._unquiet if where == folder}
            quiet = waiting.intersection(left_in(folder, quiet_s=QUIET_S))
            self.start(folder, sorted(quiet))
            left = waiting.intersection(left_in(folder)) - quiet
            self._unquiet = [one for one in self._unquiet if one[0] != folder or one[1] in left]


def wait_for(processes: Iterable[subprocess.Popen[bytes]], most_s: float) -> None:
    """Wait for their ends, all together so long at most."""
    until_s = time.monotonic() + most_s
    with suppress(subprocess.TimeoutExpired):
        for one in processes:
            one.wait(max(0.0, until_s - time.monotonic()))


def left_in(folder: str, *, quiet_s: float = 0.0) -> list[str]:
    """The names of the segments without their end. quiet_s: not written for so long."""
    return [one.name for one in _unsealed(folder) if _age_s(one.path(folder)) >= quiet_s]


def _unsealed(folder: str) -> list[Segment]:
    with suppress(OSError):
        found = find_segments(folder)
        return [one for one in found if not one.sealed]
    return []


def _age_s(path: Path) -> float:
    try:
        return time.time() - max(one.lstat().st_mtime for one in (path, *_files_in(path)))
    except OSError:
        return -1.0


def _files_in(path: Path) -> list[Path]:
    """Of the segment of a log, which is a folder. OSError."""
    return [*path.iterdir()] if path.is_dir() and not path.is_symlink() else []


def _is_nobodys(path: Path) -> bool:
    """Whether it is a plain file, or a folder of such, which no capture has locked."""
    try:
        files = _files_in(path)
    except OSError:  # it has gone meanwhile
        return False
    for one in (path, *files):
        try:
            fd = os.open(one, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            mode = os.fstat(fd).st_mode
            if not (stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and one == path)):
                return False
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            continue
        finally:
            os.close(fd)
    return True
