# SPDX-License-Identifier: Apache-2.0
"""What the daemon's processes hold: memory, descriptors and BPF programs, as time goes by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SETTLED_S = 8.0
"""A process this old has all that it needs."""
SPARE_BYTES, SPARE_FDS = 8 << 20, 8
"""A process may hold so much more at the end: what it does varies."""


@dataclass(frozen=True)
class Sample:
    """Of a process: its own memory (RssAnon) in bytes, and its descriptors."""

    at_s: float
    pid: int
    bytes: int
    fds: int


class Costs:
    """Samples by what the process is: "supervisor" or "capture"."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}
        self.programs: set[int] = set()
        """The BPF programs that any of them held."""
        self._since: dict[int, float] = {}

    def look(self, at_s: float, pids: Mapping[str, int | None]) -> None:
        """Sample these processes, once they have settled."""
        for what, pid in pids.items():
            if pid is None or at_s - self._since.setdefault(pid, at_s) < SETTLED_S:
                continue
            with suppress(OSError):
                held = [_text(entry) for entry in Path(f"/proc/{pid}/fdinfo").iterdir()]
                self.programs.update(map(int, re.findall(r"(?m)^prog_id:\s*(\d+)", "".join(held))))
                status = Path(f"/proc/{pid}/status").read_text()
                size = int(re.findall(r"(?m)^RssAnon:\s*(\d+)", status)[0]) * 1024
                self.samples.setdefault(what, []).append(Sample(at_s, pid, size, len(held)))

    def report(self, problems: list[str]) -> list[str]:
        """A line for each kind of process: at the beginning, in the middle and at the end."""
        lines = []
        for what, samples in self.samples.items():
            third = max(1, len(samples) // 3)
            parts = [part for part in (samples[:third], samples[third:-third], samples[-third:])
                     if part]  # fmt: skip
            sizes = [median(one.bytes for one in part) for part in parts]
            fds = [median(one.fds for one in part) for part in parts]
            count = len({one.pid for one in samples})
            lines.append(
                f"{what}: {_listed(size / 2**20 for size in sizes)} MiB, {_listed(fds)} fds "
                f"(medians at the beginning, in the middle, at the end; {count} processes)"
            )
            if sizes[-1] > sizes[0] * 1.1 + SPARE_BYTES:
                problems.append(f"{what}: its memory grows: {lines[-1]}")
            if fds[-1] > fds[0] + SPARE_FDS:
                problems.append(f"{what}: its descriptors leak: {lines[-1]}")
        return lines


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def _listed(numbers: object) -> str:
    return " / ".join(f"{number:.0f}" for number in numbers)  # type: ignore[attr-defined]
