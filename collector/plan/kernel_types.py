# SPDX-License-Identifier: Apache-2.0
"""Makes the header before a program's text from BTF: the kernel types that the text names.

A struct becomes a union of one packed `struct { u8 pad[OFFSET]; T member; }` for each member. So
each member is at this kernel's offset, and C need not be able to describe the other members. For a
text that names `struct sock` and `struct sock_common`:

    struct sock {                                           members are read as in the kernel
        union {
            struct { struct sock_common __sk_common; } __attribute__((packed));
            struct { char pad__sk_rcvbuf[OFFSET]; s32 sk_rcvbuf; } __attribute__((packed));
            char size__[SIZE];
        };
    } __attribute__((aligned(8)));
    #define HAVE_struct_sock 1
    #define HAVE_sock_sk_rcvbuf 1                           this kernel has the member
    #define BITFIELD_sock_sk_kern_sock(p)                   a bitfield's value: p is read directly
    #define BITS_sock_sk_kern_sock(raw)                     ... from the integer `raw` that holds it
    #define BITS_sock_sk_kern_sock_OFFSET, _SIZE            ... and has _SIZE bytes at _OFFSET
    #define BITS_inet_connection_sock_icsk_ack_ato(raw)     ... inside a member without a type name

The type of a member: integers and pointers stay; an enum becomes an integer; a struct that the text
names stays; a struct without a name, or named by a typedef, is defined in place; any other struct
becomes bytes, until the text (or a comment in it) names it. Bytes are `char`: a member that
is called u8 hides the type u8 from what follows it. `#ifdef HAVE_...` tests for types and members
that may be absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tcpkmon.collector.linux.btf import COMPOSITE, ENUMS, QUALIFIERS, Btf, Kind, Member
from tcpkmon.collector.linux.btf_raw import DEEPEST, damaged

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])*'")
_COMMENT_OR_LITERAL = re.compile(f"{_LITERAL.pattern}|({_COMMENT.pattern})", re.DOTALL)
_NAMED = re.compile(
    r"\b(struct|union|enum)\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?((?!__attribute__)[A-Za-z_]\w*)"
)
_DEFINED = re.compile(
    r"\b(?:struct|union|enum)\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?([A-Za-z_]\w*)\s*\{"
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")

# Types that BCC's bpf.h defines, besides those that begin with bpf_.
_IN_BPF_H = {"__sk_buff", "btf_ptr", "sk_action", "sk_msg_md", "sk_reuseport_md", "xdp_action"}
_IN_BPF_H |= {"xdp_md", "tcx_action_base"}
# Keywords, and macros of the compiler and of the stub headers: they cannot be members.
_NOT_MEMBERS = re.compile(
    "(?:auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if"
    "|inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef"
    "|typeof|union|unsigned|void|volatile|while|asm|_Bool|linux|unix|i386|true|false|NULL"
    r"|asm_inline|asm_volatile_goto)\Z"
)


def make(btf: Btf, text: str) -> str:
    """The header for a program text, which has its includes in place.

    It leaves out types that the text or BCC's bpf.h defines, and those that this kernel lacks.
    KernelError for a damaged BTF.
    """
    return _Header(btf, text).render()


def named_types(text: str) -> list[tuple[str, str]]:
    """(struct, union or enum; name) of each type that a text names and does not define, in order.

    Comments may name structs and unions; strings name nothing.
    """
    code = _COMMENT_OR_LITERAL.sub(" ", text)
    defined = set(_DEFINED.findall(code))
    named = dict.fromkeys(_NAMED.findall(code))
    comments = " ".join(found[1] or "" for found in _COMMENT_OR_LITERAL.finditer(text))
    named.update(dict.fromkeys(pair for pair in _NAMED.findall(comments) if pair[0] != "enum"))
    return [(tag, name) for tag, name in named if name not in defined]


def _ours(name: str) -> bool:
    return not name.startswith("bpf_") and name not in _IN_BPF_H


class _Header:
    def __init__(self, btf: Btf, text: str) -> None:
        self.btf = btf
        self.enums: list[tuple[str, int]] = []
        # All tags in the C code, so that no name is both a struct and a union.
        self.tags = {name: tag for tag, name in _NAMED.findall(_COMMENT_OR_LITERAL.sub(" ", text))}
        self.wanted: dict[int, str] = {}
        self.forward: dict[str, str] = {}
        self.lines: list[str] = []
        self.emitted: set[int] = set()
        for tag, name in named_types(text):
            if not _ours(name):
                continue
            if tag == "enum":
                type_id = btf.find_enum(name)
                if type_id is not None:
                    self.enums.append((name, type_id))
                continue
            type_id = btf.find(Kind.STRUCT if tag == "struct" else Kind.UNION, name)
            if type_id is None and name not in self.tags:
                continue  # words of a comment, no type
            if type_id is not None and self.tags.setdefault(name, tag) == tag:
                self.wanted[type_id] = name
            self._declare(tag, name)

    def render(self) -> str:
        for type_id in self.wanted:
            self._emit(type_id, 0)
        head = ["/* Made from this kernel's BTF by tcpkmon (collector/plan/kernel_types.py). */"]
        head += [f"{tag} {name};" for name, tag in self.forward.items()]
        return "\n".join([*head, *self._enum_lines(), *self.lines]) + "\n"

    def _declare(self, tag: str, name: str) -> bool:
        """Adds a forward declaration; False where the name has another tag already."""
        if self.tags.setdefault(name, tag) != tag:
            return False
        self.forward[name] = tag
        return True

    def _enum_lines(self) -> Iterator[str]:
        seen: set[str] = set()
        for name, type_id in self.enums:
            constants = self.btf.enumerators(type_id)
            # A constant may be in two enums: the first one defines it.
            fresh = [c for c in constants if c not in seen and _IDENTIFIER.match(c)]
            seen.update(fresh)
            if fresh:
                yield f"enum {name} {{"
                yield from (
                    f"\t{constant} = {_literal(constants[constant])}," for constant in fresh
                )
                yield "};"
            yield f"#define HAVE_enum_{name} 1"
            yield from (f"#define HAVE_{constant} 1" for constant in fresh)

    def _emit(self, type_id: int, depth: int) -> None:
        """Adds a struct's definition and macros, after those of the structs in it."""
        if type_id in self.emitted:
            return
        if depth > DEEPEST:
            raise damaged(f"type {type_id} contains itself")
        shape = self.btf.composite(type_id)
        body = list(self._fields(type_id, depth))
        if type_id in self.emitted:
            raise damaged(f"struct {shape.name} contains itself")
        self.emitted.add(type_id)
        name = self.wanted[type_id]
        tag = "struct" if shape.kind is Kind.STRUCT else "union"
        out = self.lines
        out += [f"{tag} {name} {{", "\tunion {"]
        out += [f"\t\t{line}" for _, _, line in body]
        out += [f"\t\tchar size__[{shape.size_bytes}];", "\t};"]
        out.append(f"}} __attribute__((aligned({_alignment(shape.size_bytes)})));")
        out.append(f"#define HAVE_{tag}_{name} 1")
        out.append(_assert(f"sizeof({tag} {name})", shape.size_bytes, name))
        for member, offset, _ in body:
            out.append(f"#define HAVE_{name}_{member} 1")
            where = f"__builtin_offsetof({tag} {name}, {member})"
            out.append(_assert(where, offset, f"{name}.{member}"))
        out += self._bitfields(type_id, name, 0, 0)

    def _members(self, type_id: int) -> Iterator[Member]:
        seen = set()
        for member in self.btf.flattened(type_id):
            name = member.name
            if name not in seen and _IDENTIFIER.match(name) and not _NOT_MEMBERS.match(name):
                seen.add(name)
                yield member

    def _fields(self, type_id: int, depth: int) -> Iterator[tuple[str, int, str]]:
        """(name, offset in bytes, C text) of each member that is not a bitfield."""
        for member in self._members(type_id):
            if member.bitfield_bits or member.offset_bits % 8:
                continue
            offset = member.offset_bits // 8
            pad = f"char pad__{member.name}[{offset}]; " if offset else ""
            declared = self._declaration(member.type_id, member.name, depth + 1)
            yield (
                member.name,
                offset,
                f"struct {{ {pad}{declared}; }} __attribute__((packed));",
            )

    def _declaration(self, type_id: int, name: str, depth: int) -> str:
        """A member's C declaration, of exactly its size."""
        btf = self.btf
        dimensions = ""
        by_typedef = False
        for _ in range(DEEPEST):
            kind = btf.kind(type_id)
            if kind is Kind.ARRAY:
                type_id, count = btf.array(type_id)
                dimensions += f"[{count}]"
                by_typedef = False
            elif kind is Kind.TYPEDEF or kind in QUALIFIERS:
                by_typedef = by_typedef or kind is Kind.TYPEDEF
                type_id = btf.target(type_id)
            else:
                break
        size_bytes = btf.size_bytes(type_id)
        if kind is Kind.PTR:
            return f"{self._pointer(btf.target(type_id))}{name}{dimensions}"
        if kind in COMPOSITE:
            shape = btf.composite(type_id)
            tag = "struct" if kind is Kind.STRUCT else "union"
            if type_id in self.wanted:
                self._emit(type_id, depth)
                return f"{tag} {shape.name} {name}{dimensions}"
            if depth <= DEEPEST and size_bytes and (by_typedef or not shape.name):
                inner = " ".join(line for _, _, line in self._fields(type_id, depth))
                size = f"char size__[{size_bytes}];"
                return f"struct {{ union {{ {inner} {size} }}; }} {name}{dimensions}"
        if kind in ENUMS and size_bytes in (1, 2, 4, 8):
            return f"{'s' if btf.enum_signed(type_id) else 'u'}{8 * size_bytes} {name}{dimensions}"
        if kind is Kind.INT and size_bytes in (1, 2, 4, 8):
            integer = btf.integer(type_id)
            scalar = f"{'s' if integer.signed else 'u'}{8 * size_bytes}"
            return f"{'char' if integer.name == 'char' else scalar} {name}{dimensions}"
        return f"unsigned char {name}{dimensions}[{size_bytes}]"

    def _pointer(self, type_id: int) -> str:
        """C text of a pointer: to a struct or union that has a name, else to void."""
        type_id = self.btf.resolve(type_id)
        tag, name = self.btf.tag(type_id), self.btf.name(type_id)
        is_struct = tag in ("struct", "union") and _IDENTIFIER.match(name)
        return f"{tag} {name} *" if is_struct and self._declare(tag, name) else "void *"

    def _bitfields(self, type_id: int, prefix: str, base_bits: int, depth: int) -> Iterator[str]:
        """Macros for a struct's bitfields, and for those in its members without a type name."""
        if depth > DEEPEST:
            raise damaged(f"type {type_id} contains itself")
        for member in self._members(type_id):
            name = f"{prefix}_{member.name}"
            offset_bits = base_bits + member.offset_bits
            if member.bitfield_bits:
                yield from self._bitfield(member, name, offset_bits)
                continue
            inner = self.btf.resolve(member.type_id)
            if self.btf.kind(inner) in COMPOSITE and not self.btf.name(inner):
                yield from self._bitfields(inner, name, offset_bits, depth + 1)

    def _bitfield(self, member: Member, name: str, offset_bits: int) -> Iterator[str]:
        for size_bytes in (1, 2, 4, 8):
            start_bits = offset_bits - offset_bits % (8 * size_bytes)
            first = offset_bits - start_bits
            if first + member.bitfield_bits <= 8 * size_bytes:
                break
        else:
            return
        if not self.btf.little_endian:
            first = 8 * size_bytes - first - member.bitfield_bits
        type_id = self.btf.resolve(member.type_id)
        kind = self.btf.kind(type_id)
        signed = (kind is Kind.INT and self.btf.integer(type_id).signed) or (
            kind in ENUMS and self.btf.enum_signed(type_id)
        )
        left, right = 64 - first - member.bitfield_bits, 64 - member.bitfield_bits
        word = "s64" if signed else "u64"
        # Volatile: for a pointer of a BTF type the verifier refuses a narrower load.
        load = f"*(const volatile u{8 * size_bytes} *)((const u8 *)(p) + {start_bits // 8})"
        yield f"#define HAVE_{name} 1"
        yield f"#define BITS_{name}_OFFSET {start_bits // 8}"
        yield f"#define BITS_{name}_SIZE {size_bytes}"
        yield f"#define BITS_{name}(raw) (({word})((u64)(raw) << {left}) >> {right})"
        yield f"#define BITFIELD_{name}(p) BITS_{name}({load})"


def _alignment(size_bytes: int) -> int:
    """The widest alignment of a struct of this size; with it clang reads a member by one load."""
    return min(8, size_bytes & -size_bytes) or 1


def _assert(expression: str, value: int, what: str) -> str:
    return f'_Static_assert({expression} == {value}, "{what}");'


def _literal(value: int) -> str:
    """A constant's value in C; the lowest value has no literal."""
    if value == -(1 << 63):
        return "(-0x7fffffffffffffffLL - 1)"
    return f"{value}ULL" if value >= 1 << 63 else str(value)
