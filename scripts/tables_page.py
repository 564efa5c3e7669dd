# SPDX-License-Identifier: Apache-2.0
"""Makes docs/tables.md from the columns of the shipped tables."""

from __future__ import annotations

from collections.abc import Iterable

from markdown import table

from tcpkmon.formats.schema import Schema
from tcpkmon.formats.tables import SHIPPED, Column, snapshot_columns
from tcpkmon.formats.tables.column import RECORD_HEAD

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by scripts/docs; do not edit. -->
# The tables of a capture

Of any capture (a PSC file, a Klogger log, a MAGNeT file, a folder of one in many files), as Arrow
in Python and as SQL ([sql.md](sql.md)):

    import tcpkmon

    with tcpkmon.open("run.pm") as capture:
        connections = capture.table("connections")   # a pyarrow.Table; .to_pandas(): a DataFrame

    tcpkmon sql run.pm 'select laddr, lport, bytes_sent from connections'
    tcpkmon sql run.pm --tables                      # those of this capture, with their columns

| table | a row is | of captures |
| --- | --- | --- |
| `snapshots` | a record of the schema tcp | of that schema |
| `connections` | [a connection](connections.md) | with at least the default columns |
| `causes` | [why one failed or waited](causes.md) | with at least the default columns |
| `intervals` | a time in which one limit held a connection | with at least the default columns |
| `requests` | [a request and its answer](requests.md) | with the default columns or `--requests` |
| `latency` | [a byte range on its way](latency.md) | Klogger logs of the schema magnet |
| `ledger` | a CPU and location: attempts, losses by cause | all that have [a ledger](verify.md) |
| `proof` | a file: what [`tcpkmon verify`](verify.md) says of it | all |
| the name of an event | a record of it, in time order of all CPUs | Klogger logs and MAGNeT files |

What a capture lacks is not there: a table, or a column of `snapshots`. In the other tables such a
column is null.

Whole numbers are int64, so that differences may be negative; a value of 2^63 or more is null.
uint64 are addresses of the kernel (`sk_addr`), and the 8-byte numbers of events. Times of day are
`timestamp[us, UTC]`; names that end with `_ns` or begin with `t_` are CLOCK_MONOTONIC. Where the
kernel has no value, it is null ([columns](columns.md)). Unit and meaning are in the metadata of the
fields: `table.field("snd_cwnd").metadata[b"unit"]`.

To count only what is proven, ask the ledger in the same query:

    select c.* from connections c where c.proven
    select sum(lost) + sum(missed) from ledger       -- all that is known to be missing

`proven` of a connection says that no record is missing in its time; that of `ledger` and `proof`,
that nothing at all is, and that the file proves it.
"""


def tables_page(schema: Schema) -> str:
    """The text of docs/tables.md."""
    snapshots = snapshot_columns(schema, schema.event("SNAPSHOT"))
    parts = [
        _HEAD,
        "## snapshots\n",
        "All columns that there are ([which a capture has](columns.md)). Klogger logs begin with\n"
        "those of [events](#events), without `seq_no` and `seq`.\n",
        _table(snapshots),
    ]
    for name, (text, columns) in SHIPPED.items():
        parts += [f"\n## {name}\n", f"{text[0].upper()}{text[1:]}.\n", _table(columns)]
    parts += [
        "\n## events\n",
        "Before the fields of the event; one that has such a name is `field.NAME`, in SQL\n"
        '`"field.NAME"`.\n',
        _table(RECORD_HEAD), "",
    ]  # fmt: skip
    return "\n".join(parts)


def _table(columns: Iterable[Column]) -> str:
    rows = [
        [f"`{one.name}`", f"{one.type}{' or null' if one.null else ''}", one.unit,
         one.text.replace("<", "&lt;").replace(">", "&gt;")]
        for one in columns
    ]  # fmt: skip
    return "\n".join(table(("column", "type", "unit", "meaning"), rows))
