# SPDX-License-Identifier: Apache-2.0
"""The C text that comes before the engine for the schema tcp: setters, sizes, constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tcpkmon.collector.linux.kernel_constants import Facts
from tcpkmon.collector.plan.columns import LOCATIONS, Layout
from tcpkmon.collector.plan.extension import own_columns
from tcpkmon.collector.ring.points import FIRST_OWN, ROWS
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import suggest

WATCHED_BYTES = 64
INODES = 16384


@dataclass(frozen=True)
class Switches:
    """What a capture needs in the C text beyond its columns and probes.

    enabled: names of the locations to record; watch: columns of --when-changed; connections:
    entries of its map; by_inode: existing sockets are selected by inode (--pid).
    sheds_unchanged: `watch` is for a step of the budget, and is not in force at first.
    """

    enabled: tuple[str, ...]
    watch: tuple[str, ...] = ()
    connections: int = 131072
    by_inode: bool = False
    sheds_unchanged: bool = False


def snapshot_lines(
    layout: Layout, facts: Facts, switches: Switches, symbols: Mapping[str, int],
    fills: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """C text for the schema tcp. `symbols`: kernel addresses by name, 0 where unknown. fills: of
    users' schemata, see extension.py."""
    defined = {
        "KLOGGER_ENTRY_SIZE": layout.entry_size,
        "LOCATION_ROWS": ROWS,
        "KLOGGER_HZ": facts.hz,
        "KLOGGER_SKB_SIZE": facts.skb_size,
        "KLOGGER_MSS_OVERHEAD": facts.mss_overhead or 0,
        "KLOGGER_CONNECTIONS": switches.connections,
        "KLOGGER_INODES": INODES,
        "KLOGGER_BY_INODE": int(switches.by_inode),
        "KLOGGER_LISTENERS": 4096 if switches.by_inode else 1,
        **{f"KLOGGER_{name}": f"{address:#x}ull" for name, address in symbols.items()},
    }
    for member in layout.schema.enum(LOCATIONS).members:
        defined[f"LOCATION_{member.name}"] = member.value
        defined[f"KLOGGER_ENABLED_{member.name}"] = int(member.name in switches.enabled)
    if switches.sheds_unchanged:
        defined["KLOGGER_SHEDS_UNCHANGED"] = 1
    lines = [f"#define {name} {value}" for name, value in defined.items()]
    watched = _place_watched(layout, switches.watch)
    lines += [*_setters(layout, watched), *_watch(layout, watched)]
    return [*lines, *_own_fill(layout, fills)]


def _setters(layout: Layout, watched: Mapping[str, int]) -> list[str]:
    """KLOGGER_SET_column(value) and its like; watched: the columns of struct klogger_watch, and
    the offset of each there."""
    placed = {column.name: column for column in layout.columns if column.length}
    lines = []
    for field in layout.event.fields:
        name = field.name
        column = placed.get(name)
        if column is None:
            lines += [
                f"#define KLOGGER_HAS_{name} 0",
                f"#define KLOGGER_SET_{name}(v) do {{ }} while (0)",
                f"#define KLOGGER_COPY_{name}(p) do {{ }} while (0)",
            ]
            continue
        has, at = "1", f"(entry + {column.offset})"
        if name in watched:
            at = f"(entry + (watched ? {watched[name]} : {column.offset}))"
        elif watched:
            has = "(!watched)"
        if layout.is_string(name):
            stores = _string_stores(at, column.offset, column.length)
            read = f"bpf_probe_read_kernel({at}, {column.length}, (void *)(p));"
            lines.append(f"#define KLOGGER_COPY_{name}(p) do {{ if ({has}) {read} }} while (0)")
        else:
            bits = f"u{8 * column.length}"
            stores = f"*({bits} *){at} = ({bits})(v);"
        lines += [
            f"#define KLOGGER_HAS_{name} {has}",
            f"#define KLOGGER_SET_{name}(v) do {{ if ({has}) {{ {stores} }} }} while (0)",
        ]
    return lines


def _own_fill(layout: Layout, fills: Sequence[str]) -> list[str]:
    """FILL_OWN(), which fills the columns of users' schemata: zeros, then what each FILL() sets."""
    calls = [
        f"{'COPY' if layout.is_string(field.name) else 'SET'}({field.name}, 0);"
        for field in own_columns(layout.schema)
    ]
    parameters = "const int direct, const int watched, struct tcp_sock *tp, u8 *entry"
    lines = [f"#define IS_OWN_LOCATION(at) ((at) >= {FIRST_OWN} && (at) < LOCATION_ROWS)"]
    for name in fills:
        lines.append(f"static __always_inline void {name}_fill({parameters});")
        calls.append(f"{name}_fill(direct, watched, tp, entry);")
    body = " ".join(calls)
    return [*lines, f"#define FILL_OWN(direct, watched, tp, entry) do {{ {body} }} while (0)"]


def _string_stores(at: str, offset: int, length: int) -> str:
    step = next(step for step in (8, 4, 2, 1) if offset % step == 0 and length % step == 0)
    kind = f"u{8 * step}"
    stores = [f"{kind} *to_ = ({kind} *){at}; const {kind} *from_ = (const {kind} *)(v);"]
    stores += [f"to_[{index}] = from_[{index}];" for index in range(length // step)]
    return " ".join(stores)


def _place_watched(layout: Layout, watch: Sequence[str]) -> dict[str, int]:
    """The columns of --when-changed, and the offset of each among the watched values.

    Raises UsageError for what cannot be watched.
    """
    placed = {column.name: column for column in layout.columns if column.length}
    fields = {field.name: field for field in layout.event.fields}
    found: dict[str, int] = {}
    size = 0
    for name in watch:
        if name not in fields:
            raise UsageError(
                f"--when-changed: no such column: {name}{suggest(name, fields)}",
                "tcpkmon columns lists them",
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
        size += -size % (8 if column.length >= 8 else 4)
        found[name] = size
        size += column.length
    if size > WATCHED_BYTES:
        raise UsageError(
            f"--when-changed watches {size} bytes of columns",
            f"choose columns of {WATCHED_BYTES} bytes together at most",
        )
    return found


def _watch(layout: Layout, watched: Mapping[str, int]) -> list[str]:
    """struct klogger_watch, and the function that compares values with it and stores them in it.

    KLOGGER_WATCHING: how many words of 32 bits the values have.
    """
    words = max((-(-(at + layout.width(name)) // 8) * 2 for name, at in watched.items()), default=0)
    if not words:
        return ["#define KLOGGER_WATCHING 0"]
    lines = [
        f"#define KLOGGER_WATCHING {words}",
        "struct klogger_watch {",
        "\tu64 id; /* of the connection, in the identity cache */",
        "\tu32 recorded; /* the last values were recorded */",
        f"\tu32 words[{words}];",
        "};",
        "static __always_inline int klogger_watch_changed(struct klogger_watch *watch,",
        "\t\t\t\t\t\t const u32 *now)",
        "{",
        "\tu32 changed = 0;",
    ]
    # Without branches: the verifier would check all later code once for each outcome.
    for index in range(words):
        lines += [
            f"\tchanged |= watch->words[{index}] ^ now[{index}];",
            f"\twatch->words[{index}] = now[{index}];",
        ]
    return [*lines, "\treturn changed != 0;", "}"]
