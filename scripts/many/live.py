# SPDX-License-Identifier: Apache-2.0
"""Real connections, as many as memory holds: both ends here, captured, compared, rotated, asked."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark.scale import open_all, robin
from scripts.experiments.context import Context, many_ports
from scripts.experiments.machine import memory_mib
from tcpkmon.collector import capturing
from tcpkmon.collector.control import choosing
from tcpkmon.collector.control.client import Client
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux.privileges import raise_limits
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.registry import format_of

ROTATIONS_S = 300.0
WORK_S = 2.0
QUESTIONS_S = 120.0
ROTATE_S = 15


@dataclass
class Live:
    """ends: sockets with an identity. trips: round trips a second without a capture, and with."""

    ends: int = 0
    opened_s: float = 0.0
    ready_s: float = 0.0
    trips: tuple[float, float] = (0.0, 0.0)
    resident_mib: float = 0.0
    top_s: float = 0.0
    metrics_s: float = 0.0
    counted: int = 0
    """Connections that metrics tells of."""
    segments: int = 0
    repeated: list[str] = field(default_factory=list)
    reconciled: list[str] = field(default_factory=list)
    lost: int = 0
    proven: bool = False
    table_bytes: int = 0
    """Of the kernel's table, by /proc/PID/fdinfo."""


def measure(context: Context, ends: int) -> Live:
    """`ends` sockets, a client's and a server's for each connection."""
    raise_limits()
    found, folder = Live(ends=ends), context.folder / "captured"
    with Lab() as lab, contextlib.ExitStack() as stack:
        lab.a.run(many_ports)
        begun = time.monotonic()
        loads = open_all(context, lab, stack, ends // 2)
        found.opened_s = time.monotonic() - begun
        before = robin(loads, WORK_S)
        table = 1 << (ends + ends // 20).bit_length()
        begun = time.monotonic()
        with _start(lab, folder, table) as capture:
            client = Client(choosing.choose(capture.pid), QUESTIONS_S)
            found.ready_s = time.monotonic() - begun
            found.trips = before, robin(loads, WORK_S)
            begun = time.monotonic()
            client.top("rate", 200)
            found.top_s = time.monotonic() - begun
            begun = time.monotonic()
            found.counted = int(client.metrics()["tcp"]["connections"])
            found.metrics_s = time.monotonic() - begun
            found.table_bytes = _table_bytes(capture.pid, table)
            _wait_for_rotations(folder, 2)
            found.trips = before, robin(loads, WORK_S)
            found.resident_mib = memory_mib(capture.pid)
            context.say("many: ending the capture")
    *parts, chain = format_of(folder).verify(folder)
    found.segments = len(parts)
    found.proven = all(part.exit_code == 0 for part in (*parts, chain))
    found.lost = int(chain.lost_total or 0)
    notes = [note for part in parts for note in part.notes]
    found.reconciled = [note for note in notes if note.startswith("reconciled")]
    found.repeated = [line for part in parts for line in part.window if " of " in line]
    return found


def _start(lab: Lab, folder: Path, table: int) -> capturing.Capture:
    options = [
        "--quiet", "--format", "psc", "--netns", lab.a.name, "--netns", lab.b.name,
        "--connections", str(table), "--reconcile", "--metrics", "--rotate-every", f"{ROTATE_S}s",
    ]  # fmt: skip
    return capturing.start("tcp", folder, buffer_mb=64, options=options)


def _wait_for_rotations(folder: Path, count: int) -> None:
    until = time.monotonic() + ROTATIONS_S
    while len(find_segments(folder)) <= count and time.monotonic() < until:
        time.sleep(0.5)


def _table_bytes(pid: int, entries: int) -> int:
    """What the kernel charges for the map of so many entries."""
    for one in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            text = one.read_text(encoding="ascii")
            if re.search(rf"^max_entries:\s*{entries}$", text, re.MULTILINE):
                charged = re.search(r"^memlock:\s*(\d+)$", text, re.MULTILINE)
                return int(charged[1]) if charged else 0
    return 0
