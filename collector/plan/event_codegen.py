# SPDX-License-Identifier: Apache-2.0
"""The C text for the events of Klogger schemata: the functions that klogger() calls, the enums."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tcpkmon.collector.plan.budget import SAMPLE_TAG
from tcpkmon.collector.plan.event_layout import EventLayout, Slot
from tcpkmon.collector.ring.points import EVENT_HEAD_BYTES
from tcpkmon.formats.schema import Place

UNROLLED_BYTES = 512

_DECLARED = """struct klogger_cpu;
static __always_inline int klogger_enabled(const u32 point);
static __always_inline u64 klogger_key(u64 key);
static __always_inline int klogger_admit(struct klogger_cpu *cpu, const u32 point, u64 key);
static __always_inline u8 *klogger_reserve(struct klogger_cpu *cpu, const u32 row,
                                           struct klogger_place *place);
static __always_inline void klogger_commit_event(void *ctx, struct klogger_cpu *cpu,
                                                 const u32 point, struct klogger_place *place);"""


def event_lines(layout: EventLayout, reserved: Collection[str] = ()) -> list[str]:
    """C text for all events. Those that the log levels leave out are checked, and log nothing.

    reserved: names of events that klogger() does not log.
    """
    lines = _DECLARED.splitlines()
    for enum in layout.schema.enums:
        for member in enum.members:
            lines.append(f"#define KLOGGER_{enum.name}_{member.name} ({member.value})")
    logged = {slot.number for slot in layout.logged}
    for slot in layout.slots:
        if slot.name not in reserved:
            lines += _event(slot, slot.number in logged)
    return lines


def _event(slot: Slot, logged: bool) -> list[str]:
    name = slot.name
    enabled = f"klogger_enabled({slot.number})" if logged else "0"
    lines = [
        f"#define KLOGGER_POINT_{name} {slot.number}",
        f"#define KLOGGER_ENABLED_{name} ({enabled})",
    ]
    head = f"static __always_inline void klogger_log_{name}({_parameters(slot.declared)})"
    if not logged:
        return [*lines, head, "{ }"]
    if len(slot.places) < len(slot.declared):
        lines += _left_out(slot, head)
        head = f"static __always_inline void klogger_lean_{name}({_parameters(slot.places)})"
    lines.append(head)
    lines += ["{", f"\tif (!klogger_admit(cpu, {slot.number}, {_key(slot)}))", "\t\treturn;"]
    lines += [
        "\tstruct klogger_place place;",
        f"\tu8 *record = klogger_reserve(cpu, {slot.number}, &place);",
        "\tif (!record)",
        "\t\treturn;",
        *_zeroes(slot.size),
    ]
    lines += [_store(place) for place in slot.places]
    lines.append(f"\tklogger_commit_event(ctx, cpu, {slot.number}, &place);")
    return [*lines, "}"]


def _key(slot: Slot) -> str:
    """What a budget's sample goes by."""
    names = [place.field.name for place in slot.places if SAMPLE_TAG in place.field.tags]
    return f"klogger_key({names[0]}_)" if names else "0"


def _parameters(places: Iterable[Place]) -> str:
    return ", ".join(["void *ctx", "struct klogger_cpu *cpu", *map(_parameter, places)])


def _left_out(slot: Slot, head: str) -> list[str]:
    """klogger() checks the values of fields that the capture leaves out, and evaluates none."""
    names = [f"v{index}_" for index in range(len(slot.declared))]
    stored = {place.field.name for place in slot.places}
    kept = [
        name
        for name, place in zip(names, slot.declared, strict=True)
        if place.field.name in stored
    ]
    return [
        f"{head} {{ }}",
        f"#define klogger_log_{slot.name}(ctx, cpu, {', '.join(names)}) do {{ if (0)"
        f" (klogger_log_{slot.name})(ctx, cpu, {', '.join(names)});"
        f" klogger_lean_{slot.name}(ctx, cpu, {', '.join(kept)}); }} while (0)",
    ]


def _zeroes(size: int) -> list[str]:
    if size <= UNROLLED_BYTES:
        return [f"\t*(u64 *)(record + {EVENT_HEAD_BYTES + at}) = 0;" for at in range(0, size, 8)]
    # The compiler has no memset of this size; a read that fails stores zeros.
    return [f"\tbpf_probe_read_kernel(record + {EVENT_HEAD_BYTES}, {size}, 0);"]


def _parameter(place: Place) -> str:
    # The underscore: a field's name may be ctx, cpu or a keyword.
    if place.type.kind == "string":
        return f"const void *{place.field.name}_"
    return f"{place.type.c_type} {place.field.name}_"


def _store(place: Place) -> str:
    at = EVENT_HEAD_BYTES + place.offset
    value = f"{place.field.name}_"
    if place.type.kind == "string":
        read = "bpf_probe_read_kernel" if place.is_raw else "bpf_probe_read_kernel_str"
        return f"\tif ({value})\n\t\t{read}(record + {at}, {place.type.width}, {value});"
    bits = f"{'s' if place.type.signed else 'u'}{8 * place.type.width}"
    return f"\t*({bits} *)(record + {at}) = {value};"
