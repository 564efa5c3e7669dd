# SPDX-License-Identifier: Apache-2.0
"""Rates and costs of a running capture, for `tcpkmon status` and the metrics.

The session tells it of each drain, and calls beat() once a second. The figures are those of the
last SPAN seconds:

    beats     |    |    |    |    |    |   now
    samples   first                    last     rates: last less first; peaks: of all
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.formats.base.closing import Closing

SPAN = 5
"""Seconds."""
_STATM = Path("/proc/self/statm")
_TIME_AT = 4
"""Where an entry in a ring has its CLOCK_MONOTONIC."""
_I64 = np.dtype("=i8")


@dataclass(frozen=True)
class _Sample:
    """The counts at one beat, and the peaks since the beat before."""

    at_s: float
    cpu_s: float
    records: int
    nbytes: int
    fill: float
    lag_ns: int


class Pulse(Closing):
    """Make it while this process may still open the output's folder. One thread uses it.

    output: the file's path; "-" has no disk. records, nbytes: what was written so far.
    """

    def __init__(
        self, output: str, records: Callable[[], int], nbytes: Callable[[], int]
    ) -> None:
        self._records, self._nbytes = records, nbytes
        self._fill, self._lag_ns = 0.0, 0
        self._folder: int | None = None
        if output != "-":
            with suppress(OSError):
                folder = os.path.dirname(os.path.abspath(output))
                self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._samples: deque[_Sample] = deque(maxlen=SPAN + 1)

    def drained(self, batches: Iterable[Batch], rows: int) -> None:
        """Note how full the rings were, and how long their oldest record had waited.

        rows: how many records a ring holds.
        """
        counts: dict[int, int] = {}
        for batch in batches:
            if count := len(batch.entries):
                counts[batch.cpu] = counts.get(batch.cpu, 0) + count
                first_ns = int(batch.entries[:1].getfield(_I64, _TIME_AT)[0])
                self._lag_ns = max(self._lag_ns, batch.read_before_ns - first_ns)
        if counts:
            self._fill = max(self._fill, max(counts.values()) / rows)

    def beat(self) -> None:
        """Take a sample. Call it about once a second."""
        self._samples.append(
            _Sample(
                time.monotonic(), time.process_time(), self._records(), self._nbytes(),
                self._fill, self._lag_ns,
            )
        )  # fmt: skip
        self._fill, self._lag_ns = 0.0, 0

    def told(self) -> dict[str, Any]:
        """What `tcpkmon status` says: rates, rings, cost. Rates are 0 before the second beat."""
        rates = {"records/s": 0.0, "bytes/s": 0.0}
        cpu = 0.0
        if len(self._samples) > 1:
            first, last = self._samples[0], self._samples[-1]
            span_s = last.at_s - first.at_s
            rates["records/s"] = round((last.records - first.records) / span_s, 1)
            rates["bytes/s"] = round((last.nbytes - first.nbytes) / span_s, 1)
            cpu = round(100 * (last.cpu_s - first.cpu_s) / span_s, 1)
        fill = max([self._fill, *(sample.fill for sample in self._samples)])
        lag_ns = max([self._lag_ns, *(sample.lag_ns for sample in self._samples)])
        return {
            "rates": rates,
            "ring_fill": round(min(fill, 1.0), 4),
            "reader_lag_s": round(lag_ns / 1e9, 6),
            "cost": {
                "cpu_percent": cpu,
                "cpu_s": round(time.process_time(), 3),
                "memory_bytes": resident_bytes(),
            },
            "disk_free_bytes": self._free_bytes(),
        }

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            os.close(folder)

    def _free_bytes(self) -> int | None:
        """What a user without privileges may still write to the output's file system."""
        if self._folder is None:
            return None
        try:
            found = os.fstatvfs(self._folder)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize


def resident_bytes() -> int:
    """Resident memory of this process; 0 where /proc does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return 0
