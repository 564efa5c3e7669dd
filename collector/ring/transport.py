# SPDX-License-Identifier: Apache-2.0
"""What a ring transport is: the way of records from the BPF programs to this process.

A transport has two sides. Its BPF side is one header of bpf/include, which defines
klogger_reserve() and klogger_commit() (klogger.h has their contract). Its other side is one module
of this room, which has a Transport. rings.py lists the transports and drives their rings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tcpkmon.collector.ring.batch import Batch


class CpuRing(Protocol):
    """One CPU's ring. The programs of that CPU write to it until retire()."""

    held_up: bool
    """Whether the last drain() stopped at a record that a program had not committed yet."""

    @property
    def fd(self) -> int:
        """Becomes readable (epoll) when the ring reaches its wake-up threshold."""

    @property
    def is_due(self) -> bool:
        """Whether the ring holds enough records to be read now."""

    def is_dead(self) -> bool:
        """Whether the CPU went offline since the last call, even if it is online again."""

    def drain(self) -> list[Batch]:
        """The records committed since the last drain: at least one Batch, which may be empty."""

    def free(self) -> None:
        """Give the space of all drained records back to the programs."""

    def retire(self) -> None:
        """Take the ring away from the programs, and wait until none of them uses it.

        drain() still returns what it holds.
        """

    def lost(self) -> int:
        """Records that found the ring full, as the ring itself counts them."""

    def close(self) -> None:
        """Release what the ring holds of this process; views of it stay valid."""


class Transport(Protocol):
    """A kind of ring. It has no state: each CpuRing has its own."""

    @property
    def name(self) -> str:
        """What the header of a file and `tcpkmon status` call it."""

    @property
    def header(self) -> str:
        """The name of its BPF side in bpf/include."""

    @property
    def slack_ns(self) -> int:
        """How much earlier than a drain a record can be stamped that the drain did not return."""

    @property
    def lasts(self) -> bool:
        """Whether records stay in a ring whose process is killed, for the next one: BpfRings."""

    def check(self) -> None:
        """Make such a ring, and close it. KernelError or PrivilegeError when refused."""

    def row_bytes(self, entry_size: int) -> int:
        """Bytes that a record of this size takes in a ring."""

    def make_map(self, name: str) -> int:
        """A map that the header declares and this side makes; its descriptor.

        0 for any other map. KernelError when the kernel refuses.
        """

    @property
    def ring(self) -> Callable[..., CpuRing]:
        """The class of its rings. Of maps, a CPU whose programs have none, the type of an entry,
        row_bytes(), bytes of the ring, and its wake-up threshold in records, at most half a ring.

        OSError (ENODEV: the CPU is offline), KernelError or PrivilegeError when the kernel refuses.
        """
