# SPDX-License-Identifier: Apache-2.0
"""What tcpkmon top shows of the connections: those that have a text, alone or in groups, the first
by a key.

A port's group is that of the side that was called: of this host where it accepted, else of the
peer. Where neither is known, as of connections that were open before, it is the smaller one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.metrics.owners import Find, unknown
from tcpkmon.collector.metrics.words import GROUP_SORTS, OWNERS, STATES
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.text import address_of, text_of

SHOWN = (
    "state", "srtt_us", "min_rtt_us", "snd_cwnd_segs", "mss", "retrans_out", "lport", "rport",
    "pid",
)  # fmt: skip
"""Columns that are told as they are, if the capture stores them."""
_RATES = ("acked_rate", "received_rate", "retransmits_rate", "opened_rate", "closed_rate")
_TOLD = ("id", "acked", "received", "retransmits", *_RATES)
_NEEDED = {"port": ("lport", "rport"), "peer": ("raddr",), "process": ("comm",),
           "command": ("comm",), **{by: ("cgroup",) for by in OWNERS}}  # fmt: skip
_LOCAL = 1 << 16
_V4_MAPPED = bytes(10) + b"\xff\xff"


class Chosen:
    """Some rows of a large table: a column is gathered when it is asked for."""

    def __init__(self, table: NDArray[Any], at: NDArray[np.int64]) -> None:
        self._table, self._at, self.dtype = table, at, table.dtype

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, what: Any) -> NDArray[Any]:
        """A column, several of them by a list of names, or whole rows by their numbers."""
        if isinstance(what, str):
            column: NDArray[Any] = self._table[what][self._at]
            return column
        if isinstance(what, list):
            return _repack(self._table[what][self._at])
        rows: NDArray[Any] = self._table[self._at[what]]
        return rows

    def of(self, chosen: NDArray[Any]) -> Chosen:
        """Those of these numbers."""
        return Chosen(self._table, self._at[chosen])


Rows = NDArray[Any] | Chosen


def groupings(rows: Rows) -> list[str]:
    """The groups that the stored columns allow."""
    names = set(rows.dtype.names or ())
    return [by for by, needed in _NEEDED.items() if names.issuperset(needed)]


def wanted(rows: Rows, text: str, find: Find = unknown) -> NDArray[np.bool_]:
    """(n,) which rows have this text in their addresses, ports, state, owner, unit, container or
    pod.

    The capture's process asks it of all connections, so each part is looked at once for each value
    that it has: the text is in an address, in a port, or in the end of one and the other's begin.
    """
    names, text = rows.dtype.names or (), text.lower()
    found = np.zeros(len(rows), np.bool_)
    for side in "lr" if len(rows) else "":
        if f"{side}port" in names:
            found |= _has_end(rows, side, text)
    if "state" in names and len(rows):
        states, at = np.unique(rows["state"], return_inverse=True)
        shown = [STATES[one] if one < len(STATES) else str(one) for one in states.tolist()]
        found |= np.array([text in one.lower() for one in shown])[at]
    if "comm" in names and len(rows):
        firsts, at = _distinct(rows[[name for name in ("pid", "comm") if name in names]])
        found |= np.array([text in one.lower() for one in _owners(rows[firsts])])[at]
    if "cgroup" in names and len(rows):
        numbers, at = np.unique(rows["cgroup"], return_inverse=True)
        owners = [[getattr(group, by).lower() for by in OWNERS] if group is not None else []
                  for group in map(find, numbers.tolist())]  # fmt: skip
        found |= np.array([any(text in one for one in some) for some in owners])[at]
    return found


def _has_end(rows: Rows, side: str, text: str) -> NDArray[np.bool_]:
    """(n,) which rows have the text in `address:port` of a side."""
    ports = rows[f"{side}port"].astype(np.int64)
    found = np.zeros(len(rows), np.bool_)
    addresses, at = [""], np.zeros(len(rows), np.int64)
    if f"{side}addr" in (rows.dtype.names or ()):
        raw = rows[f"{side}addr"]
        firsts, at = _distinct(raw)
        addresses = [_address(one) for one in raw[firsts].tolist()]
        found |= np.array([text in one for one in addresses])[at]
    if text.isdigit() and text.isascii():
        found |= np.array([text in str(port) for port in range(1 << 16)])[ports]
    for place, letter in enumerate(text):
        before, after = text[:place], text[place + 1 :]
        if letter == ":" and (not after or (after.isdigit() and after.isascii())):
            ends = np.array([one.endswith(before) for one in addresses])[at]
            begins = np.array([str(port).startswith(after) for port in range(1 << 16)])
            found |= ends & begins[ports]
    return found


def _address(raw: bytes) -> str:
    if raw[:12] == _V4_MAPPED:  # most are; ten times as fast
        return ".".join(map(str, raw[12:]))
    return address_of(raw)


def _repack(values: NDArray[Any]) -> NDArray[Any]:
    from numpy.lib.recfunctions import repack_fields  # slow to import, and no start needs it

    packed: NDArray[Any] = repack_fields(values)
    return packed


def _distinct(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each value is first, and (n,) which of them each row has."""
    width = -(-values.dtype.itemsize // 8) * 8
    padded = np.zeros((len(values), width), np.uint8)
    packed = np.ascontiguousarray(_repack(values)) if values.dtype.names else values
    octets = np.ascontiguousarray(packed).view(np.uint8).reshape(len(values), -1)
    padded[:, : octets.shape[1]] = octets
    which = np.zeros(len(values), np.int64)
    for word in padded.view(np.uint64).T:
        if (word != word[0]).any():
            _, more = np.unique(word, return_inverse=True)
            _, which = np.unique(which * len(values) + more, return_inverse=True)
    _, firsts = np.unique(which, return_index=True)
    return firsts, which


def first(
    totals: Rows, rows: Rows, sort: str, most: int, find: Find = unknown
) -> dict[str, list[Any]]:
    """The first connections by a key of SORTS, the largest first: a list for each column."""
    names = rows.dtype.names or ()
    keys = _keys(totals, sort) if sort not in names else rows[sort]
    chosen = np.argsort(-keys.astype(np.float64), kind="stable")[:most]
    totals, rows = totals[chosen], rows[chosen]
    found = {name: totals[name].tolist() for name in _TOLD}
    found |= {name: rows[name].tolist() for name in SHOWN if name in names}
    found |= {name: _texts(rows[name], address_of) for name in ("laddr", "raddr") if name in names}
    if "comm" in names:
        found["comm"] = _texts(rows["comm"], text_of)
    if "cgroup" in names:
        found |= {by: owners_of(rows, by, find) for by in OWNERS}
    return found


def owners_of(rows: Rows, by: str, find: Find) -> list[str]:
    """The unit, container or pod of each row; empty where it has none, or nobody knows."""
    numbers = rows["cgroup"].tolist()
    known = {number: getattr(find(number), by, "") for number in set(numbers)}
    return [known[number] for number in numbers]


def groups(
    totals: Rows, rows: Rows, is_open: NDArray[np.bool_], by: str, sort: str, most: int,
    find: Find = unknown,
) -> dict[str, list[Any]]:  # fmt: skip
    """The first groups by a key of GROUP_SORTS, the largest first: a list for each column.

    is_open: (n,) of the connections. TcpkmonError where a column is missing.
    """
    if by not in groupings(rows):
        lacking = " and ".join(_NEEDED[by])
        raise TcpkmonError(
            f"groups by {by} need the column {lacking}", "collect --columns default,pid,comm,cgroup"
        )
    keys = _keys_of(totals, rows, by, find)
    _, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    count = len(firsts)
    found = np.zeros(count, [(name, "=f8") for name in (*_TOLD[1:], "open", "srtt_us")])
    for name in _TOLD[1:]:
        found[name] = np.bincount(inverse, totals[name], count)
    found["open"] = np.bincount(inverse, is_open, count)
    if "srtt_us" in (rows.dtype.names or ()):
        measured = rows["srtt_us"] > 0
        sums = np.bincount(inverse, rows["srtt_us"], count)
        found["srtt_us"] = sums / np.maximum(np.bincount(inverse, measured, count), 1)
    values = _keys(found, sort if sort in GROUP_SORTS else "rate")
    chosen = np.argsort(-values, kind="stable")[:most]
    told = {name: found[name][chosen].tolist() for name in found.dtype.names or ()}
    at = firsts[chosen]
    return {"group": _labels(keys[at], rows[at], by, find), **told}


def _keys(totals: Rows, sort: str) -> NDArray[Any]:
    if sort == "rate":
        rates: NDArray[Any] = totals["acked_rate"] + totals["received_rate"]
        return rates
    names = totals.dtype.names or ()
    name = f"{sort}_rate" if sort in ("opened", "closed") else sort
    values: NDArray[Any] = totals[name if name in names else names[0]]
    return values


def _keys_of(totals: Rows, rows: Rows, by: str, find: Find) -> NDArray[Any]:
    """(n,) a value for each row: rows of one group have the same."""
    if by == "peer":
        return _opaque(rows["raddr"])
    if by == "command":
        return _opaque(rows["comm"])
    if by in OWNERS:
        texts = owners_of(rows, by, find)
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        return np.array([places[text] for text in texts], np.int64)
    if by == "process":
        names = [name for name in ("pid", "comm") if name in (rows.dtype.names or ())]
        packed = np.zeros(len(rows), [(name, rows.dtype[name]) for name in names])
        for name in names:
            packed[name] = rows[name]
        return _opaque(packed)
    local, remote = rows["lport"].astype(np.int64), rows["rport"].astype(np.int64)
    role = totals["role"]
    is_local = (role < 0) | ((role == 0) & (local <= remote))
    return np.where(is_local, local | _LOCAL, remote)


def _labels(keys: NDArray[Any], rows: Rows, by: str, find: Find) -> list[str]:
    if by == "peer":
        return _texts(rows["raddr"], address_of)
    if by in OWNERS:
        return [name or "-" for name in owners_of(rows, by, find)]
    if by == "process":
        return _owners(rows)
    if by == "command":
        return [name or "-" for name in _texts(rows["comm"], text_of)]
    return [f"{'local' if key & _LOCAL else 'remote'} {key % _LOCAL}" for key in keys.tolist()]


def _opaque(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"V{values.dtype.itemsize}")


def _texts(values: NDArray[Any], text: Any) -> list[str]:
    """The text of each value; each value that occurs is made once."""
    listed = [bytes(one) for one in values.tolist()]
    known = {one: str(text(one)) for one in set(listed)}
    return [known[one] for one in listed]


def _owners(rows: Rows) -> list[str]:
    names = _texts(rows["comm"], text_of)
    if "pid" not in (rows.dtype.names or ()):
        return [name or "-" for name in names]
    pids = rows["pid"].tolist()
    return [f"{name}/{pid}" if pid else name or "-" for name, pid in zip(names, pids, strict=True)]
