# SPDX-License-Identifier: Apache-2.0
"""The machine of a benchmark, in words, for its results."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import time
from pathlib import Path

from tcpkmon.collector.linux.machine import describe_kernel, describe_machine


def memory_mib(process: int | str, what: str = "VmHWM") -> float:
    """The resident memory of a process: the most that it had; VmRSS: what it has now."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(_first(rf"^{what}:\s*(\d+) kB", status)) / 1024


def here() -> dict[str, str]:
    """Its cpu and kernel."""
    return {"cpu": describe_machine()["cpu_model"], "kernel": platform.release()}


def describe(root: Path) -> dict[str, str]:
    """What can make a difference, by name, in the order of the report."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    megahertz = _first(r"^cpu MHz\s*:\s*(.*)$", cpu) or "?"
    family = _first(r"^cpu family\s*:\s*(.*)$", cpu) or "?"
    number = _first(r"^model\s*:\s*(.*)$", cpu) or "?"
    flags = _first(r"^flags\s*:\s*(.*)$", cpu).split()
    devices = Path("/sys/devices/system")
    told = describe_machine()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "tcpkmon": importlib.metadata.version("tcpkmon"),
        "tree": commit(root),
        "CPU model": told["cpu_model"],
        "CPU": f"family {family}, model {number}; {os.cpu_count()} CPUs at {megahertz} MHz"
        + (", virtual machine" if "hypervisor" in flags else ""),
        "memory": f"{told['memory_bytes'] / (1 << 30):.0f} GiB",
        "kernel": describe_kernel(),
        "L3 cache": _read(devices / "cpu/cpu0/cache/index3/size"),
        "clock": _read(devices / "clocksource/clocksource0/current_clocksource"),
        "load": f"{_load()} (1, 5 and 15 minutes) when it began",
        "Python": platform.python_version(),
        "versions": "; ".join(filter(None, map(_version, VERSIONS))),
    }


VERSIONS = (("perf", "--version"), ("tcpdump", "--version"), ("bpftrace", "--version"),
            ("iperf3", "--version"), ("nginx", "-v"), ("wrk", "-v"),
            ("redis-server", "--version"))  # fmt: skip


def _load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.exists() else "?"


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    said = (done.stdout or done.stderr).strip().splitlines()
    return said[0] if said else ""


def commit(root: Path) -> str:
    """The tree's commit, with -dirty if files have changed; unknown outside of git."""
    try:
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
