# SPDX-License-Identifier: Apache-2.0
"""Twelve scripted users at pseudo terminals: each logs in, types, waits for the answer, thinks."""

from __future__ import annotations

import os
import pty
import random
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PROMPT = b"$ "
FIRST_UID = 20001
ANSWER_S = 30.0
SPIN = "i=0; while [ $i -lt 2000000 ]; do i=$((i + 1)); done"
"""The shell itself works for more than a second."""
COLD = "dd if=prog iflag=nocache count=0 status=none; ./prog -c :"
"""A program whose file is not in memory: page faults with I/O."""
LIGHT = ("pwd", "cd /tmp; cd - > /dev/null", "who", "echo hello", "ls")
MEDIUM = (
    "sort -r words | tail -1", "tr a-z A-Z < words | tail -1", COLD, "cp words copy; ls",
    "dd if=/dev/zero of=new bs=64k count=4 oflag=direct status=none",
    "dd if=words of=/dev/null bs=64k iflag=direct status=none",
)  # fmt: skip
HEAVY = (SPIN, "cc -O2 -c driver.c -o driver.o", COLD, "sort words words words words | tail -1")
KINDS: Sequence[tuple[str, Sequence[str], float]] = (
    *[("light", LIGHT, 2.0)] * 6, *[("medium", MEDIUM, 1.5)] * 4, *[("heavy", HEAVY, 4.0)] * 2,
)  # fmt: skip
"""By user: what he types, and how long he thinks on average [s]."""


class User(threading.Thread):
    """Logs in and out until `until` (monotonic s): sessions of session_s, a pause between them.

    lines: typed and answered. logins: made.
    """

    def __init__(self, number: int, home: Path, until: float, session_s: float) -> None:
        super().__init__(name=f"user {number + 1}", daemon=True)
        self.uid = FIRST_UID + number
        self.kind, self._commands, self._think_s = KINDS[number % len(KINDS)]
        self._home, self._until, self._session_s = home, until, session_s
        self._chance = random.Random(number)
        self.lines = self.logins = 0
        self.error = ""

    def run(self) -> None:
        try:
            while time.monotonic() < self._until - 1:
                self._log_in()
                time.sleep(self._chance.uniform(0.2, 0.6))
        except (OSError, TimeoutError) as error:
            self.error = f"{self.name}: {error}"

    def _log_in(self) -> None:
        until = min(self._until, time.monotonic() + self._session_s)
        pid, master = pty.fork()
        if not pid:
            become(self.uid, self._home)
        try:
            self._read(master)
            self.logins += 1
            while time.monotonic() < until:
                self._type(master, self._chance.choice(self._commands))
                longest = max(0.05, until - time.monotonic())
                time.sleep(min(self._chance.expovariate(1 / self._think_s), longest))
            os.write(master, b"exit\n")
            with suppress(OSError):  # the terminal ends
                while os.read(master, 1000):
                    pass
        finally:
            os.close(master)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)
            os.waitpid(pid, 0)

    def _type(self, master: int, line: str) -> None:
        os.write(master, line.encode() + b"\n")
        self._read(master)
        self.lines += 1

    def _read(self, master: int) -> None:
        """Up to the prompt, which no echo ends with."""
        seen, until = b"", time.monotonic() + ANSWER_S
        while not seen.endswith(PROMPT):
            if not select.select([master], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no answer within {ANSWER_S:.0f} s: {seen[-200:]!r}")
            seen += os.read(master, 1000)


def become(uid: int, home: Path) -> None:
    """This process is the user's shell from now on; a login session where the kernel has audit."""
    with suppress(OSError), open("/proc/self/loginuid", "w") as file:
        file.write(str(uid))
    os.chdir(home)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(home), "TERM": "dumb",
        "TMPDIR": str(home),
    }  # fmt: skip
    os.execve("/bin/sh", ["-sh", "-i"], environment)


def make_homes(folder: Path, files: Path) -> list[Path]:
    """A folder for each user, with some files."""
    homes = []
    for number in range(len(KINDS)):
        home = folder / f"user{number + 1}"
        home.mkdir(parents=True)
        for name in ("words", "driver.c"):
            shutil.copy(files / name, home / name)
        shutil.copy("/bin/bash", home / "prog")
        for one in (home, *home.iterdir()):
            os.chown(one, FIRST_UID + number, FIRST_UID + number)
        homes.append(home)
    for above in (folder, *folder.parents):
        if above.stat().st_mode & 0o005 != 0o005:
            above.chmod(above.stat().st_mode | 0o005)
    os.sync()
    return homes


def hold_session(
    homes: Sequence[Path], seconds: float, each_minute: Callable[[], None]
) -> list[User]:
    """All users, for so long; what each has done. OSError if one gets no answer."""
    until = time.monotonic() + seconds
    users = [
        User(number, home, until, max(5.0, seconds / 5)) for number, home in enumerate(homes)
    ]
    for user in users:
        user.start()
    for user in users:
        while user.is_alive():
            user.join(60)
            if user.is_alive():
                each_minute()
    if errors := [user.error for user in users if user.error]:
        raise OSError("; ".join(errors))
    return users
