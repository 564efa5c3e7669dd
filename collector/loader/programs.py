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
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from collector.linux import bpf
from collector.linux.btf import Btf
from collector.linux.probe_kinds import KINDS, Attachment
from collector.linux.syscalls import wait_for_running
from collector.loader.bytecode import Cast, cast_freely, fill_maps, second_copy
from collector.loader.compiler import Image
from collector.ring.rings import DEFAULT_TRANSPORT
from collector.ring.transport import Transport
from formats.base.closing import Closing
from formats.base.errors import KernelError, TcpkmonError

NEVER_NESTED = frozenset(
    ["sys_enter", "sys_exit", "sock_send_length", "sock_recv_length", "timer_expire_entry"]
)
"""Tracepoints that run in one context alone: in a task that may sleep (system calls and calls on
sockets), or in the softirq of timers."""
LOOK_S = 0.05
"""How often to look whether a second copy is needed: a system call for each program."""


@dataclass(frozen=True)
class ProgramSpec:
    """A function of the image, its target, and whether a capture needs it."""

    function: str
    kind: str
    target: str
    required: bool = False


class Missed(NamedTuple):
    """A program's counters.

    first, again: events for which the kernel skipped the first copy, and the second; nmissed:
    events that a kprobe lost; run_cnt: runs of the first copy; run_ns: of both. The last two are 0
    without bpf.enable_stats().
    """

    first: int
    again: int
    nmissed: int
    run_cnt: int
    run_ns: int


@dataclass
class _Program:
    spec: ProgramSpec
    prog_fds: list[int]
    """Of its copies, as far as they are loaded."""
    again: Future[int] | None = None
    """The second copy, which a thread loads."""
    attachment: Attachment | None = None
    second: Attachment | None = None
    """The second copy, where it was attached later."""
    missed_before: int = 0

    @property
    def attached(self) -> bool:
        return self.attachment is not None and bool(self.attachment.fds)

    def attach(self, at_once: bool) -> None:
        """Attaches the first copy, and the second too unless it may wait (at_once: never)."""
        kind = KINDS[self.spec.kind]
        copies = None if at_once or not kind.is_tracepoint else 1
        if copies is None:
            self._wait_for_second()
        self.second = None
        self.attachment = kind.attach(self.spec.target, self.prog_fds[:copies])
        self.attachment.refresh()

    def attach_second(self) -> None:
        """Attaches the second copy if the kernel has skipped the first; KernelError."""
        attached = self.attachment.fds if self.attachment is not None else []
        if (
            self.second is None
            and len(attached) == 1
            and bpf.prog_info(self.prog_fds[0]).recursion_misses
        ):
            self._wait_for_second()
            if len(self.prog_fds) > 1:
                self.second = KINDS[self.spec.kind].attach(self.spec.target, self.prog_fds[1:])

    def _wait_for_second(self) -> None:
        """The second copy is loaded, if there is one; KernelError."""
        if (again := self.again) is not None:
            self.again = None
            self.prog_fds.append(again.result())

    def close(self) -> None:
        """Unloads the copies."""
        with contextlib.suppress(TcpkmonError):
            if self.again is not None and not self.again.cancel():
                self._wait_for_second()
        _close_all(self.prog_fds)

    def detach(self) -> None:
        for attachment in (self.attachment, self.second):
            if attachment is not None:
                attachment.remove()

    def read_missed(self) -> int:
        """What the kernel counted in all times that it was attached."""
        now = self.attachment.read_missed() if self.attachment is not None else 0
        return self.missed_before + now


def attach_type_id(btf: Btf, kind: str, target: str) -> int:
    """The BTF id of the target, 0 for kinds that need none; KernelError where there is none."""
    named = KINDS[kind].btf
    if named is None:
        return 0
    found = btf.find(named[0], named[1].format(target))
    if found is None:
        raise KernelError(f"this kernel's BTF has no {kind} target {target}")
    return found


def load_code(kind: str, code: bytes, name: str, btf_id: int) -> int:
    """Load bytecode, which has its map descriptors, as a program of this kind; its descriptor."""
    row = KINDS[kind]
    return bpf.prog_load(row.program_type, code, name, btf_id, row.attach_type)


def _load_quickest(kind: str, code: bytes, name: str, btf_id: int, cast: Cast | None) -> int:
    """load_code() with casts that cost nothing, where this kernel accepts them."""
    quick = cast_freely(code, cast) if cast is not None else code
    if quick != code:
        with contextlib.suppress(KernelError):
            return load_code(kind, quick, name, btf_id)
    return load_code(kind, code, name, btf_id)


def _never_interrupts_itself(spec: ProgramSpec) -> bool:
    """Whether no interrupt can reach the program's target while it runs there already."""
    kind = KINDS[spec.kind]
    return not kind.nests or (kind.is_tracepoint and spec.target in NEVER_NESTED)


class Loaded(Closing):
    """An image's maps (`maps`: name -> descriptor) and programs, until close().

    refused: the programs that are not required and that the kernel would not load or attach, and
    why.
    """

    def __init__(
        self, image: Image, btf: Btf, transport: Transport = DEFAULT_TRANSPORT
    ) -> None:
        """Makes the maps; KernelError where the kernel refuses one. A perf array has an entry for
        each possible CPU."""
        self._image = image
        self._btf = btf
        self._programs: dict[str, _Program] = {}
        self._next_look = 0.0
        self.maps: dict[str, int] = {}
        self.refused: dict[str, TcpkmonError] = {}
        try:
            for spec in image.maps:
                count = spec.max_entries
                if spec.type == bpf.BPF_MAP_TYPE_PERF_EVENT_ARRAY:
                    count = bpf.possible_cpus()
                self.maps[spec.name] = transport.make_map(spec.name) or (
                    bpf.map_create(
                        spec.type, spec.key_size, spec.value_size, count, spec.flags, spec.name
                    )
                )
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
            if spec.function not in self._programs:
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
        first = {name: pool.submit(_load_quickest, *all_[0], cast) for name, all_ in copies.items()}
        again = {
            name: pool.submit(_load_quickest, *all_[1], cast)
            for name, all_ in copies.items()
            if len(all_) > 1
        }
        pool.shutdown(wait=False)
        for name, future in first.items():
            program = _Program(wanted[name], [], again.get(name))
            try:
                program.prog_fds.append(future.result())
                self._programs[name] = program
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
        again = None if _never_interrupts_itself(spec) else second_copy(code)
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
        for program in list(self._programs.values()):
            if program.attached:
                continue
            spec = program.spec
            program.missed_before = program.read_missed()
            try:
                program.attach(at_once)
            except TcpkmonError as error:
                program.close()
                del self._programs[spec.function]
                self._refuse(spec, error)

    @property
    def is_loading(self) -> bool:
        """Whether threads still load second copies."""
        copies = (program.again for program in self._programs.values())
        return any(copy is not None and not copy.done() for copy in copies)

    def attach_second_copies(self) -> None:
        """Attaches the second copy of each program whose first copy the kernel has skipped.

        To be called often; it looks after each LOOK_S. What a kernel refuses stays detached: the
        ledger has each event that is lost by that.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        for program in self._programs.values():
            with contextlib.suppress(TcpkmonError):
                program.attach_second()

    def open_iter(self, function: str) -> int:
        """A file; reading it to its end runs an attached iterator once. The caller closes it."""
        program = self._programs.get(function)
        if program is None or program.attachment is None or not program.attached:
            raise ValueError(f"{function} is no attached iterator")
        return bpf.iter_create(program.attachment.fds[0])

    def attached(self) -> tuple[ProgramSpec, ...]:
        """The programs that are attached now."""
        return tuple(program.spec for program in self._programs.values() if program.attached)

    def missed(self) -> dict[str, Missed]:
        """Counters by function; after detach() too, until close()."""
        found = {}
        for function, program in self._programs.items():
            infos = [bpf.prog_info(fd) for fd in program.prog_fds]
            found[function] = Missed(
                infos[0].recursion_misses,
                sum(info.recursion_misses for info in infos[1:]),
                program.read_missed(),
                infos[0].run_cnt,
                sum(info.run_time_ns for info in infos),
            )
        return found

    def detach(self) -> None:
        """Detaches all programs and waits until none runs; maps and counters stay."""
        attached = self.attached()
        for program in self._programs.values():
            program.detach()
        if attached:
            wait_for_running()

    def close(self) -> None:
        """Detaches, and closes programs and maps; may be called again."""
        self.detach()
        for program in self._programs.values():
            program.close()
        self._programs.clear()
        _close_all(self.maps.values())
        self.maps.clear()


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
