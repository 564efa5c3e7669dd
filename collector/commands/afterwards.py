# SPDX-License-Identifier: Apache-2.0
"""What is left to do when a capture is over, in a process of its own.

The capture's process has given up the right to read its files. This one is forked before, waits,
and keeps one right: to read the files of any user. It writes none, as SECURITY.md says.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from tcpkmon.formats.base.closing import Closing


class Afterwards(Closing):
    """A process that calls a function when run() says so. Make it while there is one thread alone.

    unneeded: descriptors that it closes. Its end without run() does nothing.
    """

    def __init__(self, call: Callable[[], int], unneeded: Iterable[int] = ()) -> None:
        waiting, self._go = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.close(self._go)
            for descriptor in unneeded:
                with suppress(OSError):
                    os.close(descriptor)
            self._live(waiting, call)
        os.close(waiting)

    @staticmethod
    def _live(waiting: int, call: Callable[[], int]) -> None:
        from tcpkmon.collector.linux.privileges import settle

        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the capture's
            settle(("CAP_DAC_READ_SEARCH",))
            if os.read(waiting, 1):
                for number in (signal.SIGINT, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                gc.enable()
                code = call()
                sys.stdout.flush()
        finally:
            os._exit(code)

    def run(self) -> int:
        """Let it call the function, and wait; returns its exit code."""
        os.write(self._go, b"!")
        return self._end()

    def _end(self) -> int:
        os.close(self._go)
        self._go = -1
        _, status = os.waitpid(self._process, 0)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self._go >= 0:
            self._end()
