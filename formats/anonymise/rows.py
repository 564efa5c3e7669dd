# SPDX-License-Identifier: Apache-2.0
"""Records with their fields replaced. Bytes that belong to no field are zero afterwards."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.base.errors import UsageError

# What in a capture could name somebody, in kinds; and of which kind each field is.

KINDS = {
    "addresses": "IP addresses, by a permutation that keeps common prefixes",
    "hosts": "host names, also in names of files; the id of the boot",
    "names": "names of processes, of users and of network namespaces",
    "users": "numbers of users; 0 stays",
    "cgroups": "ids and paths of cgroups",
    "devices": "names of network devices, but lo, ethN, ifbN and wlanN",
    "commands": "command lines, also that of the capture",
    "paths": "paths and names of files",
    "notes": "marks, the comments of schemata, what triggers and cuts were asked for",
    "texts": "texts and bytes of which nobody knows what they mean, such as those of your schemata",
    "ports": "ports from 1024 on, by a permutation",
    "special": "addresses that are alike everywhere: loopback, link-local, multicast, unspecified",
    "kernel": "release and version of the kernel and of drivers",
}
"""Each kind, and what it is."""
_NOT_BY_DEFAULT = ("ports", "special", "kernel")
DEFAULT = frozenset(KINDS) - {*_NOT_BY_DEFAULT}
"""What is replaced unless somebody wants otherwise."""
ALWAYS_KEPT = (
    "times, sequence numbers, sizes and counts, numbers of processes, inodes, devices and network "
    "namespaces, addresses in memory, well-known ports"
)
"""What is not replaced, in words."""

KEEP = ""
"""The kind of what stays as it is."""
ADDRESS_TEXT, PORT_PAIR = "address text", "port pair"
"""Of addresses and of ports, but stored as a text, and as two ports in one number."""
_KERNELS_TEXTS = {
    ("LOGGING_EVENT", "name"), ("PROGRAM_LEDGER", "program"), ("SNAPSHOT", "ca_name"),
    ("SPINLOCK_INIT", "name"), ("RWLOCK_INIT", "name"), ("SLEEP", "symbol"),
    ("SAMPLE", "symbol"), ("SAMPLE_FRAME", "symbol"), ("PREEMPT_OFF", "from_function"),
    ("PREEMPT_OFF", "until_function"), ("IRQS_OFF", "from_function"),
    ("IRQS_OFF", "until_function"), ("DROP_PLACE", "function"),
}  # fmt: skip
"""Texts that name parts of a schema or of the kernel: by event and field."""
_BY_NAME = {
    "comm": "names", "cmdline": "commands", "filename": "paths", "kernel": "kernel",
    "uid": "users", "loginuid": "users", "euid": "users", "suid": "users", "gid": "users",
    "cgroup": "cgroups", "text": "notes", "laddr": ADDRESS_TEXT, "raddr": ADDRESS_TEXT,
    "saddr": ADDRESS_TEXT, "daddr": ADDRESS_TEXT,
}  # fmt: skip
_PORT = re.compile(r"([lrsd]|src_?|dst_?|local_?|remote_?)?port|source|dest|tcp_source|tcp_dest")
_ADDRESS = re.compile(r"(\w*_)?([lrsd]|src_?|dst_?)?(addr|address|ip)")


def choose(keep: Iterable[str], also: Iterable[str]) -> frozenset[str]:
    """The kinds that are replaced. UsageError for one that there is not."""
    unknown = [one for one in (*keep, *also) if one not in KINDS]
    if unknown:
        raise UsageError(f"no such kind: {', '.join(unknown)}", f"give some of {', '.join(KINDS)}")
    both = sorted({*keep} & {*also})
    if both:
        raise UsageError(f"{', '.join(both)}: to be kept and to be replaced", "give it once")
    return (DEFAULT - {*keep}) | {*also}


def kind_of_value(event: str, name: str, kind: str, length: int) -> str:
    """Of a field of an event, from its name. kind: as that of formats.klogger.table.LogField."""
    if kind == "address":
        return "addresses"
    if kind == "enum":
        return KEEP
    known = _BY_NAME.get(name, "texts" if kind in ("string", "bytes") else KEEP)
    if kind == "string":
        return KEEP if (event, name) in _KERNELS_TEXTS else known
    if kind == "bytes":
        return KEEP if (event, name) == ("DISK_QUEUE", "positions") else "texts"
    if known == ADDRESS_TEXT or (length == 4 and _ADDRESS.fullmatch(name)):
        return "addresses" if length == 4 else KEEP
    if name == "ports" and length == 4:
        return PORT_PAIR
    if _PORT.fullmatch(name) and length in (2, 4):
        return "ports"
    return known if known in ("users", "cgroups") else KEEP


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
