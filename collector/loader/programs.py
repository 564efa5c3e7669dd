# SPDX-License-Identifier: Apache-2.0
"""An image in the kernel: makes the maps, loads the programs, attaches and detaches them.

Nothing is pinned: when the descriptors are closed, or this process ends, only kprobe events stay,
and the next start removes them.

The kernel never runs a program inside itself, so an event that interrupts its own program would be
lost. So each program whose code has the constant COPY_MARK is loaded twice, with 0 for the mark in
the second copy, unless no interrupt can reach its target (NEVER_NESTED). Both copies are attached
to the same target. The second records the events for which the kernel skipped the first.

A second program makes a tracepoint twice as expensive, and many machines never need it. So at a
tracepoint it is attached when the kernel has skipped the first copy for the first time
(attach_second_copies); the events that were skipped before are lost, and the ledger has them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.nf_hooks import Entrance, NetfilterHook
from tcpkmon.collector.linux.perf_events import PerfEvent
from tcpkmon.collector.linux.places import Places
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.linux.syscalls import close_all, possible_cpus, wait_for_running
from tcpkmon.collector.loader.bytecode import Cast, fill_maps, second_copy
from tcpkmon.collector.loader.compiler import Image
from tcpkmon.collector.loader.program import (
    Missed,
    Program,
    ProgramSpec,
    attach_type_id,
    load_code,
    load_quickest,
    never_interrupts_itself,
)
from tcpkmon.collector.ring.rings import DEFAULT_TRANSPORT
from tcpkmon.collector.ring.transport import Transport
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import TcpkmonError

# For the callers of this module.
__all__ = ["Loaded", "Missed", "ProgramSpec", "attach_type_id", "load_code"]

CONSTANTS = {"symbol_format": b"%ps".ljust(8, b"\0")}
"""What is in maps of one value that nothing can change."""
LOOK_S = 0.05
NAMESPACES_S = 0.2
"""How often to look whether a second copy is needed: a system call for each program."""


class Loaded(Closing):
    """An image's maps (`maps`: name -> descriptor) and programs, until close().

    programs: by function. refused: those that are not required and that the kernel would not load
    or attach, and why.
    """

    def __init__(
        self,
        image: Image,
        btf: Btf,
        transport: Transport = DEFAULT_TRANSPORT,
        take: Callable[[str], int] | None = None,
    ) -> None:
        """Makes the maps; KernelError where the kernel refuses one. A perf array has an entry for
        each possible CPU. take: instead, the descriptor of each map by its name."""
        self._image = image
        self._btf = btf
        self.programs: dict[str, Program] = {}
        self._next_look = self._next_namespaces = 0.0
        self.named: list[int] = []
        """Descriptors of network namespaces in which attach() attaches too, whoever holds them."""
        self.maps: dict[str, int] = {}
        self.refused: dict[str, TcpkmonError] = {}
        try:
            for spec in image.maps:
                if take is not None:
                    self.maps[spec.name] = take(spec.name)
                    continue
                count = spec.max_entries
                if spec.type == bpf.BPF_MAP_TYPE_PERF_EVENT_ARRAY:
                    count = possible_cpus()
                self.maps[spec.name] = transport.make_map(spec.name) or (
                    bpf.map_create(
                        spec.type, spec.key_size, spec.value_size, count, spec.flags, spec.name
                    )
                )
                if spec.name in CONSTANTS:
                    bpf.map_update(self.maps[spec.name], bytes(4), CONSTANTS[spec.name])
                    bpf.map_freeze(self.maps[spec.name])
        except TcpkmonError:
            self.close()
            raise

    def load(self, specs: Iterable[ProgramSpec]) -> None:
        """Loads the programs that are not loaded yet; a required one's refusal is raised.

        Second copies may still be on their way; attach() waits for those that it needs.
        """
        wanted: dict[str, ProgramSpec] = {}
        for spec in specs:
            if spec.kind not in KINDS or spec.function not in self._image.programs:
                raise ValueError(f"no such kind or function: {spec}")
            if spec.function not in self.programs:
                wanted.setdefault(spec.function, spec)
        cast = Cast.find(self._btf)
        errors: dict[str, TcpkmonError] = {}
        copies: dict[str, list[tuple[str, bytes, str, int]]] = {}
        for name, spec in wanted.items():
            try:
                copies[name] = self._copies(spec)
            except TcpkmonError as error:
                errors[name] = error
        # The verifier needs tens of milliseconds for a program, and runs on several CPUs at once.
        # A capture begins without the second copies at tracepoints, so these are the last.
        pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        first = {name: pool.submit(load_quickest, *all_[0], cast) for name, all_ in copies.items()}
        again = {
            name: pool.submit(load_quickest, *all_[1], cast)
            for name, all_ in copies.items()
            if len(all_) > 1
        }
        pool.shutdown(wait=False)
        for name, future in first.items():
            program = Program(wanted[name], [], again.get(name))
            try:
                program.prog_fds.append(future.result())
                self.programs[name] = program
            except TcpkmonError as error:
                errors[name] = error
                program.close()
        for name, spec in wanted.items():
            if name in errors:
                self._refuse(spec, errors[name])

    def _copies(self, spec: ProgramSpec) -> list[tuple[str, bytes, str, int]]:
        """The copies of a program, for load_code()."""
        btf_id = attach_type_id(self._btf, spec.kind, spec.target)
        code = fill_maps(self._image.programs[spec.function], self.maps)
        again = None if never_interrupts_itself(spec, self._btf) else second_copy(code)
        copies = [(spec.kind, code, spec.function, btf_id)]
        if again is not None:
            copies.append((spec.kind, again, f"{spec.function[:9]}_again", btf_id))
        return copies

    def _refuse(self, spec: ProgramSpec, error: TcpkmonError) -> None:
        if spec.required:
            raise error
        self.refused[spec.function] = error

    def attach(self, at_once: bool = False) -> None:
        """Attaches the loaded programs; a required one's refusal is raised.

        at_once: with all second copies; else those at tracepoints wait for
        attach_second_copies().
        """
        for program in list(self.programs.values()):
            if program.attached:
                continue
            spec = program.spec
            program.missed_before = program.read_missed()
            try:
                program.attach(at_once, self.named)
            except TcpkmonError as error:
                program.close()
                del self.programs[spec.function]
                self._refuse(spec, error)

    def finish_loading(self) -> None:
        """Waits for the threads that load second copies; what the kernel refuses is left out."""
        for program in self.programs.values():
            with contextlib.suppress(TcpkmonError):
                program.finish_loading()

    @property
    def is_loading(self) -> bool:
        """Whether threads still load second copies."""
        copies = (program.again for program in self.programs.values())
        return any(copy is not None and not copy.done() for copy in copies)

    def attach_second_copies(self) -> None:
        """Attaches the second copy of each program whose first copy the kernel has skipped.

        To be called often; it looks after each LOOK_S. What a kernel refuses stays detached: the
        ledger has each event that is lost by that.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        for program in self.programs.values():
            with contextlib.suppress(TcpkmonError):
                program.attach_second()

    def enter_by(self, entrance: Entrance | None) -> None:
        """From now on network namespaces are found and entered by this. None: none is, and those
        that have programs keep them."""
        for program in self.programs.values():
            if isinstance(program.attachment, NetfilterHook):
                program.attachment.entrance = entrance

    def look_for_namespaces(self, filtered: Collection[int]) -> None:
        """Attaches programs in network namespaces that have come since: what passes there before
        is counted as missed, where the namespace is recorded. To be called often.

        filtered: the inodes of those that are recorded, empty: all."""
        if time.monotonic() >= self._next_namespaces:
            self._next_namespaces = time.monotonic() + NAMESPACES_S
            for program in self.programs.values():
                if isinstance(program.attachment, NetfilterHook):
                    program.attachment.filtered = filtered
                    program.attachment.refresh()

    def refresh(self) -> None:
        """Attaches programs at places that have come since: namespaces, CPUs.

        To be called about once a second; refused_places() has what the kernel refuses.
        """
        for program in self.programs.values():
            if program.attachment is not None:
                program.attachment.refresh()

    def refused_places(self) -> dict[str, str]:
        """By program and place, why it is not attached there."""
        return {
            f"{program.spec.kind}:{program.spec.target} at {place}": why
            for program in self.programs.values()
            if isinstance(program.attachment, Places)
            for place, why in program.attachment.refused.items()
        }

    def perf_event(self, function: str) -> PerfEvent | None:
        """The event of an attached program of kind perf; None for others."""
        program = self.programs.get(function)
        attachment = program.attachment if program is not None else None
        return attachment if isinstance(attachment, PerfEvent) else None

    def open_iter(self, function: str) -> int:
        """A file; reading it to its end runs an attached iterator once. The caller closes it."""
        program = self.programs.get(function)
        if program is None or program.attachment is None or not program.attached:
            raise ValueError(f"{function} is no attached iterator")
        return bpf.iter_create(program.attachment.fds[0])

    def attached(self) -> tuple[ProgramSpec, ...]:
        """The programs that are attached now."""
        return tuple(program.spec for program in self.programs.values() if program.attached)

    def missed(self) -> dict[str, Missed]:
        """Counters by function; after detach() too, until close()."""
        found = {}
        for function, program in self.programs.items():
            infos = [bpf.prog_info(fd) for fd in program.prog_fds]
            found[function] = Missed(
                infos[0].recursion_misses,
                program.read_missed(),
                infos[0].run_cnt,
                sum(info.run_time_ns for info in infos),
                program.read_due(),
            )
        return found

    def detach(self) -> None:
        """Detaches all programs and waits until none runs; maps and counters stay."""
        attached = self.attached()
        for program in self.programs.values():
            program.detach()
        if attached:
            wait_for_running()

    def close(self) -> None:
        """Detaches, and closes programs and maps; may be called again."""
        self.detach()
        for program in self.programs.values():
            program.close()
        self.programs.clear()
        close_all(self.maps.values())
        self.maps.clear()
