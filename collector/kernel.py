# SPDX-License-Identifier: Apache-2.0
"""A prepared capture in the kernel: its maps and programs, and what they count."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector import bpfsys
from collector.existing import Walk, name_inodes
from collector.filters import Filters
from collector.layout import CPU_HEAD
from collector.preparing import Prepared
from collector.program import Loaded, ProgramSpec
from formats.control import EXISTING, Program

_FIRST = struct.pack("=I", 0)
_U64 = struct.Struct("=Q")
OPTIONAL_KINDS = ("fentry", "fexit", "kprobe")


class Kernel:
    """The capture's programs; a context manager that leaves nothing behind.

    The filters are in force before anything is attached. Raises KernelError where the kernel
    refuses a program that it said it could load.
    """

    def __init__(self, prepared: Prepared, filters: Filters) -> None:
        self._prepared = prepared
        self._numbers = {m.name: m.value for m in prepared.layout.schema.enum("location").members}
        self._cpu_bytes = next(
            spec.value_size for spec in prepared.image.maps if spec.name == "klogger_cpus"
        )
        self.loaded = Loaded(prepared.image, prepared.btf)
        try:
            filters.apply(self.loaded.maps)
            if filters.pids:
                name_inodes(
                    self.loaded.maps["existing_inodes"], filters.pids, prepared.switches.inodes
                )
            self.loaded.load(
                ProgramSpec(p.name, p.kind, p.target, p.kind not in OPTIONAL_KINDS)
                for p in prepared.plan.probes
            )
        except BaseException:
            self.loaded.close()
            raise

    def __enter__(self) -> Kernel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.loaded.close()

    @property
    def events_fd(self) -> int:
        """The perf event array that the rings go into."""
        return self.loaded.maps["events"]

    def missing(self) -> dict[str, str]:
        """The locations that cannot be recorded, and why: by plan, or refused by the kernel."""
        found = dict(self._prepared.plan.missing)
        for probe in self._prepared.plan.probes:
            if probe.name in self.loaded.refused:
                why = self.loaded.refused[probe.name].message
                found.update(dict.fromkeys(probe.locations, why))
        return found

    def attached(self) -> dict[str, str]:
        """By location, how it is attached, as kind:target."""
        kinds = {spec.function: f"{spec.kind}:{spec.target}" for spec in self.loaded.attached()}
        return {
            location: kinds[probe.name]
            for probe in self._prepared.plan.probes
            for location in probe.locations
            if probe.name in kinds
        }

    def walk(self, namespaces: list[int], step: int) -> Walk | None:
        """A walk over the existing sockets; None where the kernel has no iterator."""
        if not any(spec.kind == "iter" for spec in self.loaded.attached()):
            return None
        return Walk(lambda: self.loaded.open_iter("existing"), namespaces, step)

    def heads(self) -> NDArray[Any]:
        """The head of each possible CPU's memory, (CPUs,) of collector.layout.CPU_HEAD."""
        raw = bpfsys.map_lookup_percpu(self.loaded.maps["klogger_cpus"], _FIRST, self._cpu_bytes)
        assert raw is not None  # an array's element is always there
        head = np.ascontiguousarray(raw[:, : CPU_HEAD.itemsize])
        result: NDArray[Any] = head.view(CPU_HEAD)[:, 0]
        return result

    def connections(self) -> int:
        """How many connections were given an identity so far."""
        value = bpfsys.map_lookup(self.loaded.maps["next_connection"], _FIRST, 8)
        return int(_U64.unpack(value)[0]) if value else 0

    def programs(self, heads: NDArray[Any]) -> tuple[Program, ...]:
        """What each program missed, told under its first location.

        The second copy of a program makes up for what the first was skipped for; the rest, and
        what a kprobe reports, is lost.
        """
        again = self._again(heads)
        missed: Mapping[str, Any] = self.loaded.missed()
        rows = []
        for probe in self._prepared.plan.probes:
            if probe.name not in missed or not probe.locations:
                continue
            counts = missed[probe.name]
            lost = max(0, counts.first - again[probe.name])
            point = self._numbers.get(probe.locations[0], EXISTING)
            rows.append(Program(point, lost, counts.nmissed, counts.run_cnt, counts.run_ns))
        return tuple(rows)

    def _again(self, heads: NDArray[Any]) -> dict[str, int]:
        totals = heads["guards"]["again"].sum(axis=0)
        return {
            probe.name: int(totals[index])
            for index, probe in enumerate(self._prepared.plan.probes)
        }
