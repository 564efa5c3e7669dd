# SPDX-License-Identifier: Apache-2.0
"""What is left to do when a capture is over, in a process of its own.

The capture's process has given up the right to read its files. This one is forked before, waits,
and keeps what it needs, mostly one right: to read the files of any user. SECURITY.md has the list.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from tcpkmon.collector.linux.privileges import settle
from tcpkmon.formats.base.closing import Closing


class Afterwards(Closing):
    """A process that calls a function when run() says so. Make it while there is one thread alone.

    unneeded: descriptors that it closes. begin: what it calls first, to give up rights. otherwise:
    what it calls where this process ends without run().
    """

    def __init__(
        self,
        call: Callable[[], int],
        unneeded: Iterable[int] = (),
        begin: Callable[[], None] = lambda: settle(("CAP_DAC_READ_SEARCH",)),
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        waiting, self._go = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.close(self._go)
            for descriptor in unneeded:
                with suppress(OSError):
                    os.close(descriptor)
            self._live(waiting, call, begin, otherwise)
        os.close(waiting)

    @staticmethod
    def _live(
        waiting: int,
        call: Callable[[], int],
        begin: Callable[[], None],
        otherwise: Callable[[], None],
    ) -> None:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the capture's
            begin()
            if os.read(waiting, 1):
                gc.enable()
                code = call()
                sys.stdout.flush()
            else:
                otherwise()
        finally:
            os._exit(code)

    def run(self) -> int:
        """Let it call the function, and wait; returns its exit code."""
        os.write(self._go, b"!")
        return self._end()

    def _end(self) -> int:
        os.close(self._go)
        self._go = -1
        try:
            _, status = os.waitpid(self._process, 0)
        except KeyboardInterrupt:  # it ends by itself
            os.waitpid(self._process, 0)
            raise
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self._go >= 0:
            self._end()
