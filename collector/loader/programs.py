# SPDX-License-Identifier: Apache-2.0
"""An image in the kernel: makes the maps, loads the programs, attaches and detaches them.

Nothing is pinned: when the descriptors are closed, or this process ends, nothing is left but
kprobe events, which the next start removes.

The kernel never runs a program inside itself: an event that interrupts its own program would be
lost. So each program that knows of it (its code holds the constant COPY_MARK) is loaded twice, the
mark made 0 in the second copy, unless it hangs where no interrupt comes by (NEVER_NESTED). Both
hang on the same target and the first runs first; the second records what the first was skipped for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from collector.linux import bpf
from collector.linux.btf import Kind
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
"""Tracepoints that a CPU passes in one context alone: that of a task that may sleep (system calls
and calls on sockets), or that of the timers' softirq."""


class TypeIds(Protocol):
    """What is asked of BTF (collector/linux/btf.py): the number of a named type, or None."""

    def find(self, kind: Kind, name: str) -> int | None: ...


@dataclass(frozen=True)
class ProgramSpec:
    """Which function of the image to attach, to what, and whether a capture can do without."""

    function: str
    kind: str
    target: str
    required: bool = False


class Missed(NamedTuple):
    """A program's counters. Events lost: `again` (skipped by both copies, or by the only one's
    `first`) + `nmissed`. run_cnt is the first copy's, run_ns of both; 0 without enable_stats."""

    first: int
    again: int
    nmissed: int
    run_cnt: int
    run_ns: int


@dataclass
class _Program:
    spec: ProgramSpec
    prog_fds: list[int] = field(default_factory=list)
    attachment: Attachment | None = None
    missed_before: int = 0

    @property
    def attached(self) -> bool:
        return self.attachment is not None and bool(self.attachment.fds)

    def detach(self) -> None:
        if self.attachment is not None:
            self.attachment.remove()

    def read_missed(self) -> int:
        """What the kernel counted over all times that it was attached."""
        now = self.attachment.read_missed() if self.attachment is not None else 0
        return self.missed_before + now


@dataclass
class _Copies:
    """A program's copies as load_code() takes them, and what has become of them."""

    spec: ProgramSpec
    copies: Sequence[tuple[str, bytes, str, int]] = ()
    loading: Sequence[Future[int]] = ()
    error: TcpkmonError | None = None


def attach_type_id(btf: TypeIds, kind: str, target: str) -> int:
    """The BTF id that a program of this kind attaches to, 0 for kinds that need none; KernelError
    when this kernel has no such target."""
    named = KINDS[kind].btf
    if named is None:
        return 0
    found = btf.find(named[0], named[1].format(target))
    if found is None:
        raise KernelError(f"this kernel's BTF has no {kind} target {target}")
    return found


def load_code(kind: str, code: bytes, name: str, btf_id: int) -> int:
    """Load bytecode (map descriptors filled in) as a program of this kind; its descriptor."""
    row = KINDS[kind]
    return bpf.prog_load(row.program_type, code, name, btf_id, row.attach_type)


def _load_quickest(kind: str, code: bytes, name: str, btf_id: int, cast: Cast | None) -> int:
    """load_code() with casts that cost nothing, where this kernel takes them."""
    quick = cast_freely(code, cast) if cast is not None else code
    if quick != code:
        with contextlib.suppress(KernelError):
            return load_code(kind, quick, name, btf_id)
    return load_code(kind, code, name, btf_id)


def _never_interrupts_itself(spec: ProgramSpec) -> bool:
    """Whether no interrupt can bring a program to where it is already running on that CPU."""
    kind = KINDS[spec.kind]
    return not kind.nests or (kind.is_tracepoint and spec.target in NEVER_NESTED)


class Loaded(Closing):
    """An image's maps (`maps`: name -> descriptor) and programs.

    `refused` tells which programs that are not required the kernel would not load or attach, and
    why. Use as a context manager, or close().
    """

    def __init__(
        self,
        image: Image,
        btf: TypeIds,
        sizes: Mapping[str, int] | None = None,
        transport: Transport = DEFAULT_TRANSPORT,
    ) -> None:
        """Makes the maps. `sizes` overrides max_entries by name; a perf array always has an entry
        for each possible CPU. KernelError when the kernel refuses one."""
        self._image = image
        self._btf = btf
        self._programs: dict[str, _Program] = {}
        self.maps: dict[str, int] = {}
        self.refused: dict[str, TcpkmonError] = {}
        entries = dict(sizes or {})
        unknown = entries.keys() - {spec.name for spec in image.maps}
        if unknown:
            raise ValueError(f"no such map: {', '.join(sorted(unknown))}")
        try:
            for spec in image.maps:
                count = entries.get(spec.name, spec.max_entries)
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
        """Loads the programs that are not loaded yet; a required one's refusal is raised."""
        found: dict[str, _Copies] = {}
        for spec in specs:
            if spec.function in self._programs or spec.function in found:
                continue
            if spec.kind not in KINDS or spec.function not in self._image.programs:
                raise ValueError(f"no such kind or function: {spec}")
            found[spec.function] = self._copies(spec)
        cast = Cast.find(self._btf)
        # The verifier takes tens of milliseconds for each, and runs on as many CPUs as it is asked.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for copies in found.values():
                copies.loading = [
                    pool.submit(_load_quickest, *copy, cast) for copy in copies.copies
                ]
        for copies in found.values():
            self._keep(copies)
        for copies in found.values():
            if copies.error is not None:
                self._refuse(copies.spec, copies.error)

    def _copies(self, spec: ProgramSpec) -> _Copies:
        """What is to be loaded for a program."""
        try:
            btf_id = attach_type_id(self._btf, spec.kind, spec.target)
        except TcpkmonError as error:
            return _Copies(spec, error=error)
        code = fill_maps(self._image.programs[spec.function], self.maps)
        again = None if _never_interrupts_itself(spec) else second_copy(code)
        copies = [(spec.kind, code, spec.function, btf_id)]
        if again is not None:
            copies.append((spec.kind, again, f"{spec.function[:9]}_again", btf_id))
        return _Copies(spec, copies)

    def _keep(self, copies: _Copies) -> None:
        """Takes over what was loaded: all copies of a program, or none and the first error."""
        program = _Program(copies.spec)
        for loading in copies.loading:
            try:
                program.prog_fds.append(loading.result())
            except TcpkmonError as error:
                copies.error = copies.error or error
        if copies.error is None:
            self._programs[copies.spec.function] = program
        else:
            _close_all(program.prog_fds)

    def _refuse(self, spec: ProgramSpec, error: TcpkmonError) -> None:
        if spec.required:
            raise error
        self.refused[spec.function] = error

    def attach(self) -> None:
        """Attaches what is loaded and not attached; a required program's refusal is raised."""
        for program in list(self._programs.values()):
            if program.attached:
                continue
            spec = program.spec
            program.missed_before = program.read_missed()
            try:
                program.attachment = KINDS[spec.kind].attach(spec.target, program.prog_fds)
            except TcpkmonError as error:
                _close_all(program.prog_fds)
                del self._programs[spec.function]
                self._refuse(spec, error)

    def open_iter(self, function: str) -> int:
        """A file that runs an attached iterator through once when read; the caller closes it."""
        program = self._programs.get(function)
        if program is None or program.attachment is None or not program.attached:
            raise ValueError(f"{function} is no attached iterator")
        return bpf.iter_create(program.attachment.fds[0])

    def attached(self) -> tuple[ProgramSpec, ...]:
        """The programs that are attached now."""
        return tuple(program.spec for program in self._programs.values() if program.attached)

    def missed(self) -> dict[str, Missed]:
        """Function -> counters; good after detach() too, until close()."""
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
        """Detaches all and waits until none runs any more; maps and counters stay."""
        attached = self.attached()
        for program in self._programs.values():
            program.detach()
        if attached:
            wait_for_running()

    def close(self) -> None:
        """Detaches and gives everything back; may be called again."""
        self.detach()
        for program in self._programs.values():
            _close_all(program.prog_fds)
        self._programs.clear()
        _close_all(self.maps.values())
        self.maps.clear()


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
