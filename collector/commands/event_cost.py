# SPDX-License-Identifier: Apache-2.0
"""Measures what logging an event costs on this machine: klogger(EVENT, constants) in a loop.

A program for each event uses the engine of a capture (bpf/include/klogger.h). BPF_PROG_TEST_RUN
runs it on one CPU, and its ring is drained between two runs. Nothing is attached.
"""

from __future__ import annotations

import os
import statistics
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.collector.loader.bytecode import fill_maps
from tcpkmon.collector.loader.capture_maps import EngineMaps
from tcpkmon.collector.loader.compiler import compile_text
from tcpkmon.collector.loader.prepare import check_machine
from tcpkmon.collector.loader.programs import Loaded, load_code
from tcpkmon.collector.plan import kernel_types
from tcpkmon.collector.plan.engine_config import Engine, make_engine
from tcpkmon.collector.plan.event_codegen import event_lines
from tcpkmon.collector.plan.event_layout import EventLayout, Slot, lay_out_sources, ring_dtype
from tcpkmon.collector.plan.probes import Plan
from tcpkmon.collector.plan.schema_sources import (
    BASE,
    TCP,
    find_sources,
    made_events,
    read_texts,
)
from tcpkmon.collector.plan.schema_sources import shipped_names as all_shipped
from tcpkmon.collector.ring.rings import Rings, pages_of
from tcpkmon.formats.base.errors import KernelError, TcpkmonError, UsageError
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.klogger.describe import describe_event
from tcpkmon.formats.klogger.encode import pack_event
from tcpkmon.formats.klogger.table import RECORD_HEAD_BYTES, LogFormat
from tcpkmon.formats.schema import Schema

ITERATIONS = 1000
ROUNDS = 9
_BATCH = 100
"""Calls in one run of a program, during which interrupts are off."""
_RING_BYTES = 4 << 20
_ZERO = struct.pack("=I", 0)
_EMPTY = "klogger_benchmark_empty"


@dataclass(frozen=True)
class Cost:
    """An event's cost in ns for a call: medians of all rounds, the fastest and slowest round."""

    schema: str
    event: str
    record_bytes: int
    """Of a record in the ring: the size of the schemata's largest."""
    enabled_ns: float
    fastest_ns: float
    slowest_ns: float
    disabled_ns: float | None
    """None for the base events, which nothing switches off."""
    written: int
    """Records that reached the ring: one for each call, else there is no result."""


def shipped_names() -> tuple[str, ...]:
    """The shipped schemata that log events by klogger()."""
    return tuple(name for name in all_shipped() if name not in {BASE, TCP})


def measure(
    names: Sequence[str] = (),
    schemata: Sequence[str] = (),
    iterations: int = ITERATIONS,
    rounds: int = ROUNDS,
    cpu: int | None = None,
) -> Iterator[Cost]:
    """The cost of these events of the schemata, which are loaded together; no names: all events.

    Without `schemata`: of all shipped ones, each loaded alone, and of base, whose events the
    collector makes: there the cost of making one. UsageError for unknown events, before it yields
    anything. KernelError where the kernel refuses a program, and where the record
    of a call did not reach the ring.
    """
    check_machine()
    groups = [tuple(schemata)] if schemata else [(name,) for name in shipped_names()]
    layouts = [_lay_out(group) for group in groups]
    made = () if schemata else made_events(layouts[0].schema)
    known = {slot.name for layout in layouts for slot in layout.logged} | set(made)
    for name in names:
        if name not in known:
            raise UsageError(
                f"no schema here logs an event '{name}'{suggest(name, known)}",
                "tcpkmon schema show lists them",
            )
    chosen = [
        (group, layout, [s for s in layout.logged if not names or s.name in names])
        for group, layout in zip(groups, layouts, strict=True)
    ]
    if not known:
        raise UsageError("these schemata log no events with klogger()")
    btf = Btf.from_kernel()
    where = online_cpus()[-1] if cpu is None else cpu
    for group, layout, slots in chosen:
        if slots:
            with _Bench(layout, slots, btf, where) as bench:
                for slot in slots:
                    yield bench.measure(slot, "+".join(group), iterations, rounds)
    for name in made:
        if not names or name in names:
            yield _measure_base(layouts[0].slot(name), layouts[0].schema, iterations, rounds)


def _measure_base(slot: Slot, schema: Schema, iterations: int, rounds: int) -> Cost:
    """One base event's cost: its record for a file, with all its text."""
    table = [describe_event(schema, slot.event, slot.number)]
    log = LogFormat.of({"format": 1, "byteorder": sys.byteorder, "events": table})
    values: dict[str, int | str | bytes] = {
        place.field.name: "x" * place.type.width if place.type.kind == "string" else 1
        for place in slot.places if place.type.kind != "enum"
    }  # fmt: skip
    took = []
    for _ in range(rounds):
        began_ns = time.perf_counter_ns()
        for serial in range(iterations):
            pack_event(log, slot.name, values, serial + 1, began_ns)
        took.append((time.perf_counter_ns() - began_ns) / iterations)
    size = RECORD_HEAD_BYTES + slot.size
    middle = statistics.median(took)
    return Cost(BASE, slot.name, size, middle, min(took), max(took), None, iterations * rounds)


def _lay_out(group: Sequence[str]) -> EventLayout:
    if TCP in group:
        raise UsageError(
            "the schema tcp takes snapshots, not events of klogger()",
            "its cost is measured by scripts/benchmark",
        )
    return lay_out_sources(find_sources(group))


def program_text(layout: EventLayout, slots: Sequence[Slot], engine: Engine, btf: Btf) -> str:
    """The C text: the engine, and for each event a program that logs it in a loop."""
    text = read_texts(())
    lines = [*engine.lines(Plan((), {})), *event_lines(layout)]
    widest = max((p.type.width for s in slots for p in s.places if p.type.kind == "string"),
                 default=8)  # fmt: skip
    programs = [
        f"struct klogger_benchmark_text {{ char text[{widest + 8}]; }};",
        "BPF_ARRAY(klogger_benchmark_texts, struct klogger_benchmark_text, 1);",
        "BPF_ARRAY(klogger_benchmark_calls, u64, 1);",
        "BPF_ARRAY(klogger_benchmark_ns, u64, 1);",
        _program(_EMPTY, ""),
    ]
    for slot in slots:
        values = "".join(
            ", text->text" if place.type.kind == "string" else f", {number}"
            for number, place in enumerate(slot.places, 1)
        )
        programs.append(_program(_function(slot), f"klogger({slot.name}{values})"))
    return "\n".join([kernel_types.make(btf, text), *lines, text, *programs]) + "\n"


def _function(slot: Slot) -> str:
    return f"klogger_benchmark_{slot.number}"


def _program(name: str, what: str) -> str:
    return f"""int {name}(void *ctx)
{{
    struct klogger_cpu *cpu = klogger_this_cpu();
    u32 zero = 0;
    u64 *calls = klogger_benchmark_calls.lookup(&zero), *took = klogger_benchmark_ns.lookup(&zero);
    struct klogger_benchmark_text *text = klogger_benchmark_texts.lookup(&zero);
    u64 begin, wanted;

    if (!cpu || !calls || !took || !text)
        return 1;
    wanted = *calls;
    begin = bpf_ktime_get_ns();
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < {_BATCH}; i++) {{
        if (i >= wanted)
            break;
        /* Keeps the compiler from counting down from `wanted`, which the verifier refuses. */
        asm volatile("" : "+r"(i));
        {what};
    }}
    *took = bpf_ktime_get_ns() - begin;
    return 0;
}}"""


class _Bench:
    """The programs of one group of schemata in the kernel, and their rings."""

    def __init__(self, layout: EventLayout, slots: Sequence[Slot], btf: Btf, cpu: int) -> None:
        self._cpu = cpu
        highest = max(slot.number for slot in layout.slots)
        self._engine = make_engine(layout.entry_size, Plan((), {}), points=highest)
        functions = [_EMPTY, *map(_function, slots)]
        image = compile_text(program_text(layout, slots, self._engine, btf), functions)
        sizes = {spec.name: spec.value_size for spec in image.maps}
        self._loaded = Loaded(image, btf)
        self._maps = EngineMaps(self._loaded.maps, image, self._engine.head)
        self._fds: dict[str, int] = {}
        try:
            text = b"x" * (sizes["klogger_benchmark_texts"] - 1) + b"\0"
            bpf.map_update(self._loaded.maps["klogger_benchmark_texts"], _ZERO, text)
            for function in functions:
                code = fill_maps(image.programs[function], self._loaded.maps)
                self._fds[function] = load_code("raw", code, function, 0)
            pages = pages_of(_RING_BYTES)
            dtype = ring_dtype(self._engine.entry_size)
            self._rings = Rings(self._loaded.maps, dtype, pages, _RING_BYTES)
        except TcpkmonError:
            self._close()
            raise

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self._rings.close()
        self._close()

    def _close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self._loaded.close()

    def measure(self, slot: Slot, schema: str, iterations: int, rounds: int) -> Cost:
        with _on_cpu(self._cpu):
            self._switch(slot, False)
            self._round(slot, iterations)  # to warm up caches
            disabled = [self._round(slot, iterations) for _ in range(rounds)]
            if self._written(slot):
                raise KernelError(f"{slot.name} was logged though it was switched off")
            self._switch(slot, True)
            self._round(slot, iterations)
            enabled = [self._round(slot, iterations) for _ in range(rounds)]
        written = self._written(slot)
        if written != iterations * (rounds + 1):
            raise KernelError(
                f"of {iterations * (rounds + 1)} calls for {slot.name} {written} were written"
            )
        return Cost(
            schema, slot.name, self._engine.entry_size, statistics.median(enabled),
            min(enabled), max(enabled), statistics.median(disabled), written,
        )  # fmt: skip

    def _round(self, slot: Slot, iterations: int) -> float:
        """The ns of a call, without those of the loop."""
        total_ns = 0
        left = iterations
        while left:
            calls = min(left, _BATCH)
            left -= calls
            bpf.map_update(
                self._loaded.maps["klogger_benchmark_calls"], _ZERO, struct.pack("=Q", calls)
            )
            total_ns += self._run(_function(slot)) - self._run(_EMPTY)
            self._rings.drain()
            self._rings.free()
        return total_ns / iterations

    def _run(self, function: str) -> int:
        if bpf.prog_test_run(self._fds[function], self._cpu):
            raise KernelError(f"the program {function} found no maps")
        raw = bpf.map_lookup(self._loaded.maps["klogger_benchmark_ns"], _ZERO, 8)
        assert raw is not None  # an array has all its elements
        return int(struct.unpack("=Q", raw)[0])

    def _switch(self, slot: Slot, on: bool) -> None:
        self._maps.enabled[slot.number] = on
        self._maps.apply()

    def _written(self, slot: Slot) -> int:
        return int(self._maps.heads()["accounts"]["written"][:, slot.number].sum())


@contextmanager
def _on_cpu(cpu: int) -> Iterator[None]:
    """Keeps this thread on the CPU where the programs run, close to the ring's memory."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        raise KernelError(f"CPU {cpu} cannot be used: {error.strerror}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
