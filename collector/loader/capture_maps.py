# SPDX-License-Identifier: Apache-2.0
"""A prepared capture in the kernel: its maps and programs, and their counters."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.loader.compiler import Image
from tcpkmon.collector.loader.following import Following
from tcpkmon.collector.loader.parked import Parked, adopt
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.loader.programs import Loaded, ProgramSpec
from tcpkmon.collector.loader.shedding import read_level, shed
from tcpkmon.collector.loader.socket_iterator import Walk
from tcpkmon.collector.plan.budget import Step
from tcpkmon.collector.plan.engine_config import POINTS
from tcpkmon.collector.plan.filter_changes import check_change, steps
from tcpkmon.collector.plan.filters import FILTER_MAP, FOLLOWING, PIDS, Filters
from tcpkmon.collector.plan.probes import require_any
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.control import EXISTING, Program
from tcpkmon.formats.base.errors import KernelError, UsageError

_FIRST = struct.pack("=I", 0)
_CONTROL = np.dtype([("enabled", "=u1", POINTS), ("limit", "=u4", POINTS)])
"""struct klogger_control of bpf/include/klogger.h."""
_U64 = struct.Struct("=Q")
SELF = "collector_self"
"""The map of bpf/include/collector_self.h."""
_WATCHED = 64
"""So many entries of each filter are looked at again while capturing."""


class EngineMaps:
    """The engine's ledger, which the collector reads, and its switches, which it writes.

    head: the type of the head of a CPU's memory (Engine.head). All is off before apply().
    """

    def __init__(self, maps: Mapping[str, int], image: Image, head: np.dtype[Any]) -> None:
        self._maps = maps
        self._head = head
        self._cpu_bytes = next(s.value_size for s in image.maps if s.name == "klogger_cpus")
        self._control = np.zeros(1, _CONTROL)
        self.enabled: NDArray[np.uint8] = self._control["enabled"][0]
        """By point: whether it is recorded. Changes are in force after apply()."""
        self.limits: NDArray[np.uint32] = self._control["limit"][0]
        """By point: at most so many records a second and CPU; 0: no limit. See apply(), too."""

    def apply(self) -> None:
        """Writes switches and limits to the kernel."""
        bpf.map_update(self._maps["klogger_control"], _FIRST, self._control.tobytes())

    def read(self) -> None:
        """Reads switches and limits from the kernel: others may have changed them."""
        raw = bpf.map_lookup(self._maps["klogger_control"], _FIRST, _CONTROL.itemsize)
        assert raw is not None  # an array has all its elements
        self._control[:] = np.frombuffer(raw, _CONTROL)

    def heads(self) -> NDArray[Any]:
        """The head of each possible CPU's memory: (CPUs,)."""
        raw = bpf.map_lookup_percpu(self._maps["klogger_cpus"], _FIRST, self._cpu_bytes)
        assert raw is not None  # an array has all its elements
        head = np.ascontiguousarray(raw[:, : self._head.itemsize])
        result: NDArray[Any] = head.view(self._head)[:, 0]
        return result


def _describe_self() -> bytes:
    """This process, as programs recognise it: struct collector_self."""
    namespace = os.stat("/proc/self/ns/pid")
    return struct.pack("=QQII", namespace.st_dev, namespace.st_ino, os.getpid(), 0)


class Kernel(Closing):
    """The capture's maps and programs in the kernel, until close().

    The filters are in force before anything is attached, and nothing is recorded before
    switch_on(). Call load() or loading(), then loaded.attach(). KernelError where the kernel
    refuses a map. parked: the capture of a process that was killed; it records all the while.
    """

    def __init__(
        self, prepared: Prepared, filters: Filters, parked: Parked | None = None
    ) -> None:
        self._prepared = prepared
        self._parked = parked
        self.buffer_bytes = 0
        self.low_water_percent = 0
        """The size of a CPU's ring, and the share of it to keep free; the session sets both."""
        self.shed_level = 0
        """How many steps of the budget are in force."""
        take = None if parked is None else lambda name: parked.take(f"map/{name}")
        self.loaded = Loaded(prepared.image, prepared.btf, prepared.transport, take)
        self.loaded.named = [one.fd for one in filters.namespaces]
        self._engine = EngineMaps(self.loaded.maps, prepared.image, prepared.engine.head)
        self.heads = self._engine.heads
        self.filters = filters
        try:
            self._behind: dict[str, int] = {}
            maps = self.loaded.maps
            self._filter_entries = self._watched(filters)
            self._following = Following(maps)
            if SELF in maps:
                bpf.map_update(maps[SELF], _FIRST, _describe_self())
            if parked is not None:
                self._engine.read()
                self.shed_level = read_level(maps)
                adopt(self.loaded, self._specs(), parked)
                return
            filters.apply(maps)
            for name, limit in prepared.limits.items():
                self._engine.limits[prepared.numbers[name]] = limit
            self._engine.enabled[list(prepared.numbers.values())] = True
        except BaseException:
            self.loaded.close()
            raise

    def _watched(self, filters: Filters) -> list[tuple[str, bytes, bytes]]:
        """Entries of the maps that filters_in_force() looks at."""
        return [
            (name, *row)
            for name, rows in filters.entries().items()
            # Processes come and go.
            for row in (
                islice(rows, _WATCHED) if name in self.loaded.maps and name != PIDS else ()
            )
        ]

    def set_filters(self, filters: Filters) -> None:
        """Other filters, while it records. UsageError for what cannot change, KernelError."""
        maps = self.loaded.maps
        check_change(self.filters, filters)
        if FILTER_MAP not in maps:
            raise UsageError("the capture's schemata have no filters")
        for name, key, value in steps(self.filters, filters):
            if value is None:
                bpf.map_delete(maps[name], key)
            else:
                bpf.map_update(maps[name], key, value)
        self.filters = filters
        self._filter_entries = self._watched(filters)

    def look_for_namespaces(self) -> None:
        """Programs in network namespaces that have come since; see Loaded."""
        self.loaded.look_for_namespaces([one.inode for one in self.filters.namespaces])

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """These limits, by location or event, and no others."""
        self._engine.limits[:] = 0
        for name, limit in limits.items():
            self._engine.limits[self._prepared.numbers[name]] = limit
        self._engine.apply()

    def shed(self, steps: Sequence[Step]) -> None:
        """Leave out what these steps of the budget say, and nothing else."""
        shed(self.loaded.maps, self._prepared.numbers, steps)
        self.shed_level = len(steps)

    def shed_events(self) -> int:
        """How many events a budget left out so far."""
        return int(self.heads()["shed"].sum()) if self._prepared.sheds else 0

    def load(self) -> None:
        """Loads the programs. KernelError where the kernel refuses a required one."""
        if self._parked is None:
            self.loaded.load(self._specs())
            self._prepared.btf.save()

    def attach(self, at_once: bool = False) -> None:
        """loaded.attach(). Then finds what the processes of the filter have started and opened:
        TcpkmonError where one of them has ended, KernelError where nothing is attached."""
        self.loaded.attach(at_once)
        require_any(self.missing(), self._prepared.numbers.keys() - {"EXISTING"})
        if self._parked is None and self.filters.pids:
            self._following.begin(self.filters.pids)

    def _specs(self) -> Iterator[ProgramSpec]:
        for p in self._prepared.plan.probes:
            yield ProgramSpec(p.name, p.kind, p.target, not KINDS[p.kind].is_optional)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """load() in another thread, inside a `with`: the verifier takes most of a start."""
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(self.load)
            yield
            loading.result()

    def close(self) -> None:
        """Detach and unload everything."""
        self.loaded.close()

    @property
    def unproven(self) -> dict[str, str]:
        """The events whose losses this kernel does not count, and how they are attached."""
        missing = self.missing()
        unproven = self._prepared.plan.unproven.items()
        return {name: how for name, how in unproven if name not in missing}

    def missing(self) -> dict[str, str]:
        """The locations that cannot be recorded, and why: not in the plan, or refused."""
        return {**self._prepared.plan.missing, **self.refused()}

    def refused(self) -> dict[str, str]:
        """The locations whose programs this kernel did not take, and why."""
        return {
            name: self.loaded.refused[probe.name].message
            for probe in self._prepared.plan.probes
            if probe.name in self.loaded.refused
            for name in probe.locations
        }

    def attached(self) -> dict[str, str]:
        """By location or event, kind:target of each of its programs."""
        kinds = {spec.function: f"{spec.kind}:{spec.target}" for spec in self.loaded.attached()}
        found: dict[str, list[str]] = {}
        for probe in self._prepared.plan.probes:
            for location in probe.locations if probe.name in kinds else ():
                found.setdefault(location, []).append(kinds[probe.name])
        return {name: " ".join(dict.fromkeys(places)) for name, places in found.items()}

    def walk(self, namespaces: list[int], step: int) -> Walk:
        """A walk over the open sockets. KernelError where the kernel refused the iterator."""
        if not any(spec.kind == "iter" for spec in self.loaded.attached()):
            raise KernelError("the kernel refused the iterator of sockets", "see collect -v")
        return Walk(lambda: self.loaded.open_iter("existing"), namespaces, step)

    def connections(self) -> int:
        """How many connections have got an identity so far."""
        if "next_connection" not in self.loaded.maps:
            return 0
        value = bpf.map_lookup(self.loaded.maps["next_connection"], _FIRST, 8)
        return int(_U64.unpack(value)[0]) if value else 0

    def switch(self, names: Iterable[str], on: bool) -> None:
        """Switches locations and events on or off."""
        for name in names:
            self._engine.enabled[self._prepared.numbers[name]] = on
        self._engine.apply()
        self._pause()

    def read_switches(self) -> None:
        """Reads the switches and limits that are in force."""
        self._engine.read()
        self._pause()

    def _pause(self) -> None:
        """An event of perf costs more than its program: it stops while nobody wants it."""
        enabled, numbers = self._engine.enabled, self._prepared.numbers
        for probe in self._prepared.plan.probes:
            wanted = probe.serves or any(enabled[numbers[name]] for name in probe.locations)
            if (event := self.loaded.perf_event(probe.name)) is not None:
                event.pause(not wanted)

    def limits(self) -> dict[int, int]:
        """By number: at most so many records a second and CPU; 0: any."""
        return {n: int(self._engine.limits[n]) for n in self._prepared.numbers.values()}

    def filters_in_force(self) -> int:
        """How many entries of the filters are in the maps as they were put there."""
        maps = self.loaded.maps
        return sum(
            bpf.map_lookup(maps[name], key, len(value)) == value
            for name, key, value in self._filter_entries
        )

    def switch_on(self) -> None:
        """Starts recording, if nobody did."""
        if self._parked is None:
            self._engine.apply()
        self._pause()

    def stop(self) -> None:
        """Detaches the programs. Who holds descriptors of their links keeps them attached, but
        nothing is recorded any more."""
        self._engine.enabled[:] = False
        self._engine.apply()
        self.loaded.detach()

    def states(self) -> dict[str, tuple[int, int]]:
        """By name of all that was asked for: its number, and 1 on, 0 off, -1 missing here."""
        missing = self.missing()
        enabled = self._engine.enabled
        return {
            name: (number, -1 if name in missing else int(enabled[number]))
            for name, number in self._prepared.numbers.items()
        }

    def programs(self, heads: NDArray[Any]) -> dict[str, Program]:
        """The counters of each program, by its name; point: of its first location or event.

        Lost are the events for which the kernel skipped the first copy and the second did not run
        either, and those that a kprobe reports.
        """
        missed = self.loaded.missed()
        if any(one.due is not None for one in missed.values()):
            heads = self.heads()  # read after what was due: else more would seem to be missing
        again = heads["guards"]["again"].sum(axis=0, dtype=np.uint32)
        found = {}
        for index, probe in enumerate(self._prepared.plan.probes):
            follows = probe.name in FOLLOWING
            if probe.name not in missed or not (probe.locations or follows):
                continue
            counts = missed[probe.name]
            lost = max(0, counts.first - int(again[index]))
            if counts.due is not None:
                behind = (counts.due - int(again[index])) % (1 << 32)
                # Runs that come between the two readings hide what is missing until the next one.
                lost = self._behind.get(probe.name, 0)
                lost = max(lost, behind) if behind < 1 << 31 else lost
                self._behind[probe.name] = lost
            if probe.name == FOLLOWING[0]:
                lost += self._following.unfollowed()
            first = probe.locations[0] if probe.locations else ""
            point = self._prepared.numbers.get(first, EXISTING)
            found[probe.name] = Program(
                point, lost, counts.nmissed, counts.run_cnt, counts.run_ns
            )
        return _join_followers(found)


def _join_followers(found: dict[str, Program]) -> dict[str, Program]:
    """A process that is not followed begins connections that nobody records: what its programs
    missed is missed where connections begin."""
    if (begins := found.get("state_change")) is not None:
        for name in FOLLOWING:
            if (one := found.pop(name, None)) is not None:
                missed, run_ns = begins.missed + one.missed, begins.run_ns + one.run_ns
                begins = replace(begins, missed=missed, run_ns=run_ns)
        found["state_change"] = begins
    return found
