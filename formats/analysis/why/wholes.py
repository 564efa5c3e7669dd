# SPDX-License-Identifier: Apache-2.0
"""MPTCP: the connection above its subflows, which have this host's token in common.

    bytes_sent        what the whole sent: new data, each byte once, by the kernel's count
    carried_sent      what its subflows sent, each once: more, where data went on a second subflow
    reinjected        carried_sent less bytes_sent
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.columns import WHOLES
from tcpkmon.formats.analysis.why.peers import Peers
from tcpkmon.formats.analysis.why.words import human_bytes, human_time
from tcpkmon.formats.base.text import endpoint

_SAME = ("host", "netns", "netns_name", "token", "pid", "comm", "uid", "unit", "container", "pod",
         "role", "laddr", "lport", "raddr", "rport")  # fmt: skip
"""Of its first subflow."""
_SUMS = ("retransmissions", "records")


def wholes(table: Table) -> Table:
    """The table mptcp of the table connections: a row for each connection, in order of time."""
    return _wholes(table, _rows_of(table))


def _wholes(table: Table, groups: list[NDArray[np.int64]]) -> Table:
    tokens = {"token": table["mptcp_token"]}
    counted = any((~np.isnan(table[f"mptcp_{way}"])).any() for way in ("sent", "received"))
    found = [_whole({**table, **tokens}, rows, counted) for rows in groups]
    peers = Peers(table) if found else None
    for row, rows in zip(found, groups, strict=True):
        others = [peers.of(one) for one in table["conn_id"][rows].tolist()] if peers else []
        told = [table["mptcp_token"][other] for other in others if other is not None]
        row["peer_token"] = next((one for one in told if not np.isnan(one)), np.nan)
    made: Table = {}
    for column in WHOLES:
        kind: Any = object if column.kind == "text" else (
            np.bool_ if column.kind == "bool" else np.float64 if column.null or
            column.kind == "float" else np.int64)  # fmt: skip
        made[column.name] = np.array([row[column.name] for row in found], kind)
    return made


def _rows_of(table: Table) -> list[NDArray[np.int64]]:
    """The rows of each token in each namespace, its first subflow first."""
    tokens, spaces = table["mptcp_token"], np.nan_to_num(table["netns"].astype(np.float64))
    rows: dict[tuple[float, float], list[int]] = {}
    at = np.flatnonzero(~np.isnan(tokens))
    for place in at[np.argsort(table["start_ns"][at], kind="stable")].tolist():
        rows.setdefault((spaces[place], tokens[place]), []).append(place)
    return [np.array(some, np.int64) for some in rows.values()]


def _whole(table: Table, rows: NDArray[np.int64], counted: bool) -> dict[str, Any]:
    """counted: the capture has the kernel's counts, of which 0 is null in the table."""
    row = {name: table[name][rows[0]] for name in _SAME if name in table}
    row |= {name: table[name][rows].sum() for name in _SUMS}
    start, end = table["start_ns"][rows].min(), table["end_ns"][rows].max()
    row |= {"start_ns": start, "end_ns": end, "duration_us": (end - start) / 1000}
    row["subflows"] = len(rows)
    row["conn_ids"] = " ".join(map(str, table["conn_id"][rows].tolist()))
    for way in ("sent", "received"):
        row[f"carried_{way}"] = table[f"bytes_{way}"][rows].sum()
        row[f"bytes_{way}"] = _most(table[f"mptcp_{way}"][rows], counted)
    row["acked"] = table["bytes_acked"][rows].sum()
    row["reinjected"] = max(row["carried_sent"] - row["bytes_sent"], 0)
    if np.isnan(row["bytes_sent"]):
        row["reinjected"] = np.nan
    row["timer_retrans"] = _most(table["mptcp_retrans"][rows], counted)
    row["proven"] = bool(table["proven"][rows].all())
    return row


def _most(values: NDArray[np.float64], counted: bool) -> float:
    return float(np.nan_to_num(values).max()) if counted else np.nan


def tell_wholes(table: Table) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Each MPTCP connection of the table connections, with sentences: which subflow carried what,
    and what went twice."""
    groups = _rows_of(table)
    found = _wholes(table, groups)
    for at, rows in enumerate(groups):
        row = {name: values[at] for name, values in found.items()}
        yield row, _sentences(row, table, rows)


def _sentences(row: dict[str, Any], table: Table, rows: NDArray[np.int64]) -> list[str]:
    sends = row["carried_sent"] >= row["carried_received"]
    carried = table["bytes_sent" if sends else "bytes_received"][rows]
    total = max(int(carried.sum()), 1)
    most = row["bytes_sent" if sends else "bytes_received"]
    length = human_bytes(total if np.isnan(most) else most)
    peer = "" if np.isnan(row["peer_token"]) else f", {int(row['peer_token']):08x} at its peer"
    texts = [
        f"MPTCP {int(row['token']):08x}{peer}: {endpoint(row['laddr'], row['lport'])} "
        f"{'->' if sends else '<-'} {endpoint(row['raddr'], row['rport'])}, "
        f"{row['subflows']} subflow{'s' if row['subflows'] > 1 else ''}, "
        f"{human_time(row['duration_us'])}, {length}"
    ]
    for place, size in zip(rows.tolist(), carried.tolist(), strict=True):
        ends = [endpoint(table[f"{end}addr"][place], table[f"{end}port"][place]) for end in "lr"]
        lacks = int(table["bytes_sent"][place] - table["bytes_acked"][place]) if sends else 0
        texts.append(
            f"{100 * size / total:.0f} % went by {ends[0]} {'->' if sends else '<-'} {ends[1]} "
            f"(connection {table['conn_id'][place]}): {human_bytes(size)}"
            + (f", of which {human_bytes(lacks)} was never acknowledged there" if lacks > 0 else "")
        )
    if sends and row["reinjected"] > 0:
        share = 100 * row["reinjected"] / total
        texts.append(
            f"{human_bytes(row['reinjected'])} ({share:.1f} %) went on a second subflow too, as "
            "the first did not deliver it in time"
        )
    return texts
