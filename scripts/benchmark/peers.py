# SPDX-License-Identifier: Apache-2.0
"""The peers: parses what they print, and installs what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

ATTACHING = "Attaching 1 probe...\n"
BPFTRACE_PROGRAM = (
    "tracepoint:tcp:tcp_probe { "
    'printf("probe %llu %d %d %u %u %u %u %u\\n", nsecs, args->sport, args->dport, '
    "args->snd_cwnd, args->ssthresh, args->snd_wnd, args->srtt, args->snd_nxt); }"
)
PACKAGES = {
    "perf": ("linux-perf", f"linux-tools-{os.uname().release}", "linux-tools-generic"),
    "tcpdump": ("tcpdump",),
    "bpftrace": ("bpftrace",),
    "cc": ("gcc",),
}
APT = ("apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0")


def parse_perf_stats(text: str) -> tuple[int, int]:
    """Samples, and lost ones, from `perf report --stats`.

    LOST_SAMPLES counts samples only in the part of the event itself; before, it counts notices.
    """
    whole, *own = re.split(r"^(?!Aggregated)\S.* stats:$", text, maxsplit=1, flags=re.MULTILINE)
    if "Aggregated stats:" not in whole:
        raise ValueError("perf tells no numbers")
    part = own[0] if own else ""
    samples = _last(r"^\s*SAMPLE events:\s*(\d+)", part)
    return samples or 0, _last(r"^\s*LOST_SAMPLES events:\s*(\d+)", part) or 0


def parse_collect(text: str) -> tuple[int, int]:
    """Records in the output, and events that should be there and are not, by the summary."""
    records = re.search(r"^collect: ([\d,]+) records ", text, re.MULTILINE)
    line = re.search(r"^collect: ([\d,]+) events seen, (.*); lost: ", text, re.MULTILINE)
    if records is None or line is None:
        raise ValueError("collect tells no numbers")
    passed_by = re.findall(r"([\d,]+) (?:filtered|unchanged|over their limit)", line[2])
    wanted = _plain(line[1]) - sum(map(_plain, passed_by))
    return _plain(records[1]), wanted - _plain(records[1])


def _plain(number: str) -> int:
    return int(number.replace(",", ""))


def parse_tcpdump(text: str) -> tuple[int, int]:
    """Packets captured, and dropped by the kernel, from the end of tcpdump's output."""
    captured = _last(r"^(\d+) packets? captured", text)
    if captured is None:
        raise ValueError("tcpdump tells no number of packets")
    return captured, _last(r"^(\d+) packets? dropped by kernel", text) or 0


def complaint(said: Path) -> str:
    """The line with the reason why a program ended: the first with a known word, or the last."""
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"(?i)unable|not permitted|cannot|can't", line)]
    return ((telling or lines[-1:] or ["it says nothing"])[0])[:200]


def parse_bpftrace_lost(text: str) -> int:
    """Events that bpftrace lost, by its own count."""
    return sum(int(n) for n in re.findall(r"^Lost (\d+) events", text, re.MULTILINE))


def _last(pattern: str, text: str) -> int | None:
    found = re.findall(pattern, text, re.MULTILINE)
    return int(found[-1]) if found else None


def install(wanted: Sequence[str], say: Callable[[str], None]) -> dict[str, str]:
    """Installs missing programs by apt; returns what is still missing, and why."""
    missing = [name for name in wanted if not shutil.which(name)]
    if not missing:
        return {}
    if not shutil.which("apt-get"):
        return dict.fromkeys(missing, "not installed, and there is no apt-get here")
    say(f"apt: installing {', '.join(missing)}")
    _apt("update")
    reasons = {}
    for name in missing:
        for package in PACKAGES[name]:
            said = _apt("install", "--no-install-recommends", package)
            if shutil.which(name):
                break
        else:
            reasons[name] = f"apt cannot install {' or '.join(PACKAGES[name])}: {said}"
    if "cc" in missing and "cc" not in reasons:
        _apt("install", "--no-install-recommends", "libc6-dev")
    return reasons


def _apt(*arguments: str) -> str:
    """Runs apt-get; returns the last line of its errors."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(
        [*APT, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return lines[-1]
