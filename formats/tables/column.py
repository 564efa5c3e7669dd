# SPDX-License-Identifier: Apache-2.0
"""What a column of a table is: its Arrow type, unit and meaning; tables that are as declared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.formats.analysis.causes import CAUSES as CAUSES_OF_CONNECTIONS
from tcpkmon.formats.analysis.exchanges import EXCHANGES
from tcpkmon.formats.analysis.latency import COLUMNS, PART_COLUMNS
from tcpkmon.formats.analysis.why import CONNECTIONS, INTERVALS, WHOLES
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.schema import Event, Schema
from tcpkmon.formats.verify import CAUSES

TIME = "timestamp[us, UTC]"
_LARGEST = (1 << 63) - 1
_UNIT = re.compile(r"\s*\[([^\]]+)\]$")


@dataclass(frozen=True)
class Column:
    """type: TIME or one of `arrow`, as Arrow calls it. null: whether it can be null."""

    name: str
    type: str
    unit: str = ""
    text: str = ""
    null: bool = True

    @property
    def arrow(self) -> Any:
        """Its pyarrow type."""
        pyarrow = import_pyarrow()
        if self.type == TIME:
            return pyarrow.timestamp("us", "UTC")
        return {
            "int64": pyarrow.int64, "uint64": pyarrow.uint64, "double": pyarrow.float64,
            "string": pyarrow.string, "bool": pyarrow.bool_, "binary": pyarrow.binary,
        }[self.type]()  # fmt: skip


def declared(name: str, kind: str, text: str, null: bool) -> Column:
    """A column of an analysis: its unit is at the end of its text, in brackets, or its name tells.

    kind: int, float, text or bool. The text `start` is a time.
    """
    kinds = {"int": "int64", "float": "double", "text": "string", "bool": "bool"}
    found = _UNIT.search(text)
    unit = found[1] if found else _unit_of(name)
    text = _UNIT.sub("", text)
    return Column(name, TIME if name == "start" else kinds[kind], unit, text, null)


def _unit_of(name: str) -> str:
    for unit in ("us", "ns", "bytes"):
        if name.startswith(f"{unit}_") or name.endswith(f"_{unit}"):
            return unit
    return ""


def lines(text: str) -> tuple[Column, ...]:
    """Columns that are declared line by line: name | type | unit | meaning; `?`: can be null."""
    found = []
    for line in text.strip().splitlines():
        name, kind, unit, meaning = (part.strip() for part in line.split("|"))
        kind = kind.replace("time", TIME)
        found.append(Column(name, kind.rstrip("?"), unit, meaning, kind.endswith("?")))
    return tuple(found)


def schema_of(columns: Iterable[Column]) -> Any:
    """The pyarrow.Schema of these columns; what they mean is in the fields' metadata."""
    pyarrow = import_pyarrow()
    return pyarrow.schema([
        pyarrow.field(one.name, one.arrow, True, {"unit": one.unit, "text": one.text})
        for one in columns
    ])  # fmt: skip


def conform(table: Any, columns: Sequence[Column]) -> Any:
    """A pyarrow.Table with these columns in their types; what `table` lacks is null.

    A whole number that has no room in its type (2^63 and more in an int64) is null.
    """
    pyarrow = import_pyarrow()
    arrays = []
    for column in columns:
        if column.name not in table.column_names:
            arrays.append(pyarrow.nulls(table.num_rows, column.arrow))
            continue
        values = table[column.name]
        if values.type == pyarrow.uint64() and column.type == "int64":
            fits = pyarrow.compute.less_equal(values, pyarrow.scalar(_LARGEST, pyarrow.uint64()))
            values = pyarrow.compute.if_else(fits, values, pyarrow.scalar(None, pyarrow.uint64()))
        arrays.append(values.cast(column.arrow, safe=column.type != TIME))
    return pyarrow.Table.from_arrays(arrays, schema=schema_of(columns))


# The columns of the shipped tables, with types, units and meanings; scripts/docs prints them.

ADDRESSES = frozenset({"sk_addr"})
"""Whole numbers of a snapshot that are addresses of the kernel: they need all 64 bits."""
FILE = Column("file", "string", "", "the capture, as it was named", False)
"""The first column of each table in SQL."""


def cause_column(cause: str) -> str:
    """The column of the ledger that counts a cause."""
    return cause.replace(" ", "_")


LEDGER = (
    *lines("""
path | string | | the file that says so
segment | int64? | | its number, of a capture in several files
cpu | int64? | | the CPU; null: of all
location | string | | the location, or the event
attempts | int64 | records | times that the program ran
filtered | int64 | records | withheld by a filter
unchanged | int64 | records | withheld by --when-changed
limited | int64 | records | withheld by a limit on the rate
shed | int64 | records | left out by a budget
written | int64 | records | handed over to the collector
in_file | int64 | records | in the file
pending | int64 | records | under way at the last ledger, of a file without its end
lost | int64 | records | lost, of all causes
missed | int64 | records | events that no program saw: not among the attempts, nor in lost
"""),
    *(Column(cause_column(name), "int64", "records", f"lost: {name}", False) for name in CAUSES),
    *lines("""
proven | bool | | the file's verdict is that nothing was lost
"""),
)
PROOF = lines("""
path | string | | the file, or the folder of several
whole | bool | | it tells of several files together, which have rows of their own
segment | int64? | | its number, of a capture in several files
format | string | | psc, klogger or magnet
verdict | string | | what verify says
exit_code | int64 | | 0: nothing lost, and that is proven; 3: losses, or an unknown end; 5: wrong
proven | bool | | the exit code is 0, and there is a ledger
entries | int64 | records | entries in the file
size_bytes | int64 | bytes | its size
lost | int64 | records | known to be missing
end_reason | string? | | why the capture ended; null: its end is not there
checkpoints | int64 | | ledgers in it
problems | int64 | | what does not add up
""")
_STATES = "measured, began, ended, lost, missing or contradictory: see docs/latency.md"
LATENCY = (
    *lines("""
conn_id | int64 | | the connection of this end
peer_conn_id | int64? | | that of the other end, where the log has it
dir | string | | out: the connection sends; in: it receives, and its peer is not in the log
seq_lo | int64 | | first sequence number of the range
seq_hi | int64 | | the one behind its last
bytes | int64 | bytes | of the range
"""),
    *(
        Column(column, "int64", "ns", f"CLOCK_MONOTONIC at the place {name.replace('_', ' ')}")
        for name, column in COLUMNS.items()
    ),
    *(Column(column, "double", "us", f"the part {name}") for name, column in PART_COLUMNS.items()),
    Column("retrans", "int64", "", "how often it was sent again"),
    Column("certain", "bool", "", "its parts are known", False),
    Column("state", "string", "", _STATES, False),
)
GROUPS = lines("""
cgroup | int64 | | id of the control group: the column cgroup of records and connections
path | string | | its path below the root of cgroup2
unit | string? | | the systemd unit that it is of
runtime | string? | | docker, containerd, cri-o, podman, systemd-nspawn, machined or lxc
container | string? | | the container: its name, else the beginning of its id
container_id | string? | | its whole id
image | string? | | and its image
pod | string? | | the pod: namespace/name, else its uid
pod_uid | string? | | its uid
user | string? | | number of the user whose session or service manager it is of
""")
DROPS = lines("""
time | time? | | when, as time of day; null where the capture has no clock pair
time_ns | int64 | ns | when, CLOCK_MONOTONIC
conn_id | int64? | | the socket's connection, else the last one with these ends; null: none
netns | int64? | | cookie of the network namespace, where the capture has it
laddr | string | | this host's address; of a packet on its way through, the receiver's
lport | int64 | | and port: that of the listener, where the packet found one
raddr | string | | the peer's address
rport | int64 | | and port
state | string? | | of the socket that it found: LISTEN, a listener; null: it found none
reason | string | | enum skb_drop_reason of that kernel; its number where the kernel gives no name
function | string? | | the function that dropped it; null: not known, and of RCVQ_FULL
dir | string | | out: this host sent it; in: it arrived
seq | int64 | | its sequence number
len | int64 | bytes | its payload
flags | int64 | | its flags, as seg_flags
""")
LISTENERS = lines("""
time | time? | | when, as time of day; null where the capture has no clock pair
time_ns | int64 | ns | when, CLOCK_MONOTONIC
event | string | | listen, connection (made), syn or ack (found a queue full), drop, close
conn_id | int64? | | the connection that was made
netns | int64? | | cookie of the network namespace, where the capture has it
laddr | string | | the listener's address; of a packet, where it went
lport | int64 | | and port
raddr | string? | | the peer's address
rport | int64? | | and port
queue | int64 | connections | connections that waited for accept()
backlog | int64 | connections | the limit: one more than it may wait
drops | int64? | segments | SYNs and ACKs dropped so far; null of a connection, as in the next five
syn_queue | int64? | connections | handshakes that are not complete
reuseport | int64? | sockets | sockets of its SO_REUSEPORT group; 0: it has none
defer_accept | int64? | SYN-ACKs | TCP_DEFER_ACCEPT: so many it sends while it waits for data
tfo_queue | int64? | connections | TCP Fast Open: connections whose handshake is not complete
tfo_backlog | int64? | connections | and the limit; 0: it is off
cookie_us | int64 | us | since the last SYN cookie, to the second; 0: none is known
""")
RECORD_HEAD = lines("""
time | time? | | when, as time of day; null where the log has no clock pair
time_ns | int64 | ns | when, CLOCK_MONOTONIC
serial | int64 | | the CPU's own number of the record, from 1
cpu | int64 | | the CPU
""")
"""What each table of events begins with; `snapshots` of a log too."""


def _of(declarations: Iterable[Any]) -> tuple[Column, ...]:
    return tuple(declared(one.name, one.kind, one.text, one.null) for one in declarations)


SHIPPED: dict[str, tuple[str, tuple[Column, ...]]] = {
    "connections": ("a row for each connection", _of(CONNECTIONS)),
    "intervals": ("a row for each time in which one limit held a connection", _of(INTERVALS)),
    "causes": ("a row for each cause by which a connection failed or waited",
               _of(CAUSES_OF_CONNECTIONS)),
    "mptcp": ("a row for each MPTCP connection above its subflows", _of(WHOLES)),
    "requests": ("a row for each request and its answer", _of(EXCHANGES)),
    "latency": ("a row for each byte range on its way through the layers", LATENCY),
    "drops": ("a row for each packet that the kernel dropped", DROPS),
    "listeners": ("a row for each record of a listener's queues", LISTENERS),
    "groups": ("a row for each control group that the capture tells of", GROUPS),
    "ledger": ("a row for each CPU and location: attempts, and losses by cause", LEDGER),
    "proof": ("a row for each file: what verify says of it", PROOF),
}
"""What a row is, and the columns, of each table but snapshots and those of events."""


def column_of(name: str, kind: str, field: Any = None) -> Column:
    """A column of records. kind: time, int, uint, text or bytes. field: as a schema declares it."""
    types = {"time": TIME, "int": "int64", "uint": "uint64", "text": "string", "bytes": "binary"}
    told = {"time": "when, as time of day", "time_ns": "when, CLOCK_MONOTONIC"}
    unit = "" if field is None or kind == "time" else field.unit
    text = told.get(name, "") or ("" if field is None else field.doc)
    return Column(name, types[kind], unit, text, field is None or field.none is not None)


def snapshot_columns(schema: Schema, event: Event) -> tuple[Column, ...]:
    """Those of the table snapshots, where the capture has all columns of the schema tcp."""
    enums = {enum.name for enum in schema.enums}
    found = []
    for field in event.fields:
        kind = "uint" if field.name in ADDRESSES else "int"
        if field.name == "time":
            kind = "time"
        elif field.type.startswith("string") or {field.type, field.name} & enums:
            kind = "text"
        found.append(column_of(field.name, kind, field))
    return tuple(found)
