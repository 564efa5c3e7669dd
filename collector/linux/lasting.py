# SPDX-License-Identifier: Apache-2.0
"""A child process in whose place another comes where it is killed.

    this process        guard: waits for the worker, and starts another where it died
                          worker: does the work

The guard has the worker's rights and may fork; it reads nothing. Where it is killed itself, the
worker goes on, and nobody starts another: check() tells.

They end with the process that made them, also where somebody stopped them (SIGSTOP): the kernel
continues the guard then (PR_SET_PDEATHSIG), and the guard its worker.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tcpkmon.collector.linux.confinement import deny_calls
from tcpkmon.collector.linux.syscalls import call_libc
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_WAITS_S = (0.0, 0.2, 1.0, 2.0)
"""How long to wait before the next worker, where they die one after the other."""
_MOST_ROW = 20
"""After so many without a piece of work done none is started: nobody waits for ever at the end."""
STEADY_S = 60.0
_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0
"""How often close() looks whether somebody stopped them."""


Live = Callable[[int, int, Callable[[bool], None]], None]


class Lasting(Closing):
    """The processes, until close(). Make it while there is one thread alone.

    live(fd, deaths, busy): the work; it returns when there is none any more. It calls busy(True)
    and busy(False) around each piece; deaths: so many workers died at the same one. begin():
    called by the guard before each worker; the descriptor for that one. settle: called first, to
    give up what they do not need. confine: by the worker. keep: the descriptors that they use; all
    others but stderr are closed. what: for people.
    """

    def __init__(
        self,
        what: str,
        live: Live,
        settle: Callable[[], None],
        keep: Iterable[int],
        begin: Callable[[], int] = lambda: -1,
        confine: Callable[[], None] = deny_calls,
    ) -> None:
        self.what = what
        self._shared = memoryview(mmap.mmap(-1, 24)).cast("Q")
        """How many workers died, pieces that are done, whether one is under way."""
        self._life, alive = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                isolate({*keep, alive, 2})
                settle()
                self._guard(live, begin, confine)
            except Exception as error:
                _tell(f"{what}: {error}")
            finally:
                os._exit(0)
        os.close(alive)

    def _guard(
        self, live: Live, begin: Callable[[], int], confine: Callable[[], None]
    ) -> None:
        deaths = row = done = pid = 0
        # pid: of the worker, while there is one.
        signal.signal(signal.SIGCONT, lambda *_: os.kill(pid, signal.SIGCONT) if pid else None)
        call_libc("prctl", _PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
        while True:
            began_s, fd = time.monotonic(), begin()
            pid = os.fork()
            if not pid:
                signal.signal(signal.SIGCONT, signal.SIG_DFL)
                self._work(partial(live, fd, deaths, self._busy), confine)
            if fd >= 0:
                os.close(fd)
            ended, pid = os.waitpid(pid, 0), 0
            status = os.waitstatus_to_exitcode(ended[1])
            if not status:
                return
            row = 1 if time.monotonic() - began_s > STEADY_S else row + 1
            before, done = done, self._shared[1]
            deaths = 0 if not self._shared[2] else 1 if done > before else deaths + 1
            self._shared[0] += 1
            self._shared[2] = 0
            how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            if row > _MOST_ROW and done == before:
                _tell(f"{self.what} ended by {how}, as {_MOST_ROW} before it; no other is started")
                return
            _tell(f"{self.what} ended by {how}; another goes on")
            time.sleep(_WAITS_S[min(row, len(_WAITS_S)) - 1])

    def _busy(self, is_busy: bool) -> None:
        self._shared[1] += not is_busy
        self._shared[2] = is_busy

    def _work(self, live: Callable[[], None], confine: Callable[[], None]) -> None:
        code = 1
        try:
            with suppress(KernelError):
                confine()
            live()
            code = 0
        except Exception as error:
            _tell(f"{self.what}: {error}")
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)

    @property
    def died(self) -> int:
        """How many workers died."""
        return self._shared[0]

    @property
    def has_ended(self) -> bool:
        """Whether guard and worker have."""
        return bool(readable([self._life], 0))

    def check(self) -> None:
        """KernelError where something was killed."""
        if self._pid and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if self.has_ended:
                raise KernelError(f"{self.what} was killed, and what would start it again")
            raise KernelError(f"what starts {self.what} again was killed")
        if self.died:
            times = "once" if self.died == 1 else f"{self.died} times"
            raise KernelError(f"{self.what} was killed {times}, and started again")

    def close(self) -> None:
        """Wait for their end. They end when there is no work any more: see live().

        Stopped ones (SIGSTOP) are left to the end of this process."""
        if self._pid:
            while not readable([self._life], _LOOK_S):
                below = (self._pid, *_children(self._pid))
                if stopped := [pid for pid in below if _is_stopped(pid)]:
                    _tell(f"{self.what} is stopped (process {stopped[0]}) and is left behind")
                    break
            else:
                os.waitpid(self._pid, 0)
            os.close(self._life)
            self._pid = 0


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"
    return False


def _tell(text: str) -> None:
    with suppress(OSError):  # nobody reads it any more
        os.write(2, f"collect: {text}\n".encode())


def isolate(keep: set[int]) -> None:
    """Keep signals, terminals and open files of the parent away."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with suppress(OSError):  # that of the listing
                os.close(int(name))
