# SPDX-License-Identifier: Apache-2.0
"""Reads the records of one connection, and what a script needs to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.why import Block, Source
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.limits import MOST_SCRIPT_RECORDS
from tcpkmon.formats.base.ports import ANY, find_missing, match_ports, parse_connection
from tcpkmon.formats.base.text import address_of
from tcpkmon.formats.psc.header import KIND_KERNEL
from tcpkmon.formats.psc.reader import Capture

NEEDED = (
    "location", "callvalue", "conn_id", "lport", "rport", "laddr", "raddr", "state", "ca_state",
    "ca_name", "seg_seq", "seg_ack", "seg_len", "seg_flags", "snd_una", "snd_nxt", "snd_fack",
    "write_seq", "rcv_nxt", "copied_seq", "snd_wnd", "max_window", "snd_wscale", "rcv_wscale",
    "mss", "advmss", "snd_cwnd_segs", "snd_ssthresh", "srtt_us", "packets_out", "sacked_out",
    "lost_out", "retrans_out", "total_retrans", "backoff", "dsack_dups", "segs_in", "segs_out",
    "data_segs_out", "first_tx_us", "next_tx_us", "sk_pacing_status", "ecn_flags",
)  # fmt: skip
"""The columns of which a script is made."""
_HZ = 100
"""The slowest, where the capture does not tell."""
Row = dict[str, int]
"""A record: its columns; `ns`, CLOCK_MONOTONIC; `lost`, records missing before it; `ca`, 1 + the
place of its ca_name in Recorded.algorithms, 0: it has none."""


@dataclass
class Recorded:
    """One connection. rows: in the capture's order. local, remote: addresses. sysctl: of the host.
    algorithms: the congestion controls that it used."""

    path: str
    rows: list[Row]
    local: str
    remote: str
    sysctl: dict[str, str]
    kernel: str
    algorithms: list[str]
    tick_ns: int
    """Of the kernel's timers."""
    sees_closing: bool
    """Whether it has the segments that arrived after an end was closed."""

    @property
    def name(self) -> str:
        """Both ends, as -p takes them."""
        return f"{self.rows[0]['lport'] or self.rows[-1]['lport']}.{self.rows[-1]['rport']}"


def read_connection(source: Source, connection: str) -> Recorded:
    """The records of the connection LPORT.RPORT, of the end with this local port if the capture has
    both. UsageError where it lacks a column; FileError where it has no such connection, or several.
    """
    pair = parse_connection(connection)
    if lacks := [name for name in NEEDED if name not in source.known]:
        raise UsageError(
            f"{source.reader.path} lacks what a script is made of: {', '.join(lacks[:5])}",
            "capture the schema tcp with --columns all",
        )
    source.names = [*dict.fromkeys((*source.names, *NEEDED))]
    chosen: dict[int, tuple[int, int]] = {}
    for piece in source.read():
        ids, lport, rport = (piece[name] for name in ("conn_id", "lport", "rport"))
        at = np.flatnonzero(match_ports((pair,), lport, rport))
        numbers, firsts = np.unique(ids[at], return_index=True)
        for one, first in zip(numbers.tolist(), at[firsts].tolist(), strict=True):
            chosen[one] = (int(lport[first]), int(rport[first]))
    if note := find_missing((pair,), set(chosen.values()), str(source.reader.path)):
        raise FileError(note)
    mine = [one for one, ends in chosen.items() if pair in (ends, (ends[0], ANY))] or [*chosen]
    if len(mine) > 1:
        raise FileError(f"{connection} are the ports of {len(mine)} connections in turn",
                        "tcpkmon cut leaves one: give --since and --until")  # fmt: skip
    # Its records from before it had its ports belong to it too: so the capture is read again.
    (block,) = source.blocks(ids=np.array(mine, np.uint64))
    return _recorded(source, block)


def _recorded(source: Source, block: Block) -> Recorded:
    count = len(block)
    if count > MOST_SCRIPT_RECORDS:
        raise UsageError(f"the connection has {count:,} records, and a script at most "
                         f"{MOST_SCRIPT_RECORDS:,}",
                         "tcpkmon cut --since --until takes a part")  # fmt: skip
    columns = {
        name: block[name].astype(np.int64).tolist()
        for name in NEEDED if name not in ("laddr", "raddr", "ca_name")
    }  # fmt: skip
    texts = [bytes(one).rstrip(b"\0") for one in
             np.ascontiguousarray(block["ca_name"]).view("S16").ravel()]  # fmt: skip
    names = [one for one in dict.fromkeys(texts) if one]
    columns["ca"] = [names.index(one) + 1 if one else 0 for one in texts]
    columns["ns"], columns["lost"] = block.times_ns.tolist(), block.lost.tolist()
    rows: list[Row] = [dict(zip(columns, values, strict=True))
                       for values in zip(*columns.values(), strict=True)]  # fmt: skip
    local, remote = (
        address_of(np.ascontiguousarray(block[name]).tobytes()[-16:])
        for name in ("laddr", "raddr")
    )
    settings = source.settings()
    hz = settings.get("hz")
    system = settings.get("system")
    sysctl = system.get("sysctl") if isinstance(system, dict) else None
    if isinstance(reader := source.reader, Capture):
        kernel: Any = reader.header.text(KIND_KERNEL)
    else:
        kernel = reader.format.header.get("kernel")
    known = {name: value for name, value in (sysctl if isinstance(sysctl, dict) else {}).items()
             if isinstance(name, str) and isinstance(value, str)}  # fmt: skip
    algorithms = [one.decode("ascii", "replace") for one in names]
    return Recorded(str(source.reader.path), rows, local, remote, known,
                    kernel if isinstance(kernel, str) else "", algorithms,
                    1_000_000_000 // (hz if isinstance(hz, int) and hz > 0 else _HZ),
                    source.records("SEGMENT_CLOSING"))  # fmt: skip


def find_event(found: Recorded, name: str, codes: Mapping[str, int]) -> int:
    """When the first record of a location is, CLOCK_MONOTONIC. codes: numbers by name. UsageError,
    FileError."""
    location = name.upper().replace("-", "_")
    if location not in codes:
        raise UsageError(f"--around {name}: no location of this name", "see docs/locations.md")
    times = [row["ns"] for row in found.rows if row["location"] == codes[location]]
    if not times:
        raise FileError(f"connection {found.name} has no {location}", "give --since and --until")
    return times[0]
