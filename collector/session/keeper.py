# SPDX-License-Identifier: Apache-2.0
"""What is done with a capture's sealed segments, in processes of their own: no ring waits for it.

    writing thread  --name-->  keeper: archives it, deletes what is too old
                                 --name-->  runner: runs the command of --on-rotate with it

The keeper may write in the folder alone; the runner is the user who called sudo.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from collector.linux.deputy import isolate
from collector.linux.privileges import settle
from collector.plan.request import Request
from collector.plan.rotation import Rotation
from collector.session.archive import Archive
from collector.session.command import Identity, find_caller
from collector.session.retention import Retention
from collector.session.stop_signals import Stopping
from collector.writer.base_stream import Stream
from formats.base.closing import Closing

KEEPING = ("CAP_DAC_OVERRIDE", "CAP_CHOWN")
LOOK_S = 1.0
"""How often the free space and the age of segments are looked at."""
_WAIT_S = 0.05


class Keeper(Closing):
    """The processes, until close(). Make it while there is one thread alone.

    folder: a descriptor of the segments' folder; path: its name, for the command. caller: who runs
    the command; None: this process's user. hurried: whether close() may not wait for them.
    """

    def __init__(
        self,
        rotation: Rotation,
        folder: int,
        path: str,
        caller: Identity | None,
        hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hurried = hurried
        self._processes: list[int] = []
        waiting, self._names = os.pipe()
        os.set_blocking(self._names, False)
        finished = done = -1
        if rotation.on_rotate:
            finished, done = os.pipe()
            os.set_blocking(done, False)
            run = partial(_run_commands, rotation.on_rotate, finished, path, caller, os.getpid())
            self._fork(run, {finished, 0, 1, 2})
            os.close(finished)
        run = partial(_keep, rotation, folder, waiting, done, os.getpid())
        self._fork(run, {folder, waiting, done, 2})
        for fd in (waiting, done):
            if fd >= 0:
                os.close(fd)

    def sealed(self, name: str) -> None:
        """A segment has its name now. It returns at once."""
        with suppress(OSError):  # the keeper has ended, or is 64 KiB of names behind
            os.write(self._names, name.encode() + b"\n")

    def close(self) -> None:
        """Let them do what is left, and wait for it."""
        if self._names < 0:
            return
        os.close(self._names)
        self._names = -1
        while self._processes:
            left = [pid for pid in self._processes if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            self._processes = left
            if self._hurried():
                return
            if left:
                time.sleep(_WAIT_S)

    def _fork(self, live: Callable[[], None], keep: set[int]) -> None:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                isolate(keep)
                live()
                code = 0
            except Exception as error:
                print(f"collect: files: {error}", file=sys.stderr)
            finally:
                with suppress(OSError, ValueError):
                    sys.stderr.flush()
                os._exit(code)
        self._processes.append(pid)


def keep(stack: ExitStack, request: Request, stream: Stream[Any], stopping: Stopping) -> None:
    """Start a keeper for the segments of a capture that rotates; `stack` ends it."""
    rotation, segments = request.rotation, stream.segments
    if rotation is None or segments is None:
        return
    if rotation.keeps_all and not rotation.on_rotate and not rotation.archive:
        return
    caller = None if request.as_root else find_caller()
    (folder,) = stream.folders()
    keeper = Keeper(rotation, folder, request.output, caller, lambda: stopping.hurry)
    stack.enter_context(keeper)
    segments.sealed = keeper.sealed


def _lines(fd: int, pause_s: float | None, collector: int) -> list[str] | None:
    """Names that came; none after pause_s; None at the end, or when the collector is gone."""
    if not select.select([fd], [], [], pause_s)[0]:
        return []
    data = os.read(fd, 1 << 16)
    while data and not data.endswith(b"\n"):
        data += os.read(fd, 1 << 16)
    return data.decode().split() if data and os.getppid() == collector else None


def _keep(rotation: Rotation, folder: int, waiting: int, done: int, collector: int) -> None:
    os.nice(19)
    archive = Archive(rotation.archive, folder)
    settle(KEEPING, folders=[folder])
    retention = Retention(rotation, folder)
    retention.apply()
    while (names := _lines(waiting, LOOK_S, collector)) is not None:
        for name in names:
            if os.getppid() != collector:  # it did not want to wait
                return
            retention.told(name)
            kept = archive.take(name)
            retention.told(kept)
            if done >= 0:
                try:
                    os.write(done, kept.encode() + b"\n")
                except BlockingIOError:  # it hangs: what is too old is deleted all the same
                    why = "the command is 64 KiB of names behind"
                    what = f"collect: files: {kept} is not given to it: {why}"
                    print(what, file=sys.stderr, flush=True)
            retention.apply()
        if not names:
            retention.apply()


def _run_commands(
    argv: tuple[str, ...], finished: int, path: str, caller: Identity | None, collector: int
) -> None:
    environment = dict(os.environ)
    if caller is not None:
        os.setgroups(caller.groups)
        os.setgid(caller.gid)
        os.setuid(caller.uid)
        environment = caller.environment(environment)
    while (names := _lines(finished, None, collector)) is not None:
        for name in names:
            if os.getppid() != collector:
                return
            try:
                subprocess.run(
                    [*argv, str(Path(path, name))],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    check=False,
                    preexec_fn=_restore_signals,
                )
            except OSError as error:
                print(f"collect: {argv[0]} cannot be run: {error.strerror}", file=sys.stderr)


def _restore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
