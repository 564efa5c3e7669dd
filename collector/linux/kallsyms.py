# SPDX-License-Identifier: Apache-2.0
"""Addresses of kernel functions by name, and names by address, from /proc/kallsyms."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

KALLSYMS = Path("/proc/kallsyms")
_DIGITS, _NAME = 16, 19
"""Of a line: so long is the address, and there begins the name."""
_KINDS, _PADDING = (np.frombuffer(text, np.uint8) for text in (b"tTwW", b"__pfx_"))
"""Of functions; and how the names of the bytes in front of some of them begin."""


class Kallsyms:
    """The functions of the running kernel and its modules. The file is read at the first use.

    fd: the open file; what it shows depends on the rights of who opened it. None: it is opened.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

    def name(self, address: int) -> bytes:
        """The function that has code at this address; empty where none is known."""
        addresses, names = self._sorted
        at = int(np.searchsorted(addresses, np.uint64(address), "right")) - 1
        if at < 0 or not addresses[at]:
            return b""
        return self._listing[names[at] : self._listing.index(b"\n", names[at])].split(b"\t")[0]

    def bytes_of(self, address: int) -> int:
        """The length of the function that begins at this address, up to the next; 0: not known."""
        addresses, _ = self._sorted
        at = int(np.searchsorted(addresses, np.uint64(address), "right"))
        known = 0 < at < len(addresses) and address and addresses[at - 1] == address
        return int(addresses[at]) - address if known else 0

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The addresses in order, and where the name of each begins in the listing."""
        octets = np.frombuffer(self._listing + bytes(_NAME + len(_PADDING)), np.uint8)
        starts = np.flatnonzero(octets == ord("\n"))[:-1] + 1
        starts = starts[np.isin(octets[starts + _DIGITS + 1], _KINDS)]
        begins = octets[(starts + _NAME)[:, None] + np.arange(len(_PADDING))]
        starts = starts[(begins != _PADDING).any(1)]
        addresses = np.zeros(len(starts), np.uint64)
        for at in range(_DIGITS):
            digit = octets[starts + at]
            addresses = addresses << np.uint64(4) | ((digit & 15) + 9 * (digit >> 6))
        # The kernel's own are in order, those of modules are not.
        order = np.argsort(addresses, kind="stable")
        return addresses[order], starts[order] + _NAME

    @cached_property
    def _listing(self) -> bytes:
        of = KALLSYMS if self._fd is None else self._fd
        with open(of, "rb", closefd=self._fd is None) as file:
            file.seek(0)
            return b"\n" + file.read()

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
