# SPDX-License-Identifier: Apache-2.0
"""The C text that comes before the engine for the schema tcp: setters, sizes, constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collector.linux.kernel_constants import Facts
from collector.plan.columns import LOCATIONS, Layout
from collector.ring.points import ROWS
from formats.base.errors import UsageError

WATCH_WORDS = 16


@dataclass(frozen=True)
class Switches:
    """What a capture needs in the C text beyond its columns and probes.

    enabled: names of the locations to record; watch: columns of --when-changed; connections,
    inodes: entries of those maps; by_inode: existing sockets are selected by inode (--pid).
    """

    enabled: tuple[str, ...]
    watch: tuple[str, ...] = ()
    connections: int = 131072
    inodes: int = 16384
    by_inode: bool = False


def snapshot_lines(
    layout: Layout, facts: Facts, switches: Switches, symbols: Mapping[str, int]
) -> list[str]:
    """C text for the schema tcp. `symbols`: kernel addresses by name, 0 where unknown."""
    defined = {
        "KLOGGER_ENTRY_SIZE": layout.entry_size,
        "LOCATION_ROWS": ROWS,
        "KLOGGER_HZ": facts.hz,
        "KLOGGER_PAGE_SIZE": facts.page_size,
        "KLOGGER_SKB_SIZE": facts.skb_size,
        "KLOGGER_MSS_OVERHEAD": facts.mss_overhead or 0,
        "KLOGGER_CONNECTIONS": switches.connections,
        "KLOGGER_INODES": switches.inodes,
        "KLOGGER_BY_INODE": int(switches.by_inode),
        **{f"KLOGGER_{name}": f"{address:#x}ull" for name, address in symbols.items()},
    }
    for member in layout.schema.enum(LOCATIONS).members:
        defined[f"LOCATION_{member.name}"] = member.value
        defined[f"KLOGGER_ENABLED_{member.name}"] = int(member.name in switches.enabled)
    lines = [f"#define {name} {value}" for name, value in defined.items()]
    return [*lines, *_setters(layout), *_watch(layout, switches.watch)]


def _setters(layout: Layout) -> list[str]:
    placed = {column.name: column for column in layout.columns if column.length}
    lines = []
    for field in layout.event.fields:
        column = placed.get(field.name)
        name = field.name
        lines.append(f"#define KLOGGER_HAS_{name} {int(column is not None)}")
        lines.append(f"#define KLOGGER_AT_{name} {column.offset if column else 0}")
        if column is None:
            lines.append(f"#define KLOGGER_SET_{name}(v) do {{ }} while (0)")
            lines.append(f"#define KLOGGER_COPY_{name}(p) do {{ }} while (0)")
            continue
        if layout.is_string(name):
            stores = _string_stores(column.offset, column.length)
            lines.append(f"#define KLOGGER_SET_{name}(v) do {{ {stores} }} while (0)")
            read = f"bpf_probe_read_kernel(entry + {column.offset}, {column.length}, (void *)(p))"
            lines.append(f"#define KLOGGER_COPY_{name}(p) {read}")
        else:
            bits = f"u{8 * column.length}"
            place = f"*({bits} *)(entry + {column.offset})"
            lines.append(f"#define KLOGGER_SET_{name}(v) ({place} = ({bits})(v))")
    return lines


def _string_stores(offset: int, length: int) -> str:
    step = next(step for step in (8, 4, 2, 1) if offset % step == 0 and length % step == 0)
    kind = f"u{8 * step}"
    stores = [f"const {kind} *from_ = (const {kind} *)(v);"]
    stores += [
        f"*({kind} *)(entry + {offset + at}) = from_[{at // step}];"
        for at in range(0, length, step)
    ]
    return " ".join(stores)


def _watch(layout: Layout, watch: Sequence[str]) -> list[str]:
    """struct klogger_watch, and the function that compares an entry with it and stores that in it.
    """
    words: list[str] = []
    placed = {column.name: column for column in layout.columns if column.length}
    fields = {field.name: field for field in layout.event.fields}
    for name in watch:
        if name not in fields:
            raise UsageError(
                f"--when-changed: no such column: {name}", "tcpkmon columns lists them"
            )
        if "pm" in fields[name].tags and name != "callvalue":
            raise UsageError(
                f"--when-changed {name}: this column tells of the record",
                "choose columns that tell of the connection",
            )
        column = placed.get(name)
        if column is None:
            raise UsageError(
                f"--when-changed {name}: the capture does not store this column",
                f"add it: --columns default,{name}",
            )
        step = 4 if column.length % 4 == 0 and column.offset % 4 == 0 else column.length
        kind = f"u{8 * step}"
        words += [
            f"*({kind} *)(entry + {at})"
            for at in range(column.offset, column.offset + column.length, step)
        ]
    if len(words) > WATCH_WORDS:
        raise UsageError(
            f"--when-changed watches {4 * len(words)} bytes of columns",
            f"choose columns of {4 * WATCH_WORDS} bytes together at most",
        )
    lines = [f"#define KLOGGER_WATCHING {int(bool(words))}", "struct klogger_watch {"]
    lines += [f"\tu32 word{index};" for index in range(max(1, len(words) + len(words) % 2))]
    lines += ["};"]
    lines += [
        "static __always_inline int klogger_watch_changed(u8 *entry, struct klogger_watch *watch)",
        "{",
        "\tu32 changed = 0;",
    ]
    # Without branches: the verifier would check all later code once for each outcome.
    for index, value in enumerate(words):
        lines += [
            f"\tchanged |= watch->word{index} ^ {value};",
            f"\twatch->word{index} = {value};",
        ]
    lines += ["\treturn changed != 0;", "}"]
    return lines
