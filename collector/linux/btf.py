# SPDX-License-Identifier: Apache-2.0
"""The running kernel's types by name, from its BTF: struct members, enums, functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tcpkmon.collector.linux.btf_raw import (
    COMPOSITE,
    DEEPEST,
    ENUMS,
    QUALIFIERS,
    Blob,
    Integer,
    Kind,
    Member,
    Struct,
    damaged,
)
from tcpkmon.formats.base.errors import KernelError

__all__ = ["COMPOSITE", "ENUMS", "QUALIFIERS", "Btf", "Integer", "Kind", "Member", "Struct"]

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
BBR_BTF = Path("/sys/kernel/btf/tcp_bbr")
"""Where BBR is a module. It is there while that is loaded."""


class Btf(Blob):
    """A kernel's types, by name. An index of names is built at its first use.

    find() gives the id of a type, and the methods of Blob describe it. Damaged data raises
    KernelError, here or where it is read.
    """

    def __init__(self, data: bytes, module: bytes = b"") -> None:
        super().__init__(data, module)
        self._indexes: dict[Kind, dict[str, int]] = {}
        self._flattened: dict[int, tuple[Member, ...]] = {}

    @classmethod
    def from_kernel(cls) -> Btf:
        """The running kernel's types, with those of BBR where that is a loaded module."""
        return cls.from_file(KERNEL_BTF, bbr_types())

    @classmethod
    def from_file(cls, path: str | Path, module: bytes = b"") -> Btf:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            hint = "the kernel must be built with CONFIG_DEBUG_INFO_BTF=y"
            raise KernelError(f"cannot read {path}: {error.strerror}", hint) from None
        return cls(data, module)

    def find(self, kind: Kind, name: str) -> int | None:
        """The first type of that kind and name."""
        if kind is Kind.FUNC:
            # For fifty thousand names a search of the strings is cheaper than an index.
            if not name or not name.isascii():
                return None
            offset = self._strings.find(b"\0" + name.encode() + b"\0") + 1
            # Programs attach to functions of the kernel itself: a module's have other ids there.
            own = slice(self._kernel_count + 1)
            wanted = (self._kinds[own] == Kind.FUNC) & (self._name_offsets[own] == offset)
            ids = np.flatnonzero(wanted).tolist()
            return ids[0] if offset and ids else None
        index = self._indexes.get(kind)
        if index is None:
            index = self._indexes[kind] = {}
            for type_id in np.flatnonzero(self._kinds == kind).tolist():
                index.setdefault(self._text(int(self._name_offsets[type_id])), type_id)
        return index.get(name) if name else None

    def find_enum(self, name: str) -> int | None:
        """The first enum of that name, or else one without a name that has a constant of it."""
        found = self.find(Kind.ENUM, name) or self.find(Kind.ENUM64, name)
        if found is not None or f"\0{name}\0".encode() not in self._strings:
            return found
        nameless = np.isin(self._kinds, list(ENUMS)) & (self._name_offsets == 0)
        ids = np.flatnonzero(nameless).tolist()
        return next((type_id for type_id in ids if name in self.enumerators(type_id)), None)

    def struct(self, name: str) -> Struct:
        """The struct (or else union) of that name; KernelError if there is none."""
        type_id = self.find(Kind.STRUCT, name) or self.find(Kind.UNION, name)
        if type_id is None:
            raise KernelError(f"this kernel has no struct {name}")
        return self.composite(type_id)

    def struct_bytes(self, name: str) -> int:
        """The size of the struct (or else union) of that name; KernelError if there is none."""
        return self.struct(name).size_bytes

    def member(self, struct_name: str, path: str) -> Member | None:
        """The member at `a.b.c`, with its offset from the struct's start; None where a part is
        absent."""
        type_id = self.find(Kind.STRUCT, struct_name) or self.find(Kind.UNION, struct_name)
        found: Member | None = None
        base_bits = 0
        for part in path.split("."):
            if type_id is None or self.kind(type_id) not in COMPOSITE:
                return None
            inner = next((m for m in self.flattened(type_id) if m.name == part), None)
            if inner is None:
                return None
            found = replace(inner, offset_bits=base_bits + inner.offset_bits)
            base_bits, type_id = found.offset_bits, self.resolve(found.type_id)
        return found

    def has_member(self, struct_name: str, path: str) -> bool:
        return self.member(struct_name, path) is not None

    def flattened(self, type_id: int, depth: int = 0) -> tuple[Member, ...]:
        """The named members, also those of anonymous structs and unions in it; each with its
        offset from the start of this type."""
        known = self._flattened.get(type_id)
        if known is not None:
            return known
        if depth > DEEPEST:
            raise damaged(f"type {type_id} contains itself")
        found = []
        for member in self.composite(type_id).members:
            inner = type_id if member.name else self.resolve(member.type_id)
            if member.name:
                found.append(member)
            elif self.kind(inner) in COMPOSITE:
                for m in self.flattened(inner, depth + 1):
                    found.append(replace(m, offset_bits=member.offset_bits + m.offset_bits))
        self._flattened[type_id] = tuple(found)
        return self._flattened[type_id]

    def tag(self, type_id: int) -> str:
        """"struct", "union" or "enum"; "" for other types."""
        kind = self.kind(type_id)
        if kind is Kind.FWD:
            return "union" if self._head(type_id)[3] else "struct"
        return kind.name.removesuffix("64").lower() if kind in COMPOSITE | ENUMS else ""


def bbr_types() -> bytes:
    """The types of the module tcp_bbr; empty where it is not loaded, or part of the kernel."""
    try:
        return BBR_BTF.read_bytes()
    except OSError:
        return b""
