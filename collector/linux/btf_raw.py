# SPDX-License-Identifier: Apache-2.0
"""BTF by type id: the raw data under collector/linux/btf.py, checked where it is read."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.errors import KernelError

POINTER_BYTES = struct.calcsize("P")
MAGIC = 0xEB9F
# A longer chain of typedefs, or deeper nesting of types, is a loop.
DEEPEST = 64


class Kind(IntEnum):
    """What a BTF type is (uapi/linux/btf.h, BTF_KIND_*)."""

    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


QUALIFIERS = frozenset({Kind.CONST, Kind.VOLATILE, Kind.RESTRICT, Kind.TYPE_TAG})
COMPOSITE = frozenset({Kind.STRUCT, Kind.UNION})
ENUMS = frozenset({Kind.ENUM, Kind.ENUM64})
# A type has 3 head words of 32 bits, then these for its kind, then these for each element (vlen).
FIXED_WORDS = {Kind.INT: 1, Kind.ARRAY: 3, Kind.VAR: 1, Kind.DECL_TAG: 1}
ELEMENT_WORDS = {
    Kind.STRUCT: 3,
    Kind.UNION: 3,
    Kind.ENUM: 2,
    Kind.FUNC_PROTO: 2,
    Kind.DATASEC: 3,
    Kind.ENUM64: 3,
}


@dataclass(frozen=True)
class Member:
    """A member of a struct or union; `bitfield_bits` is 0 where it is no bitfield."""

    name: str
    offset_bits: int
    type_id: int
    bitfield_bits: int = 0


@dataclass(frozen=True)
class Struct:
    """A struct or union; an anonymous member has the name ""."""

    type_id: int
    kind: Kind
    name: str
    size_bytes: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Integer:
    """An integer type; `bits` are fewer than its size only in bitfields of old compilers."""

    name: str
    size_bytes: int
    bits: int
    offset_bits: int
    signed: bool


def damaged(what: str) -> KernelError:
    return KernelError(f"the kernel's BTF is damaged: {what}")


def _sections(data: bytes) -> tuple[str, npt.NDArray[np.uint32], bytes]:
    """The byte order, the words of the types, and the strings."""
    if len(data) < 24:
        raise damaged(f"{len(data)} bytes hold no header")
    order = "<" if data[:2] == b"\x9f\xeb" else ">"
    magic, version, _, head, type_at, type_bytes, string_at, string_bytes = struct.unpack_from(
        f"{order}HBBIIIII", data
    )
    if magic != MAGIC or version != 1:
        raise damaged(f"magic {magic:#x}, version {version}")
    if head < 24 or type_bytes % 4 or head + type_at + type_bytes > len(data):
        raise damaged("the types are cut short")
    if head + string_at + string_bytes > len(data):
        raise damaged("the strings are cut short")
    raw = np.frombuffer(data, f"{order}u4", type_bytes // 4, head + type_at)
    strings = data[head + string_at : head + string_at + string_bytes]
    return order, raw.astype(np.uint32), bytes(strings)


class Blob:
    """Types by id (1..count; 0 is void). Damaged data raises KernelError where it is read.

    module: the types of a kernel module, whose ids and strings go on after those of `data`.
    """

    def __init__(self, data: bytes, module: bytes = b"") -> None:
        order, words, self._strings = _sections(data)
        if self._strings[:1] != b"\0" or self._strings[-1:] != b"\0":
            raise damaged("the strings are not terminated")
        of_kernel = len(words)
        if module:
            same, more, strings = _sections(module)
            if same != order or strings[-1:] not in (b"", b"\0"):
                raise damaged("a module's types do not fit")
            words, self._strings = np.concatenate([words, more]), self._strings + strings
        self.little_endian = order == "<"
        self._words: npt.NDArray[np.uint32] = words
        self._word = memoryview(self._words.data)
        self._start = _starts(self._words)
        self._kernel_count = int(np.searchsorted(self._start[1:], of_kernel))
        info = self._words[self._start[1:] + 1]
        self._name_offsets = np.concatenate(([0], self._words[self._start[1:]]))
        self._kinds = np.concatenate(([0], info >> 24 & 0x1F))
        self._structs: dict[int, Struct] = {}

    @property
    def count(self) -> int:
        """How many types there are; ids run from 1 to this."""
        return len(self._start) - 1

    def kind(self, type_id: int) -> Kind:
        if not 0 <= type_id <= self.count:
            raise damaged(f"there is no type {type_id}")
        return Kind(int(self._kinds[type_id]))

    def name(self, type_id: int) -> str:
        self.kind(type_id)
        return self._text(int(self._name_offsets[type_id]))

    def resolve(self, type_id: int) -> int:
        """The id behind const, volatile, restrict, type tags and typedefs."""
        for _ in range(DEEPEST):
            kind = self.kind(type_id)
            if kind not in QUALIFIERS and kind is not Kind.TYPEDEF:
                return type_id
            type_id = self.target(type_id)
        raise damaged(f"type {type_id} refers to itself")

    def target(self, type_id: int) -> int:
        """The id of the type to which a pointer, typedef, qualifier, function or variable refers.
        For a function that is its prototype."""
        return self._head(type_id)[2]

    def array(self, type_id: int) -> tuple[int, int]:
        """(id of the element's type, number of elements)."""
        self._expect(type_id, Kind.ARRAY)
        at = int(self._start[type_id])
        return self._word[at + 3], self._word[at + 5]

    def integer(self, type_id: int) -> Integer:
        self._expect(type_id, Kind.INT)
        extra = self._word[int(self._start[type_id]) + 3]
        return Integer(
            name=self.name(type_id),
            size_bytes=self._head(type_id)[2],
            bits=extra & 0xFF,
            offset_bits=extra >> 16 & 0xFF,
            signed=bool(extra >> 24 & 1),
        )

    def size_bytes(self, type_id: int) -> int:
        """A type's sizeof; 0 for void and functions."""
        count = 1
        for _ in range(DEEPEST):
            type_id = self.resolve(type_id)
            kind = self.kind(type_id)
            if kind is Kind.ARRAY:
                type_id, elements = self.array(type_id)
                count *= elements
            elif kind is Kind.PTR:
                return count * POINTER_BYTES
            elif kind in (Kind.VOID, Kind.FUNC, Kind.FUNC_PROTO, Kind.FWD):
                return 0
            else:
                return count * self._head(type_id)[2]
        raise damaged(f"type {type_id} contains itself")

    def composite(self, type_id: int) -> Struct:
        """The struct or union with this id."""
        known = self._structs.get(type_id)
        if known is None:
            known = self._structs[type_id] = self._read_composite(type_id)
        return known

    def enumerators(self, type_id: int) -> dict[str, int]:
        """An enum's constants, in order."""
        kind, vlen, _, flag = self._enum_head(type_id)
        at = int(self._start[type_id]) + 3
        values: dict[str, int] = {}
        step = 2 if kind is Kind.ENUM else 3
        for word in range(at, at + step * vlen, step):
            value, bits = self._word[word + 1], 32
            if kind is Kind.ENUM64:
                value, bits = value | self._word[word + 2] << 32, 64
            if flag and value >> (bits - 1):
                value -= 1 << bits
            values[self._text(self._word[word])] = value
        return values

    def enum_signed(self, type_id: int) -> bool:
        return self._enum_head(type_id)[3]

    def args(self, type_id: int) -> list[tuple[str, int]]:
        """(name or "", type id) of each argument of a function, a prototype, or a typedef of a
        pointer to one (`btf_trace_tcp_probe`, whose first argument is `void *__data`)."""
        for _ in range(DEEPEST):
            type_id = self.resolve(type_id)
            if self.kind(type_id) not in (Kind.PTR, Kind.FUNC):
                break
            type_id = self.target(type_id)
        self._expect(type_id, Kind.FUNC_PROTO)
        at = int(self._start[type_id]) + 3
        words = range(at, at + 2 * self._head(type_id)[1], 2)
        return [(self._text(self._word[word]), self._word[word + 1]) for word in words]

    def _head(self, type_id: int) -> tuple[Kind, int, int, bool]:
        """(kind, number of elements, size in bytes or the target's id, the kind flag)."""
        kind = self.kind(type_id)
        if kind is Kind.VOID:
            raise damaged("void was expected to be a type")
        at = int(self._start[type_id])
        info = self._word[at + 1]
        return kind, info & 0xFFFF, self._word[at + 2], bool(info >> 31)

    def _enum_head(self, type_id: int) -> tuple[Kind, int, int, bool]:
        head = self._head(type_id)
        if head[0] not in ENUMS:
            raise damaged(f"type {type_id} is {head[0].name}, not an enum")
        return head

    def _expect(self, type_id: int, kind: Kind) -> None:
        if self.kind(type_id) is not kind:
            raise damaged(f"type {type_id} is {self.kind(type_id).name}, not {kind.name}")

    def _read_composite(self, type_id: int) -> Struct:
        kind, count, size_bytes, flag = self._head(type_id)
        if kind not in COMPOSITE:
            raise damaged(f"type {type_id} is {kind.name}, not a struct")
        at = int(self._start[type_id]) + 3
        members = []
        for name, member_id, offset in self._words[at : at + 3 * count].reshape(-1, 3).tolist():
            bits = offset >> 24 if flag else 0
            offset_bits = offset & 0xFFFFFF if flag else offset
            if not bits and self.kind(self.resolve(member_id)) is Kind.INT:
                integer = self.integer(self.resolve(member_id))
                if integer.bits != 8 * integer.size_bytes:
                    bits, offset_bits = integer.bits, offset_bits + integer.offset_bits
            members.append(Member(self._text(name), offset_bits, member_id, bits))
        return Struct(type_id, kind, self.name(type_id), size_bytes, tuple(members))

    def _text(self, offset: int) -> str:
        if offset >= len(self._strings):
            raise damaged(f"there is no string at {offset}")
        end = self._strings.find(b"\0", offset)
        return self._strings[offset:end].decode("ascii", "replace")


def _starts(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Index of each type's first word; entry 0 is for void.

    numpy computes for every word how long a type would be that began there. Then a loop follows
    the chain of the real types:

        word     0    1    2    3    4    5    6    7
               +----+----+----+----+----+----+----+----+---
               | type 1 (INT)      | type 2 (PTR) | ...       starts = [0, 0, 4, 7, ...]
               +----+----+----+----+----+----+----+----+---
    """
    fixed = np.zeros(32, np.int64)
    element = np.zeros(32, np.int64)
    for kind in Kind:
        fixed[kind] = 3 + FIXED_WORDS.get(kind, 0)
        element[kind] = ELEMENT_WORDS.get(kind, 0)
    fixed[Kind.VOID] = 0
    end = len(words)
    info = np.append(words[1:], np.uint32(0)) if end else words
    kinds = info >> 24 & 0x1F
    length = fixed[kinds] + element[kinds] * (info & 0xFFFF)
    following = memoryview((np.arange(end) + length).data)
    starts = [0]
    at = 0
    while at < end:
        starts.append(at)
        if following[at] <= at:
            raise damaged(f"type {len(starts) - 1} is of no known kind")
        at = following[at]
    if at != end:
        raise damaged(f"type {len(starts) - 1} is cut short")
    return np.array(starts, np.int64)
