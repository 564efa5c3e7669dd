# SPDX-License-Identifier: Apache-2.0
"""Makes docs/connections.md from the columns of the tables connections and intervals."""

from __future__ import annotations

from collections.abc import Iterable

from markdown import table

from tcpkmon.formats.analysis.why import CONNECTIONS, INTERVALS, LIMITS, Column

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by scripts/docs; do not edit. -->
# The tables connections and intervals

    tcpkmon connections run.pm
    tcpkmon connections run.pm --sort=-bytes_sent --columns laddr,lport,bytes_sent,main_limit
    tcpkmon connections run.pm --where 'rport == 443 and main_limit == "rwnd"'
    tcpkmon connections run.pm --names tcptrace --format csv
    tcpkmon connections *.pm -o connections.parquet
    tcpkmon connections --mptcp run.pm          the MPTCP connections above them: docs/why.md
    tcpkmon why --intervals -o intervals.parquet run.pm

`connections` has a row for each connection of a capture of the schema tcp, `intervals` one for each
time in which one limit held ([why](why.md)). Any capture with at least the default columns will do;
what needs more is empty. Times are CLOCK_MONOTONIC. In Python:

    import tcpkmon

    connections = tcpkmon.connections("run.pm")     # pandas.DataFrame
    intervals = tcpkmon.intervals("run.pm")

`tcpkmon.formats.analysis.why.connections(path)` and `intervals(path)` return numpy columns by name,
without pandas: a number that can be missing is float64 and NaN, text is None. `as_arrow()` makes a
pyarrow.Table of them, with nulls and whole numbers.

## How sure it is

`lost_records` are those that are missing in the capture while the connection was open, of whatever
connection. It may have been open, too, before its first record, unless that is its opening, and
behind its last one, unless that is DESTROY: what is missing there is in `lost_before` and
`lost_after`. A time in which one is missing is not certain: `us_<limit>` takes it for what its end
says, `us_<limit>_min` leaves out all such times, `us_<limit>_max` adds them all. `proven`: none is
missing, the file is not damaged, and the connection's end or the capture's is in it. `tcpkmon
verify` proves more: that the counts add up. Of an event that a program never saw, or for which a
table had no room, nobody knows whose it was: it counts for each connection, none is proven, and
the exit code is 3, here as in all readers.

Percentiles of round-trip times are over records, those of goodput over times of 100 ms since the
connection's start, of both directions the larger; the value that so many do not exceed. Bytes
are those of data, without SYN and FIN. A record is made before its segment counts: of a connection
that is still open, `bytes_received` has what its last segment brings, by `seg_seq`, and
`bytes_acked` lacks it.

A connection ends when it comes to CLOSE: a program that keeps its socket makes it no longer. Where
an end closed and the kernel does not show segments after that (no SEGMENT_CLOSING), and the capture
ended before the connection, `bytes_sent`, `bytes_acked` and `bytes_received` are lower bounds:
`bytes_at_least` is true, also where `proven` is. `bytes_unsent` is what its program had written and
was not sent.

`errno` is the last error of the socket. After a close with SO_LINGER 0 that is 104 (rst_sent),
which no program was told, as it had closed.
"""


def connections_page() -> str:
    """The text of docs/connections.md."""
    limits = {f"us_{name}{end}" for name in LIMITS for end in ("", "_min", "_max")}
    rows = [column for column in CONNECTIONS if column.name not in limits]
    names = ", ".join(LIMITS)
    return "\n".join([
        _HEAD,
        "## connections\n",
        f"Beside these, for each limit ({names}) the columns `us_<limit>`, `us_<limit>_min` and "
        "`us_<limit>_max`. Their sum is the time from the first record to `end_ns`.\n",
        _table(rows, ("tcptrace", "tstat")),
        "\n`--names tcptrace` gives the names of `tcptrace -l`, `--names tstat` those of Tstat's "
        "log_tcp_complete, with this host as a and client. What they count in packets, a stack "
        "counts in segments, and times are in us here.\n",
        "## intervals\n",
        _table(INTERVALS, ()),
        "",
    ])  # fmt: skip


def _table(columns: Iterable[Column], names: tuple[str, ...]) -> str:
    rows = []
    for column in columns:
        cells = [f"`{column.name}`", column.kind + ("?" if column.null else ""), column.text]
        if names:
            cells.append(f"`{column.needs}`" if column.needs else "")
        cells += [f"`{getattr(column, name)}`" if getattr(column, name) else "" for name in names]
        rows.append(cells)
    heads = ["column", "kind", "meaning", *(["needs"] if names else []), *names]
    return "\n".join(table(heads, rows))
