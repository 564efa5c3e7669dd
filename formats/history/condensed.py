# SPDX-License-Identifier: Apache-2.0
"""What the condenser reports; docs/monitor-commands.md defines each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Times:
    """Durations in seconds: their number, mean, median, 95th percentile and largest."""

    count: int
    mean: float
    p50: float
    p95: float
    most: float

    @classmethod
    def of(cls, durations_ns: NDArray[Any]) -> Times | None:
        """None if there is none."""
        if not len(durations_ns):
            return None
        half, p95, most = np.percentile(durations_ns, (50, 95, 100)) / 1e9
        mean = float(durations_ns.mean()) / 1e9
        return cls(len(durations_ns), mean, float(half), float(p95), float(most))


@dataclass(frozen=True)
class Group:
    """What the processes of a class, a user or a cgroup did.

    processes: those seen. cpu: CPU time of a process without its page faults. io: time of a disk
    request without those of page faults, from its insertion, so the queue is included. faults with
    I/O (physical) and without (virtual). login and logout: sessions, and the time between them.
    None: not recorded, or it did not occur.
    """

    name: str
    processes: int
    response: Times | None
    think: Times | None
    cpu: Times | None
    io: Times | None
    physical_faults: int | None
    virtual_faults: int | None
    login: Times | None = None
    logout: Times | None = None


@dataclass(frozen=True)
class Device:
    """A block device: its number, requests, bytes, the share of time in which it had a request
    (without queueing), and how many were queued or served on average."""

    number: int
    requests: int
    bytes: int
    utilisation: float
    mean_depth: float


@dataclass(frozen=True)
class Slice:
    """A part of the session. Shares are 0 to 1. peak: names of what is highest here."""

    start_s: float
    stop_s: float
    transactions: int
    response: Times | None
    cpu: float | None
    disk: float | None
    faults: int | None
    peak: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shares:
    """True, virtual and total: without page faults, for page faults, all. None: not recorded."""

    true: float
    virtual: float
    total: float


@dataclass(frozen=True)
class Condensed:
    """The whole report; see the module. by_user: the classes are of users, not of processes.

    process_life: from a fork to the exit. between_processes: from an exit to the next fork.
    """

    head: Mapping[str, Any]
    limits_ms: tuple[float, float]
    classes: Sequence[Group]
    cpu: Shares | None
    disk: Shares | None
    faults_per_s: Shares | None
    users: Sequence[Group]
    cgroups: Sequence[Group]
    devices: Sequence[Device]
    cpus: Mapping[int, float]
    slices: Sequence[Slice]
    by_user: bool = False
    process_life: Times | None = None
    between_processes: Times | None = None
    notes: Sequence[str] = field(default_factory=tuple)
