# SPDX-License-Identifier: Apache-2.0
"""Which machine this is, and who uses it: for the headers of files."""

from __future__ import annotations

import os
import platform
import pwd
import re
from contextlib import suppress
from pathlib import Path
from typing import Any


def describe_kernel() -> str:
    """Release, version and machine, of uname."""
    name = platform.uname()
    return f"{name.release} {name.version} {name.machine}"


def describe_machine() -> dict[str, Any]:
    """cpu_model, memory_bytes, uid and user (of the one who called sudo, if that was used)."""
    uid = int(text) if (text := os.environ.get("SUDO_UID", "")).isdecimal() else os.getuid()
    user = str(uid)
    with suppress(KeyError, OverflowError):
        user = pwd.getpwuid(uid).pw_name
    return {
        "cpu_model": _cpu_model(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"),
        "uid": uid,
        "user": user,
    }


def _cpu_model() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found[1].strip()
    return platform.machine()
