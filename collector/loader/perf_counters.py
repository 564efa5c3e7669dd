# SPDX-License-Identifier: Apache-2.0
"""The counters that a schema's `arch` binds: perf events that its programs read.

collector/loader/prepare.py binds them and puts their C text before the program. The session opens
them and enters them in the program's maps. docs/schema-language.md explains each counter.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import platform
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tcpkmon.collector.linux.bpf import map_delete, map_update
from tcpkmon.collector.linux.perf_names import Counter, find_counter, table
from tcpkmon.collector.linux.syscalls import (
    online_cpus,
    perf_attributes,
    perf_event_open,
    refused,
)
from tcpkmon.collector.plan.counter_names import ANY, MACHINES, check
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError, PrivilegeError, SchemaError
from tcpkmon.formats.schema import Arch

_FORMAT_TIMES = 1 | 2
_FLAG_PINNED = 1 << 2
_LACKING = "tcpkmon schema list-counters tells which ones it has"
_NUMBER = re.compile(r"counter([0-9]+)", re.ASCII)


@dataclass(frozen=True)
class Bound:
    """A counter and its number in the schema: counter1 has number 1."""

    number: int
    counter: Counter

    @property
    def map_name(self) -> str:
        """The perf event array from which the program reads it, with an entry for each CPU."""
        return f"klogger_counter{self.number}"


@dataclass(frozen=True)
class Listed:
    """A counter, and why this machine lacks it ('' where it does not)."""

    counter: Counter
    why_not: str


def this_machine() -> str:
    """This machine's name for `arch`: x86_64, arm64, or what uname says."""
    name = platform.machine()
    return {"aarch64": "arm64", "amd64": "x86_64"}.get(name, name)


def list_counters() -> tuple[Listed, ...]:
    """Every counter that has a name, tried here. PrivilegeError where perf events are refused."""
    return tuple(Listed(counter, why_not(counter)) for counter in table().values())


def why_not(counter: Counter) -> str:
    """Why this machine lacks the counter, or ''. PrivilegeError where perf events are refused."""
    try:
        os.close(_open(counter, online_cpus()[0]))
    except OSError as error:
        if error.errno in {errno.EPERM, errno.EACCES}:
            raise refused(error, f"opening the counter {counter.name}") from error
        reason = os.strerror(error.errno or 0)
        if not counter.hardware:
            return reason
        return f"its CPU has none, or shows none to a virtual machine ({reason})"
    return ""


def bind(arches: Sequence[Arch], machine: str | None = None) -> tuple[Bound, ...]:
    """The counters that the `arch` blocks for this machine bind, by number.

    Where several blocks bind a number, the one that names the machine itself wins, then PentiumIV,
    then any. SchemaError lists all unknown names, KernelError all counters that this machine lacks.
    """
    problems = check(arches)
    if problems:
        raise SchemaError(problems, _LACKING)
    machine = this_machine() if machine is None else machine
    found: dict[int, Counter] = {}
    for arch in sorted(arches, key=lambda arch: (arch.name == ANY, arch.name != machine)):
        if machine not in MACHINES[arch.name] and arch.name != ANY:
            continue
        for word, name in arch.counters:
            counter = find_counter(name)
            number = _NUMBER.fullmatch(word)
            assert counter is not None and number is not None  # by check() and the grammar
            found.setdefault(int(number[1]), counter)
    lacking = {counter.name: why_not(counter) for counter in found.values()}
    reasons = [f"{name}: {reason}" for name, reason in lacking.items() if reason]
    if reasons:
        raise KernelError(f"this machine lacks the counter {'; '.join(reasons)}", _LACKING)
    return tuple(Bound(number, found[number]) for number in sorted(found))


def c_text(bound: Sequence[Bound], arches: Iterable[Arch] = ()) -> str:
    """C declarations for a schema's program: a map for each counter, and functions that read them.

    Counters that `arches` bind for other machines are declared unavailable: clang refuses their
    use and says why. A counter that cannot be read (its CPU just came online) reads as
    KLOGGER_NO_COUNTER.
    """
    lines = [f"#define KLOGGER_ARCH_{name} {number}" for name, number in _ARCH_NUMBERS.items()]
    compiled = this_machine().upper()
    compiled = compiled if compiled in _ARCH_NUMBERS else "UNKNOWN"
    lines += [
        f"#define KLOGGER_ARCH_COMPILED KLOGGER_ARCH_{compiled}",
        "typedef u32 klogger_arch_t;",
        "#define KLOGGER_NO_COUNTER (~0ULL)",
    ]
    names: set[str] = set()
    for one in bound:
        read = f"klogger_read_counter{one.number}()"
        lines += [
            f"BPF_PERF_ARRAY({one.map_name}, 1);",
            f"#define KLOGGER_COUNTER{one.number} {one.number}",
            f"{_INLINE} u64 klogger_read_counter{one.number}(void) {{",
            f"    s64 value = {one.map_name}.perf_read(CUR_CPU_IDENTIFIER);",
            "    return value < 0 && value >= -4095 ? KLOGGER_NO_COUNTER : value;",
            "}",
        ]
        if one.counter.name not in names:
            name = f"klogger_get_{one.counter.name}"
            lines += [
                f"{_INLINE} u64 {name}_ll(void) {{ return {read}; }}",
                f"{_INLINE} unsigned long {name}(void) {{ return (u32){read}; }}",
            ]
        names.add(one.counter.name)
    lines += _by_number(bound)
    unbound = {name for arch in arches for _, name in arch.counters} - names
    lines += _unavailable(*(f"klogger_get_{name}{{}}(void)" for name in sorted(unbound)))
    return "\n".join(lines) + "\n"


_ARCH_NUMBERS = {"UNKNOWN": 0, "X86_64": 1, "ARM64": 2}
_INLINE = "static __always_inline"


def _by_number(bound: Sequence[Bound]) -> list[str]:
    if not bound:
        return _unavailable("klogger_get_counter{}(unsigned long ctr)")
    return [
        f"{_INLINE} u64 klogger_get_counter_ll(unsigned long ctr) {{",
        *(f"    if (ctr == {b.number}) return klogger_read_counter{b.number}();" for b in bound),
        "    return KLOGGER_NO_COUNTER;",
        "}",
        f"{_INLINE} unsigned long klogger_get_counter(unsigned long ctr) {{",
        "    return (u32)klogger_get_counter_ll(ctr);",
        "}",
    ]


def _unavailable(*functions: str) -> list[str]:
    """Declarations of functions whose use is an error. {}: nothing, and _ll, in their names."""
    reason = f"no arch of the schema binds it for {this_machine()}"
    return [
        f'u64 {function.format(suffix)} __attribute__((unavailable("{reason}")));'
        for function in functions
        for suffix in ("", "_ll")
    ]


class OpenCounters(Closing):
    """The counters of all CPUs, open and entered in a program's maps until close().

    maps: Loaded.maps (programs.py). KernelError or PrivilegeError where the kernel refuses one,
    KernelError also where the hardware cannot count all of them at once.
    """

    def __init__(
        self, maps: Mapping[str, int], bound: Sequence[Bound], cpus: Iterable[int] | None = None
    ) -> None:
        self._bound = tuple(bound)
        self._maps = {one: maps[one.map_name] for one in self._bound}
        self._open: dict[tuple[int, Bound], tuple[int, int]] = {}
        self.refused: dict[int, str] = {}
        """CPUs for which refresh() could not open all counters, and why. Programs read
        KLOGGER_NO_COUNTER there."""
        try:
            for cpu in online_cpus() if cpus is None else cpus:
                self._add(cpu)
        except (KernelError, PrivilegeError):
            self.close()
            raise

    def refresh(self, cpus: Iterable[int] | None = None) -> None:
        """Closes the counters of CPUs that went offline, opens them on those that came online.

        Call it about once a second. On a CPU that comes back a counter begins at 0 again.
        """
        online = set(online_cpus() if cpus is None else cpus)
        for (cpu, one), (fd, running_ns) in list(self._open.items()):
            now_ns = _running_ns(fd)
            if cpu not in online or now_ns == running_ns:
                self._remove(cpu, one)
            else:
                self._open[cpu, one] = (fd, now_ns)
        for cpu in sorted(online):
            try:
                self._add(cpu)
                self.refused.pop(cpu, None)
            except (KernelError, PrivilegeError) as error:
                self.refused[cpu] = error.message

    def close(self) -> None:
        """Removes all counters from the maps, and closes them."""
        for cpu, one in list(self._open):
            self._remove(cpu, one)

    def _add(self, cpu: int) -> None:
        for one in self._bound:
            if (cpu, one) in self._open:
                continue
            try:
                fd = _open(one.counter, cpu)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return  # the CPU has just gone offline
                raise refused(error, f"opening the counter {one.counter.name}") from error
            if _running_ns(fd) < 0:
                os.close(fd)
                raise KernelError(
                    f"CPU {cpu} has no room for the counter {one.counter.name} beside the others",
                    "bind fewer hardware counters, or end what else uses them (perf, the watchdog)",
                )
            self._open[cpu, one] = (fd, -1)
            map_update(self._maps[one], struct.pack("=I", cpu), struct.pack("=I", fd))

    def _remove(self, cpu: int, one: Bound) -> None:
        fd, _ = self._open.pop((cpu, one))
        with contextlib.suppress(KernelError):  # the map may be closed already
            map_delete(self._maps[one], struct.pack("=I", cpu))
        os.close(fd)


@functools.cache
def _attributes(counter: Counter) -> bytes:
    """struct perf_event_attr. A hardware counter is pinned: else it would count only part of the
    time where several share the hardware."""
    flags = counter.flags | (_FLAG_PINNED if counter.hardware else 0)
    return perf_attributes(counter.type, counter.config, read_format=_FORMAT_TIMES, flags=flags)


def _open(counter: Counter, cpu: int) -> int:
    return perf_event_open(_attributes(counter), cpu)


def _running_ns(fd: int) -> int:
    """How long it has counted; -1 where the hardware has no room for it: then a read is empty."""
    raw = os.read(fd, 24)
    return int(struct.unpack("=QQQ", raw)[2]) if len(raw) == 24 else -1
