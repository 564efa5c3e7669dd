# SPDX-License-Identifier: Apache-2.0
"""Runs in place of a command until the capture is attached, then executes it: see command.py.

    python -I -S command_gate.py GATE_FD STATUS_FD UID GID GROUPS LIMITS COMMAND...

It sets the limits (RESOURCE:SOFT:HARD,... or -), becomes the user, finds the command as that user,
writes "ready" to STATUS_FD, waits for a byte from GATE_FD, and executes the command: the same
process, so the same PID. An error goes to STATUS_FD; end of file there means that the command runs.
It imports nothing of tcpkmon, so that it starts fast.
"""

from __future__ import annotations

import os
import resource
import signal
import sys


def find(name: str) -> str:
    """The path of the command. OSError when there is none that can be executed."""
    folders = [""] if "/" in name else os.get_exec_path()
    denied = False
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            denied = True
    if denied:
        raise PermissionError("it is not executable")
    raise FileNotFoundError("there is no such command")


def set_limits(text: str) -> None:
    """Set the limits that the collector had before it raised its own; "-" changes nothing."""
    for row in text.split(",") if text != "-" else ():
        number, soft, hard = map(int, row.split(":"))
        resource.setrlimit(number, (soft, hard))


def drop_privileges(uid: str, gid: str, groups: str) -> None:
    """Become the user, for good; "-" changes nothing."""
    if uid != "-":
        os.setgroups([int(group) for group in groups.split(",")])
        os.setgid(int(gid))
        os.setuid(int(uid))


def restore_signals() -> None:
    """Set all signals to their defaults, and block none."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def main() -> int:
    gate, status = int(sys.argv[1]), int(sys.argv[2])
    command = sys.argv[7:]
    os.set_inheritable(gate, False)
    os.set_inheritable(status, False)
    try:
        set_limits(sys.argv[6])
        drop_privileges(*sys.argv[3:6])
        path = find(command[0])
        os.write(status, b"ready\n")
        # End of file: the collector ended. This process ignored its signals, so it ends here.
        if not os.read(gate, 1):
            return 0
        restore_signals()
        os.execv(path, command)
    except OSError as error:
        os.write(status, (error.strerror or str(error)).encode(errors="replace") + b"\n")
    return 127


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_number, signal.SIG_IGN)
    sys.exit(main())
