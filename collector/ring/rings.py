# SPDX-License-Identifier: Apache-2.0
"""The rings of all CPUs: between the kernel's programs, which fill them, and the sequencer."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tcpkmon.collector.linux.syscalls import online_cpus, possible_cpus, refused
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.bpf_ring import BpfRing, BpfRings
from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.ring.perf_ring import PerfRings
from tcpkmon.collector.ring.transport import CpuRing, Transport
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError, PrivilegeError, TcpkmonError, UsageError

TRANSPORTS: dict[str, Transport] = {each.name: each for each in (BpfRings(), PerfRings())}
"""By name, the cheapest first."""
DEFAULT_TRANSPORT = TRANSPORTS["bpf"]

MOST_BYTES = 1 << 30
"""Of one ring."""
One = TypeVar("One")
Other = TypeVar("Other")
_HELD_UP_S, _HELD_UP_MOST_S = 0.001, 0.008
_MOST_THREADS = 128
_OUT_OF_ORDER = 16
"""So many of a ring's records may have a lower serial than one before them, as programs nest."""


def choose_transport(name: str | None = None) -> tuple[Transport, tuple[str, ...]]:
    """The transport of this name, or the first that this kernel has; and why not those before it.

    UsageError for a name that there is not, KernelError where the kernel refuses it, or all.
    """
    if name is not None and name not in TRANSPORTS:
        raise UsageError(f"no such rings: '{name}'", f"choose {' or '.join(TRANSPORTS)}")
    refused: list[str] = []
    for transport in TRANSPORTS.values() if name is None else [TRANSPORTS[name]]:
        try:
            transport.check()
        except KernelError as error:
            refused.append(f"this kernel refuses {transport.name} rings: {error.message}")
        else:
            return transport, tuple(refused)
    hint = "run tcpkmon doctor" if name is None else "leave out --rings"
    raise KernelError("; ".join(refused), hint)


class Rings(Closing):
    """The rings of all CPUs that are online, in the maps of a capture. Close it after use.

    pages: of each ring, a power of two. wait() returns when a ring holds `low_water_bytes` (at most
    half a ring). drain() returns views of the rings: copy them, then call free(). One thread uses
    it, except for wake(). KernelError or PrivilegeError when the kernel refuses, UsageError for an
    impossible size. journal: where to keep what retired rings counted; adopts: the programs have
    rings already, of a process that was killed.
    """

    def __init__(
        self,
        maps: Mapping[str, int],
        dtype: np.dtype[Any],
        pages: int,
        low_water_bytes: int,
        transport: Transport = DEFAULT_TRANSPORT,
        journal: Journal | None = None,
        adopts: bool = False,
    ) -> None:
        _check_size(pages)
        self._journal = journal
        self.transport = transport
        self._maps = maps
        self._dtype = dtype
        self._pages = pages
        self._low_water_bytes = max(1, low_water_bytes)
        self._rings: dict[int, CpuRing] = {}
        self._left: list[Batch] = []
        self._lost_before = journal.ring_lost() if journal is not None else {}
        self.refused: dict[int, str] = {}
        """CPUs for which refresh() got no ring, and why; their records count as "no ring"."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        try:
            if adopts:
                self._adopt()
            self._open_all([cpu for cpu in online_cpus() if cpu not in self._rings])
        except TcpkmonError:
            self.close()
            raise

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that have a ring now."""
        return tuple(sorted(self._rings))

    @property
    def buffer_bytes(self) -> int:
        """Of each ring."""
        return self._pages * mmap.PAGESIZE

    @property
    def rows(self) -> int:
        """How many records a CPU's ring holds."""
        return self.buffer_bytes // self.transport.row_bytes(self._dtype.itemsize)

    def wait(self, timeout_s: float) -> bool:
        """Wait until a ring is due, or for wake(); False after timeout_s."""
        until_s = time.monotonic() + timeout_s
        pause_s = _HELD_UP_S
        while True:
            ready = self._is_due()
            if not ready and any(ring.held_up for ring in self._rings.values()):
                # Sleep: the program that holds it up may need this CPU.
                timeout_s = min(timeout_s, pause_s)
                pause_s = min(2 * pause_s, _HELD_UP_MOST_S)
            events = self._epoll.poll(0 if ready else timeout_s)
            # A wake-up may be for records that the last drain returned.
            if self._is_called(events) or ready or self._is_due():
                return True
            timeout_s = until_s - time.monotonic()
            if timeout_s <= 0:
                return False

    def _is_due(self) -> bool:
        return any(ring.is_due for ring in self._rings.values())

    def _is_called(self, events: list[tuple[int, int]]) -> bool:
        """Whether any event is not a ring's wake-up."""
        found = False
        for fd, mask in events:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                found = True
            elif mask & (select.EPOLLHUP | select.EPOLLERR):
                # Its CPU is gone; refresh() will retire the ring. Do not poll it until then.
                self._epoll.unregister(fd)
                found = True
        return found

    def wake(self) -> None:
        """End the current wait(), or the next one. For signal handlers and other threads."""
        os.eventfd_write(self._wake_fd, 1)

    def drain(self) -> list[Batch]:
        """The records since the last drain, at least one Batch a ring, which may be empty."""
        left, self._left = self._left, []
        for _, ring in sorted(self._rings.items()):
            left += ring.drain()
        return left

    def free(self) -> None:
        """Release the records that drain() returned: the views of them are no longer valid."""
        for ring in self._rings.values():
            ring.free()

    def hold(self, waiting: Mapping[int, int]) -> Callable[[], None]:
        """As free(), but records stay in their rings while these have room: see BpfRing.hold().

        It returns what releases them: to be called, by any thread, when all that was released
        is in the file. waiting: by CPU, records that were drained and wait to be released.
        """
        held: list[tuple[BpfRing, int]] = []
        for cpu, ring in self._rings.items():
            if isinstance(ring, BpfRing):
                ring.hold()
                held.append((ring, ring.read - waiting.get(cpu, 0) - _OUT_OF_ORDER))
            else:
                ring.free()

        def release() -> None:
            for ring, count in held:
                ring.release(count)

        return release

    def taken(self) -> dict[int, int]:
        """By CPU, how many records those who had its rings before have released."""
        journal = self._journal
        return {
            cpu: ring.begun_at + (journal.retired(cpu) if journal is not None else 0)
            for cpu, ring in self._rings.items()
            if isinstance(ring, BpfRing)
        }

    def refresh(self) -> None:
        """Retire the rings of CPUs that went offline, open rings for those that came online.

        Call it about once a second. It notices a CPU that did both between two calls.
        """
        online = online_cpus()
        for cpu in [c for c, ring in self._rings.items() if ring.is_dead() or c not in online]:
            self._retire(cpu)
        for cpu in online:
            if cpu not in self._rings:
                try:
                    self._open(cpu)
                    self.refused.pop(cpu, None)
                except (KernelError, PrivilegeError) as error:
                    self.refused[cpu] = error.message

    def resize(self, pages: int, low_water_bytes: int) -> None:
        """Give every CPU a new ring; the next drain() returns what the old ones hold.

        Raises what the constructor does; then the rings have their old sizes.
        """
        _check_size(pages)
        before = self._pages, self._low_water_bytes
        self._pages, self._low_water_bytes = pages, max(1, low_water_bytes)
        cpus = list(self._rings)
        try:
            for cpu in cpus:
                self._retire(cpu)
                self._open(cpu)
        except TcpkmonError:
            self._pages, self._low_water_bytes = before
            for cpu in cpus:
                if cpu in self._rings:
                    self._retire(cpu)
                self._open(cpu)
            raise

    def lost(self) -> dict[int, int]:
        """Records by CPU that found the ring full, as the rings themselves count them."""
        totals = dict(self._lost_before)
        for cpu, ring in self._rings.items():
            totals[cpu] = totals.get(cpu, 0) + ring.lost()
        return totals

    def close(self) -> None:
        """Retire and close the rings; the records that are still in them are lost."""
        _at_once(lambda ring: ring.retire(), list(self._rings.values()))
        for cpu in list(self._rings):
            self._forget(cpu).close()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)

    def _adopt(self) -> None:
        """Take over the rings that the programs have."""
        assert isinstance(self.transport, BpfRings)
        for cpu in range(possible_cpus()):
            ring = self.transport.adopt(self._maps, cpu, self._dtype, self._low_water_bytes)
            if ring is not None:
                self._pages = ring.size_bytes // mmap.PAGESIZE
                self._rings[cpu] = ring
                self._epoll.register(ring.fd, select.EPOLLIN | select.EPOLLET)

    def _open_all(self, cpus: Sequence[int]) -> None:
        """Open rings, those that can be; then raises the first error."""
        refused: list[TcpkmonError] = []

        def make(cpu: int) -> CpuRing | None:
            try:
                return self._make(cpu)
            except TcpkmonError as error:
                refused.append(error)
                return None

        for cpu, ring in zip(cpus, _at_once(make, cpus), strict=True):
            self._take(cpu, ring)
        if refused:
            raise refused[0]

    def _open(self, cpu: int) -> None:
        self._take(cpu, self._make(cpu))

    def _make(self, cpu: int) -> CpuRing | None:
        """A ring for the programs of this CPU; None: it just went offline. Any thread may call."""
        row = self.transport.row_bytes(self._dtype.itemsize)
        low_water = self._low_water_bytes // row
        try:
            return self.transport.ring(
                self._maps, cpu, self._dtype, row, self.buffer_bytes, low_water
            )
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise _explained(error, cpu, self._pages) from error

    def _take(self, cpu: int, ring: CpuRing | None) -> None:
        if ring is not None:
            self._rings[cpu] = ring
            self._epoll.register(ring.fd, select.EPOLLIN | select.EPOLLET)

    def _forget(self, cpu: int) -> CpuRing:
        ring = self._rings.pop(cpu)
        with contextlib.suppress(FileNotFoundError):  # wait() may have done it
            self._epoll.unregister(ring.fd)
        return ring

    def _retire(self, cpu: int) -> None:
        """Retire a ring; the next drain() returns what it holds."""
        self._rings[cpu].retire()
        ring = self._forget(cpu)
        self._left += ring.drain()
        if self._journal is not None and isinstance(ring, BpfRing):
            self._journal.retire(cpu, ring.read, ring.lost())
        self._lost_before[cpu] = self._lost_before.get(cpu, 0) + ring.lost()
        ring.close()


def _at_once(do: Callable[[One], Other], arguments: Sequence[One]) -> list[Other]:
    """The results. In threads: after each change of a map of maps the kernel waits until no
    program runs (synchronize_rcu(), 9 to 18 ms), and for all that wait at once it waits once."""
    if not arguments:
        return []
    with ThreadPoolExecutor(min(len(arguments), _MOST_THREADS)) as pool:
        return list(pool.map(do, arguments))


def _check_size(pages: int) -> None:
    if pages < 1 or pages & (pages - 1):
        raise UsageError(f"a ring cannot have {pages} pages", "take a power of two")
    if pages * mmap.PAGESIZE > MOST_BYTES:
        raise UsageError(
            f"a ring of {pages * mmap.PAGESIZE >> 20} MiB is too large",
            f"take one of {MOST_BYTES >> 20} MiB at most",
        )


def pages_of(buffer_bytes: int) -> int:
    """The largest power of two of pages that fits in so many bytes, at least 1."""
    return 1 << max(0, (buffer_bytes // mmap.PAGESIZE).bit_length() - 1)


def _explained(error: OSError, cpu: int, pages: int) -> KernelError | PrivilegeError:
    kind = refused(error, f"opening the ring of CPU {cpu} ({pages} pages)")
    if error.errno in {errno.ENOMEM, errno.EPERM, errno.EAGAIN} and not kind.hint:
        return KernelError(kind.message, "try a smaller --buffer-size")
    return kind
