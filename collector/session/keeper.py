# SPDX-License-Identifier: Apache-2.0
"""What is done with a capture's sealed segments, in processes of their own: no ring waits for it.

    writing thread  --name-->  keeper: archives it, deletes what is too old
                                 --name-->  adder: adds it to a dataset, see dataset.py
                                 --name-->  runner: runs the command of --on-rotate with it

The keeper may write in the folder alone; the runner is the user who called sudo. Each has a guard,
which starts it again: collector/linux/lasting.py. A name leaves its socket when it is done with.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from tcpkmon.collector.linux.lasting import Lasting
from tcpkmon.collector.linux.privileges import settle
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session.archive import Archive, tell
from tcpkmon.collector.session.command import Identity, find_caller
from tcpkmon.collector.session.dataset import Adder
from tcpkmon.collector.session.retention import Retention
from tcpkmon.collector.session.stop_signals import Stopping
from tcpkmon.collector.session.summary import say
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.output_file import trusted_users
from tcpkmon.collector.writer.own_files import Identity as FileIdentity
from tcpkmon.collector.writer.own_files import swappable
from tcpkmon.collector.writer.segment_folder import Segments
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import hidden

KEEPING = ("CAP_DAC_OVERRIDE", "CAP_CHOWN")
LOOK_S = 1.0
"""How often the free space and the age of segments are looked at."""
_WAIT_S = 0.05
_TRIES = 3
"""After so many processes that ended at a file it stays as it is."""
_MOST_BYTES = 1 << 16


class Keeper(Closing):
    """The processes, until close(). Make it while there is one thread alone.

    Where one is killed another goes on with what was waiting; the command is run once for a name.
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
        self._waiting: deque[bytes] = deque()
        self._processes: list[Lasting] = []
        collector = os.pidfd_open(os.getpid())
        waiting, self._names = _pair()
        self._names.setblocking(False)
        finished = done = offered = None
        if rotation.on_rotate:
            finished, done = _pair()
            done.setblocking(False)
            run = partial(_run_commands, rotation.on_rotate, finished, path, caller, collector)
            keep = {finished.fileno(), collector, 0, 1}
            become = partial(_become, caller)
            new = Lasting("the process of --on-rotate", run, become, keep, confine=lambda: None)
            self._processes.append(new)
            finished.close()
        if rotation.dataset:
            offered = self._start_adder(rotation.dataset, folder, collector)
        live = partial(_keep, rotation, folder, waiting, done, offered, collector)
        keep = {one.fileno() for one in (done, offered) if one is not None}
        keep |= {folder, waiting.fileno(), collector}
        give_up = partial(_give_up, rotation.archive, folder)
        self._processes.append(Lasting("the process that keeps files", live, give_up, keep))
        for each in (waiting, done, offered):
            if each is not None:
                each.close()
        os.close(collector)

    def _start_adder(self, path: str, folder: int, collector: int) -> socket.socket:
        """Where it gets names. FileError."""
        adder = Adder(path, folder)
        names, offered = _pair()
        offered.setblocking(False)
        live = partial(adder.live, partial(_next, names, None, collector),
                       partial(names.recv, _MOST_BYTES), collector)  # fmt: skip
        keep = {folder, adder.place, names.fileno(), collector}
        what = "the process that adds to the dataset"
        new = Lasting(what, live, adder.give_up, keep, adder.begin)
        self._processes.append(new)
        names.close()
        os.close(adder.place)
        return offered

    def sealed(self, name: str, known: FileIdentity | None = None) -> None:
        """A segment has its name now. It returns at once."""
        device, inode = known or (0, 0)
        self._waiting.append(f"{name} {device} {inode}".encode())
        self._hand_over()

    def _hand_over(self) -> None:
        with suppress(OSError):  # the keeper has ended, or has many names to go
            while self._waiting:
                self._names.send(self._waiting[0])
                self._waiting.popleft()

    def check(self) -> None:
        """KernelError where one was killed."""
        for one in self._processes:
            one.check()

    def close(self) -> None:
        """Let them do what is left, and wait for it."""
        last = self._processes[-1:]
        while self._waiting and last and not self._hurried() and not last[0].has_ended:
            self._hand_over()
            time.sleep(_WAIT_S if self._waiting else 0)
        self._names.close()
        while self._processes:
            left = [one for one in self._processes if not one.has_ended]
            for one in self._processes:
                if one not in left:
                    one.close()
            self._processes = left
            if self._hurried():
                return
            if left:
                time.sleep(_WAIT_S)


def keep(
    stack: ExitStack, request: Request, stream: Stream, stopping: Stopping
) -> Keeper | None:
    """Start a keeper for the segments of a capture that rotates; `stack` ends it."""
    rotation, segments = request.rotation, stream.segments
    if rotation is None or segments is None:
        return None
    stack.callback(_tell_unsealed, segments, request.output)
    if rotation.keeps_all and not (rotation.on_rotate or rotation.archive or rotation.dataset):
        return None
    caller = None if request.as_root else find_caller()
    (folder,) = stream.folders()
    if rotation.on_rotate and caller is None and os.geteuid() == 0:
        _check_ours(request.output, folder)
    keeper = Keeper(rotation, folder, request.output, caller, lambda: stopping.hurry)
    stack.enter_context(keeper)
    segments.sealed = keeper.sealed
    return keeper


def _check_ours(output: str, folder: int) -> None:
    """Nobody can give root's command another file under a segment's name. FileError."""
    where = swappable(output, trusted_users())
    if where is None and not os.path.samestat(os.stat(output), os.fstat(folder)):
        where = output  # it was, when the folder was opened
    if where is not None:
        why = f"the command of --on-rotate would be root's, and others may swap files in {where}"
        raise FileError(why, f"chown root {where}; chmod go-w {where}")


def _tell_unsealed(segments: Segments, folder: str) -> None:
    """Say which files have their end, but not their name."""
    for name in segments.unsealed:
        part, new = Path(folder, hidden(name)), Path(folder, name)
        say(f"{part} has not got its name; it is finished by: tcpkmon repair {part} -o {new}")


def _pair() -> tuple[socket.socket, socket.socket]:
    """A message stays at its end until it is taken, whoever looked at it before."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _next(connection: socket.socket, pause_s: float | None, collector: int) -> str | None:
    """A message, which stays there; '' without one; None at the end, or where the collector, of
    which this is a pidfd, is gone."""
    ready = readable((connection.fileno(), collector), pause_s)
    if collector in ready:  # it did not want to wait, or was killed
        return None
    if not ready:
        return ""
    return connection.recv(_MOST_BYTES, socket.MSG_PEEK).decode() or None


def _give_up(form: str, folder: int) -> None:
    os.nice(19)
    Archive(form, folder)  # what it needs is imported
    settle(KEEPING, folders=[folder], forks=True)


def _keep(
    rotation: Rotation, folder: int, waiting: socket.socket, done: socket.socket | None,
    offered: socket.socket | None, collector: int, _: int, deaths: int,
    busy: Callable[[bool], None],
) -> None:  # fmt: skip
    archive, retention = Archive(rotation.archive, folder), Retention(rotation, folder)

    def take(name: str, known: FileIdentity | None = None, is_new: bool = True) -> str:
        retention.told(name)
        _give(offered, name, "added to the dataset")
        kept = archive.take(name, known)
        retention.told(kept)
        if kept != name or is_new:
            _give(done, kept, "given to the command")
        retention.apply()
        return kept

    retention.apply()
    archive.clear()
    old: set[str] = set()
    if deaths < _TRIES:
        for name in retention.sealed() if rotation.archive else ():
            busy(True)
            if take(name, is_new=False) != name:
                old.add(name)
            busy(False)
            if readable([collector], 0):
                return
    while (message := _next(waiting, LOOK_S, collector)) is not None:
        if message:
            busy(True)
            name, device, inode = message.split()
            if deaths >= 2 * _TRIES:  # they ended at those of the index before
                tell(f"{name} stays as it is: {deaths} processes ended at it")
                deaths = 0
            elif name not in old:
                take(name, (int(device), int(inode)) if int(inode) else None)
            waiting.recv(_MOST_BYTES)
            busy(False)
        else:
            retention.apply()


def _give(to: socket.socket | None, name: str, what: str) -> None:
    """Send a name on, if somebody wants it."""
    if to is None:
        return
    try:
        to.send(name.encode())
    except BlockingIOError:  # it hangs: what is too old is deleted all the same
        tell(f"{name} is not {what}: there are too many before it")
    except OSError:  # it has ended
        pass


def _become(caller: Identity | None) -> None:
    if caller is not None:
        os.setgroups(caller.groups)
        os.setgid(caller.gid)
        os.setuid(caller.uid)


def _run_commands(
    argv: tuple[str, ...], finished: socket.socket, path: str, caller: Identity | None,
    collector: int, _: int, deaths: int, busy: Callable[[bool], None],
) -> None:  # fmt: skip
    environment = dict(os.environ)
    if caller is not None:
        environment = caller.environment(environment)
    while (name := _next(finished, None, collector)) is not None:
        finished.recv(_MOST_BYTES)
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
