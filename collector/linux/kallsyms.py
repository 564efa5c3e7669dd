# SPDX-License-Identifier: Apache-2.0
"""Addresses of kernel functions by name, and names by address, from /proc/kallsyms."""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

KALLSYMS = Path("/proc/kallsyms")
_DIGITS = 16
"""Of an address in the listing."""
_LINE = re.compile(rb"^([0-9a-f]+) [tTwW] (?!__pfx_)", re.MULTILINE)


class Kallsyms:
    """The functions of the running kernel and its modules. The file is read at the first use."""

    def name(self, address: int) -> bytes:
        """The function that has code at this address; empty where none is known."""
        addresses, lines = self._sorted
        at = bisect_right(addresses, address) - 1
        if at < 0 or not addresses[at]:
            return b""
        return self._listing[lines[at] : self._listing.index(b"\n", lines[at])].split(b"\t")[0]

    def bytes_of(self, address: int) -> int:
        """The length of the function that begins at this address, up to the next; 0: not known."""
        addresses, _ = self._sorted
        at = bisect_right(addresses, address)
        known = 0 < at < len(addresses) and address and addresses[at - 1] == address
        return addresses[at] - address if known else 0

    @cached_property
    def _sorted(self) -> tuple[array[int], array[int]]:
        """The addresses in order, and where the name of each begins in the listing."""
        addresses, names = array("Q"), array("Q")
        for line in _LINE.finditer(self._listing):
            addresses.append(int(line[1], 16))
            names.append(line.end())
        # The kernel's own are in order, those of modules are not.
        order = sorted(range(len(addresses)), key=addresses.__getitem__)
        return array("Q", map(addresses.__getitem__, order)), array(
            "Q", map(names.__getitem__, order)
        )

    @cached_property
    def _listing(self) -> bytes:
        return b"\n" + KALLSYMS.read_bytes()

    def functions(self, name: str) -> tuple[int, ...]:
        """The addresses of all functions of this name; each 0 where kptr_restrict hides them."""
        found = []
        wanted = f" {name}".encode()
        at = self._listing.find(wanted)
        # Lines are "ADDRESS KIND NAME", and "\t[MODULE]" after some.
        while at >= 0:
            end = at + len(wanted)
            if self._listing[at - 1 : at] in b"tT" and self._listing[end : end + 1] in b"\t\n":
                start = self._listing.rfind(b"\n", 0, at) + 1
                found.append(int(self._listing[start:at].split()[0], 16))
            at = self._listing.find(wanted, end)
        return tuple(found)


def names_at(fd: int, addresses: Iterable[int]) -> dict[int, bytes]:
    """The functions that have code at these addresses, from the open listing; b"" where none is
    known. This keeps nothing in memory, and takes 0.1 s."""
    os.lseek(fd, 0, os.SEEK_SET)
    pieces = []
    while piece := os.read(fd, 1 << 20):
        pieces.append(piece)
    listing = b"".join(pieces)
    octets = np.frombuffer(listing, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(octets == ord("\n"))[:-1] + 1])
    starts = starts[starts + _DIGITS + 2 < len(octets)]
    starts = starts[np.isin(octets[starts + _DIGITS + 1], np.frombuffer(b"tTwW", np.uint8))]
    found = np.zeros(len(starts), np.uint64)
    for at in range(_DIGITS):
        digit = octets[starts + at]
        found = found << np.uint64(4) | ((digit & 15) + 9 * (digit >> 6)).astype(np.uint64)
    names = {}
    for address in set(addresses):
        below = np.where(found <= np.uint64(address), found, np.uint64(0))
        name = b""
        for row in np.flatnonzero(below == below.max()) if len(below) and below.max() else ():
            end = listing.index(b"\n", starts[row])
            one = listing[starts[row] + _DIGITS + 3 : end].split(b"\t")[0]
            name = name or (b"" if one.startswith(b"__pfx_") else one)
        names[address] = name
    return names
