# SPDX-License-Identifier: Apache-2.0
"""Addresses of kernel functions by name, from /proc/kallsyms."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

KALLSYMS = Path("/proc/kallsyms")


class Kallsyms:
    """The functions of the running kernel and its modules. The file is read at the first use."""

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
