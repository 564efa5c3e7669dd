# SPDX-License-Identifier: Apache-2.0
"""The event monitor's groups as a capture, which the experiments switch on and off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.experiments.tools import cpu_seconds
from tcpkmon.collector import capturing
from tcpkmon.collector.commands.history.monitor import GROUPS

ALL = tuple(GROUPS)
BUFFER_MB = 16
"""Of each CPU."""


@dataclass(frozen=True)
class Told:
    """What a capture has done: records by event, those lost, and its own CPU time."""

    records: dict[str, int]
    lost: int
    cpu_s: float

    def since(self, before: Told) -> Told:
        records = {name: count - before.records[name] for name, count in self.records.items()}
        return Told(records, self.lost - before.lost, self.cpu_s - before.cpu_s)

    @property
    def total(self) -> int:
        return sum(self.records.values())


def look(capture: capturing.Control) -> Told:
    status = capture.status()
    records = {one["name"]: int(one["written"]) for one in status["events"]}
    lost = sum(int(one["lost"]) for one in status["events"])
    return Told(records, lost, cpu_seconds(capture.pid))


@contextmanager
def monitoring(
    folder: Path, groups: Sequence[int] = ALL, *, on: bool = True, keep: bool = False
) -> Iterator[capturing.Capture]:
    """Records these groups into folder / "monitor.out", as `tcpkmon monitor -on` does.

    on: else it is attached and switched off. keep: leave the log there.
    """
    schemata = list(dict.fromkeys(GROUPS[group][1] for group in groups))
    names = [name for group in groups for name in GROUPS[group][2]]
    log = folder / "monitor.out"
    options = ["--quiet", "--locations", ",".join(names)]
    try:
        with capturing.start(
            schemata, log, buffer_mb=BUFFER_MB, force=True, options=options
        ) as capture:
            if not on:
                capture.disable()
            yield capture
    finally:
        if not keep:
            shutil.rmtree(log, ignore_errors=True)


@contextmanager
def recording(
    folder: Path, *schemata: str, options: Sequence[str] = (), buffer_mb: float = BUFFER_MB
) -> Iterator[Path]:
    """Records these schemata; the folder of the log, which is whole after the body and stays."""
    log = folder / "-".join(schemata)
    with capturing.start(
        schemata, log, buffer_mb=buffer_mb, force=True, options=["--quiet", *options]
    ):
        yield log
