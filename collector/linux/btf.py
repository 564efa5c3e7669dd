# SPDX-License-Identifier: Apache-2.0
"""The running kernel's types, read from its BTF: where every schema's fields are looked up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from collector.linux.btf_raw import (
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
from formats.base.errors import KernelError

__all__ = ["COMPOSITE", "ENUMS", "QUALIFIERS", "Btf", "Integer", "Kind", "Member", "Struct"]

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")


class Btf(Blob):
    """A kernel's types, by name; the indexes are built when first asked for.

    A type is an id, from find() and its like; Blob has what is asked of an id. Whatever is
    damaged in the data raises KernelError, here or when it is met.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._indexes: dict[Kind, dict[str, int]] = {}
        self._flattened: dict[int, tuple[Member, ...]] = {}

    @classmethod
    def from_kernel(cls) -> Btf:
        """The running kernel's own."""
        return cls.from_file(KERNEL_BTF)

    @classmethod
    def from_file(cls, path: str | Path) -> Btf:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            hint = "the kernel must be built with CONFIG_DEBUG_INFO_BTF=y"
            raise KernelError(f"cannot read {path}: {error.strerror}", hint) from None
        return cls(data)

    def find(self, kind: Kind, name: str) -> int | None:
        """The first type of that kind and name."""
        if kind is Kind.FUNC:
            # Fifty thousand names: a search of the strings is cheaper than an index.
            offset = self._string_offset(name)
            wanted = (self._kinds == Kind.FUNC) & (self._name_offsets == offset)
            ids = np.flatnonzero(wanted).tolist()
            return ids[0] if offset and ids else None
        index = self._indexes.get(kind)
        if index is None:
            index = self._indexes[kind] = {}
            for type_id in np.flatnonzero(self._kinds == kind).tolist():
                index.setdefault(self._text(int(self._name_offsets[type_id])), type_id)
        return index.get(name) if name else None

    def typedef(self, name: str) -> int | None:
        return self.find(Kind.TYPEDEF, name)

    def func_args(self, type_id: int) -> list[tuple[str, str]]:
        """As args(), with each type as C text (`const struct sk_buff *`)."""
        return [(name, self.c_type(arg)) for name, arg in self.args(type_id)]

    def struct(self, name: str) -> Struct:
        """The struct (or else union) of that name; KernelError if there is none."""
        type_id = self.find(Kind.STRUCT, name) or self.find(Kind.UNION, name)
        if type_id is None:
            raise KernelError(f"this kernel has no struct {name}")
        return self.composite(type_id)

    def member(self, struct_name: str, path: str) -> Member | None:
        """The member at `a.b.c`, its offset from the struct's start; None if any part is absent."""
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

    def enum(self, name: str) -> dict[str, int]:
        """The constants of the enum of that name; KernelError if there is none."""
        type_id = self.find(Kind.ENUM, name) or self.find(Kind.ENUM64, name)
        if type_id is None:
            raise KernelError(f"this kernel has no enum {name}")
        return self.enumerators(type_id)

    def flattened(self, type_id: int, depth: int = 0) -> tuple[Member, ...]:
        """Named members, those of anonymous structs and unions among them; offsets from the top."""
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

    def c_type(self, type_id: int, inner: str = "", depth: int = 0) -> str:
        """A type as C text, around the declarator `inner`."""
        if depth > DEEPEST:
            raise damaged(f"type {type_id} refers to itself")
        kind = self.kind(type_id)
        if kind is Kind.PTR:
            behind = self.resolve(self.target(type_id), typedefs=False)
            wrap = self.kind(behind) in (Kind.ARRAY, Kind.FUNC_PROTO)
            inner = f"(*{inner})" if wrap else f"*{inner}"
            return self.c_type(self.target(type_id), inner, depth + 1)
        if kind is Kind.TYPE_TAG:
            return self.c_type(self.target(type_id), inner, depth + 1)
        if kind in QUALIFIERS:
            word = kind.name.lower()
            if self.kind(self.resolve(self.target(type_id), typedefs=False)) is Kind.PTR:
                inner = f" {word} {inner}".rstrip()
                return self.c_type(self.target(type_id), inner, depth + 1)
            return f"{word} {self.c_type(self.target(type_id), inner, depth + 1)}"
        if kind is Kind.ARRAY:
            element, count = self.array(type_id)
            return self.c_type(element, f"{inner}[{count}]", depth + 1)
        if kind is Kind.FUNC_PROTO:
            args = [self.c_type(arg, name, depth + 1) for name, arg in self.args(type_id)]
            listed = ", ".join("..." if text == "void" else text for text in args) or "void"
            return self.c_type(self.target(type_id), f"{inner}({listed})", depth + 1)
        base = self.name(type_id)
        if kind in COMPOSITE or kind is Kind.FWD or kind in ENUMS:
            union = kind is Kind.UNION or (kind is Kind.FWD and self._head(type_id)[3])
            tag = "enum" if kind in ENUMS else "union" if union else "struct"
            base = f"{tag} {base or '{...}'}"
        return f"{base or 'void'} {inner}" if inner else base or "void"

    def _string_offset(self, name: str) -> int:
        """Where a string stands; 0 if it does not."""
        if not name or not name.isascii():
            return 0
        return self._strings.find(b"\0" + name.encode() + b"\0") + 1
