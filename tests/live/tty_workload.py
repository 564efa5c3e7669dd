# SPDX-License-Identifier: Apache-2.0
"""Users at pseudo terminals, and programs that answer them."""

from __future__ import annotations

import fcntl
import os
import pty
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

TIOCGPTN = 0x80045430
EVENTS = ("TRANSACTION_START", "TRANSACTION_END")
# Answers each input after so many seconds; "q" ends it. argv: seconds, "raw" or "cooked".
ANSWERER = """
import os, sys, time, tty
if sys.argv[2] == "raw":
    tty.setraw(0)
os.write(1, b"ready")
while True:
    got = os.read(0, 1000)
    if b"q" in got:
        break
    time.sleep(float(sys.argv[1]))
    os.write(1, b"answer")
"""


class Terminal:
    """A pseudo terminal with a program in a session of its own."""

    until = 0

    def __init__(self, *command: str) -> None:
        self.pid, self.master = pty.fork()
        if not self.pid:
            os.execvp(command[0], command)
        self.since = time.monotonic_ns()
        number = fcntl.ioctl(self.master, TIOCGPTN, bytes(4))
        self.number = int.from_bytes(number, sys.byteorder)

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def wait_for(self, word: bytes) -> None:
        seen = b""
        while word not in seen:
            seen += os.read(self.master, 1000)


@contextmanager
def terminal(*command: str) -> Iterator[Terminal]:
    """Ends the program by closing its terminal."""
    made = Terminal(*command)
    try:
        yield made
    finally:
        made.until = time.monotonic_ns()
        os.close(made.master)
        os.waitpid(made.pid, 0)


def answerer(seconds: float, mode: str) -> tuple[str, ...]:
    return (sys.executable, "-c", ANSWERER, str(seconds), mode)
