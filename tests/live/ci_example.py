# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of docs/examples/ci in a network namespace with a setting of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "ci"
SETTING = "net.ipv4.tcp_slow_start_after_idle"


def start(folder: Path, value: int, *words: str) -> subprocess.Popen[str]:
    """pytest with the captures below `folder`."""
    setting = f"/proc/sys/{SETTING.replace('.', '/')}"
    script = f'ip link set lo up && echo {value} >{setting} && exec "$@"'
    command = ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, "-m", "pytest",
               "-p", "no:cacheprovider", "--tcpkmon-require", "--basetemp", str(folder),
               str(EXAMPLE), *words]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str], passed: int, failed: int) -> str:
    """What it printed, when so many tests passed and failed."""
    text = process.communicate()[0]
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed)", text)}
    assert (counts.get("passed", 0), counts.get("failed", 0)) == (passed, failed), text
    return text


def pause_in(folder: Path) -> Path:
    """The capture of the test with the pause."""
    (path,) = {found.resolve() for found in folder.glob("*/pause.pm")}  # pytest links to folders
    return path
