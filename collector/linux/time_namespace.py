# SPDX-License-Identifier: Apache-2.0
"""The namespace of clocks of this process: records have the kernel's own CLOCK_MONOTONIC."""

from __future__ import annotations

import os
from pathlib import Path

from tcpkmon.collector.linux.syscalls import call_libc
from tcpkmon.formats.base.errors import KernelError

_CLONE_NEWTIME = 0x80
_OFFSETS = Path("/proc/self/timens_offsets")


def leave_time_namespace() -> None:
    """Give this process the kernel's clocks, where `unshare --time` has given it others.

    It takes a new namespace without offsets. KernelError where that is not possible: for a process
    of several threads, and without CAP_SYS_TIME.
    """
    try:
        offsets = [line.split()[1:] for line in _OFFSETS.read_text().splitlines()]
    except OSError:  # before 5.6
        return
    if not any(int(one) for words in offsets for one in words):
        return
    try:
        call_libc("unshare", _CLONE_NEWTIME)
        _OFFSETS.write_text("monotonic 0 0\nboottime 0 0\n")
        fd = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
        try:
            call_libc("setns", fd, _CLONE_NEWTIME)
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(
            f"the clocks of this time namespace are not the kernel's, and cannot be left: "
            f"{error.strerror}",
            "start it outside that (unshare --time), or as root",
        ) from None
