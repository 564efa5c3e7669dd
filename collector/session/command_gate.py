# SPDX-License-Identifier: Apache-2.0
"""Stands in for a command until capture is attached, then becomes it: see command.py.

    python -I -S command_gate.py GATE_FD STATUS_FD UID GID GROUPS COMMAND...

Drops to the user, looks for the command as that user, writes "ready" to STATUS_FD, waits for a
byte from GATE_FD and executes the command: same process, so same PID. Anything that fails is
told on STATUS_FD; end of file there means that the command runs. It imports nothing of tcpkmon,
because it starts while a person waits.
"""

from __future__ import annotations

import os
import signal
import sys


def find(name: str) -> str:
    """The path of the command; raises OSError when there is none to execute."""
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


def drop_privileges(uid: str, gid: str, groups: str) -> None:
    """Becomes the user, for good; "-" stays who it is."""
    if uid != "-":
        os.setgroups([int(group) for group in groups.split(",")])
        os.setgid(int(gid))
        os.setuid(int(uid))


def restore_signals() -> None:
    """Every signal does what it does by default, and none is blocked."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def main() -> int:
    gate, status = int(sys.argv[1]), int(sys.argv[2])
    command = sys.argv[6:]
    os.set_inheritable(gate, False)
    os.set_inheritable(status, False)
    try:
        drop_privileges(*sys.argv[3:6])
        path = find(command[0])
        os.write(status, b"ready\n")
        # Until now the collector's signals were not for this process: it must end with the gate.
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
