# SPDX-License-Identifier: Apache-2.0
"""Which machine this is, and who uses it: for the headers of files."""

from __future__ import annotations

import os
import platform
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_NO_ID = (1 << 32) - 1
"""To the kernel: leave it as it is."""


def describe_kernel() -> str:
    """Release, version and machine, of uname."""
    name = platform.uname()
    return f"{name.release} {name.version} {name.machine}"


def describe_machine() -> dict[str, Any]:
    """cpu_model, memory_bytes, uid and user (of the one who called sudo, if that was used)."""
    uid = os.getuid()
    with suppress(ValueError):
        uid = (read_sudo() or (uid,))[0]
    user = str(uid)
    with suppress(KeyError):
        user = pwd.getpwuid(uid).pw_name
    return {
        "cpu_model": _cpu_model(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"),
        "uid": uid,
        "user": user,
    }


def read_sudo(environment: Mapping[str, str] = os.environ) -> tuple[int, int | None] | None:
    """SUDO_UID and SUDO_GID (None without it) of who called sudo; None where nobody did.

    ValueError, with the name and the value, for what is no number of a user or a group.
    """
    numbers: list[int | None] = []
    for name in ("SUDO_UID", "SUDO_GID"):
        text = environment.get(name)
        if text is not None and not (re.fullmatch("[0-9]{1,10}", text) and int(text) < _NO_ID):
            raise ValueError(f"{name}={text}")
        numbers.append(None if text is None else int(text))
    uid, gid = numbers
    return None if uid is None else (uid, gid)


def _cpu_model() -> str:
    with suppress(OSError):
        lines = re.findall(r"^(\S.*?)\s*:\s*(\S.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        cpu = dict(reversed(lines))
        if model := cpu.get("model name"):
            return str(model)
        if "CPU part" in cpu:  # arm64 has numbers: which design of which company
            return f"{platform.machine()} {cpu.get('CPU implementer')}:{cpu['CPU part']}"
    return platform.machine()
