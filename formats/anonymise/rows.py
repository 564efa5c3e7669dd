# SPDX-License-Identifier: Apache-2.0
"""Records with their fields replaced. Bytes that belong to no field are zero afterwards."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.anonymise.kinds import ADDRESS_TEXT, KEEP, PORT_PAIR
from tcpkmon.formats.anonymise.who import Who


@dataclass(frozen=True)
class Place:
    """A field: offset and length [bytes], its kind (see kinds.py); order: "<" or ">" of a number,
    "" of a text, of which nothing is kept behind its first NUL."""

    offset: int
    length: int
    kind: str = KEEP
    order: str = "<"


class Rows:
    """Replaces the fields of records of `size` bytes."""

    def __init__(self, size: int, places: Sequence[Place], who: Who) -> None:
        self.who = who
        self._kept = np.zeros(size, np.uint8)
        self._changed: list[tuple[Place, Callable[[bytes], bytes] | None]] = []
        for place in places:
            change = self._change(place)
            if change is None and not (place.kind == "addresses" and place.kind in who.replaced):
                self._kept[place.offset : place.offset + place.length] = 0xFF
            else:
                self._changed.append((place, change))

    def _change(self, place: Place) -> Callable[[bytes], bytes] | None:
        who, kind, length = self.who, place.kind, place.length
        if kind == "addresses":
            return None
        if kind == ADDRESS_TEXT:
            return lambda data: _address(who, data, length)
        if place.order == "":
            return lambda data: who.octets(kind, data, length)
        order: Any = "big" if place.order == ">" else "little"

        def of_number(make: Callable[[int], int]) -> Callable[[bytes], bytes]:
            return lambda data: make(int.from_bytes(data, order)).to_bytes(length, order)

        if kind == "texts":  # bytes of which nothing is known
            return (lambda data: b"") if kind in who.replaced else None
        if kind == PORT_PAIR and "ports" in who.replaced:
            return of_number(who.ports)
        if kind in ("users", "cgroups", "ports") and kind in who.replaced:
            return of_number(lambda value: who.number(kind, value, 8 * length))
        return None

    def __call__(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(n, size) uint8, a new one."""
        found = rows & self._kept
        for place, change in self._changed:
            stop = place.offset + place.length
            column = np.ascontiguousarray(rows[:, place.offset : stop])
            distinct, which = np.unique(column.view(f"S{place.length}")[:, 0], return_inverse=True)
            values = [one.ljust(place.length, b"\0") for one in distinct.tolist()]
            new = self.who.addresses(values) if change is None else [change(v) for v in values]
            padded = b"".join(one.ljust(place.length, b"\0") for one in new)
            table = np.frombuffer(padded, np.uint8).reshape(-1, place.length)
            found[:, place.offset : stop] = table[which.reshape(-1)]
        return found


def _address(who: Who, data: bytes, room: int) -> bytes:
    text = data.split(b"\0", 1)[0]
    if not text or "addresses" not in who.replaced:
        return text
    try:
        ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return who.octets("texts", text, room)
    return who.network(text.decode("ascii")).encode()[:room]
