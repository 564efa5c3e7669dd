# SPDX-License-Identifier: Apache-2.0
"""A small writer of BTF, for the tests of its reader."""

from __future__ import annotations

import struct

from tcpkmon.collector.linux.btf import Kind

U32, I32, U8, CHAR, BOOL, U64 = 1, 2, 3, 4, 5, 6


class Builder:
    """Types by their ids, in the order added; the six integers above are there from the start."""

    def __init__(self, order: str = "<") -> None:
        self.order = order
        self.strings = b"\0"
        self.words: list[int] = []
        self.count = 0
        for name, size, encoding in (
            ("unsigned int", 4, 0),
            ("int", 4, 1),
            ("unsigned char", 1, 0),
            ("char", 1, 1),
            ("_Bool", 1, 4),
            ("long unsigned int", 8, 0),
        ):
            self.integer(name, size, encoding)

    def string(self, text: str) -> int:
        if not text:
            return 0
        at = self.strings.find(b"\0" + text.encode() + b"\0")
        if at >= 0:
            return at + 1
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def add(
        self, kind: Kind, name: str, size: int, *extra: int, vlen: int = 0, flag: int = 0
    ) -> int:
        self.words += [self.string(name), flag << 31 | kind << 24 | vlen, size, *extra]
        self.count += 1
        return self.count

    def integer(self, name: str, size: int, encoding: int = 0) -> int:
        return self.add(Kind.INT, name, size, encoding << 24 | 8 * size)

    def array(self, element: int, count: int) -> int:
        return self.add(Kind.ARRAY, "", 0, element, U32, count)

    def struct(
        self, name: str, size: int, *members: tuple[str, int, int] | tuple[str, int, int, int],
        kind: Kind = Kind.STRUCT,
    ) -> int:  # fmt: skip
        """Members are (name, type, offset in bits[, bits of a bitfield])."""
        flag = any(len(member) > 3 for member in members)
        extra = []
        for member in members:
            bits = member[3] if len(member) > 3 else 0
            extra += [self.string(member[0]), member[1], bits << 24 | member[2]]
        return self.add(kind, name, size, *extra, vlen=len(members), flag=flag)

    def enum(self, name: str, constants: dict[str, int]) -> int:
        extra = []
        for constant, value in constants.items():
            extra += [self.string(constant), value & 0xFFFFFFFF]
        signed = any(value < 0 for value in constants.values())
        return self.add(Kind.ENUM, name, 4, *extra, vlen=len(constants), flag=signed)

    def enum64(self, name: str, constants: dict[str, int]) -> int:
        extra = []
        for constant, value in constants.items():
            extra += [self.string(constant), value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF]
        signed = any(value < 0 for value in constants.values())
        return self.add(Kind.ENUM64, name, 8, *extra, vlen=len(constants), flag=signed)

    def prototype(self, result: int, *args: tuple[str, int]) -> int:
        extra = []
        for name, type_id in args:
            extra += [self.string(name), type_id]
        return self.add(Kind.FUNC_PROTO, "", result, *extra, vlen=len(args))

    def data(self) -> bytes:
        types = struct.pack(f"{self.order}{len(self.words)}I", *self.words)
        sizes = (24, 0, len(types), len(types), len(self.strings))
        head = struct.pack(f"{self.order}HBBIIIII", 0xEB9F, 1, 0, *sizes)
        return head + types + self.strings


def sample(order: str = "<") -> Builder:
    """A toy kernel: sock in tcp_sock, bitfields, anonymous unions, typedefs, enums, a function."""
    made = Builder(order)
    atomic = made.add(Kind.TYPEDEF, "atomic_t", made.struct("", 4, ("counter", I32, 0)))
    common = made.struct("sock_common", 16, ("skc_num", U32, 0), ("skc_refcnt", atomic, 64))
    net = made.struct("net", 8, ("cookie", U64, 0))
    const_net = made.add(Kind.CONST, "", net)
    net_pointer = made.add(Kind.PTR, "", const_net)
    lock = made.struct("lock", 4, ("raw", U32, 0))
    lock_t = made.add(Kind.TYPEDEF, "lock_t", lock)
    names = made.struct("", 8, ("low", U32, 0), ("high", U32, 32))
    either = made.struct("", 8, ("whole", U64, 0), ("", names, 0), kind=Kind.UNION)
    state = made.enum("state", {"OPEN": 0, "CLOSED": 7})
    made.enum("sign", {"MINUS": -3, "PLUS": 3})
    made.enum64("wide", {"HUGE": 1 << 40, "LEAST": -(1 << 63)})
    forward = made.add(Kind.FWD, "unknown", 0)
    forward_pointer = made.add(Kind.PTR, "", forward)
    sock = made.struct(
        "sock",
        96,
        ("__sk_common", common, 0),
        ("", either, 128),
        ("sk_net", net_pointer, 192),
        ("sk_lock", lock, 256),
        ("sk_lock2", lock_t, 288),
        ("sk_state", state, 320),
        ("sk_flag", BOOL, 352),
        ("sk_name", made.array(CHAR, 7), 360),
        ("sk_kern", U8, 416, 1),
        ("sk_proto", U32, 420, 9),
        ("int", U32, 448),
        ("sk_other", forward_pointer, 512),
        ("sk_locks", made.array(made.array(lock, 3), 2), 576),
    )
    made.struct("tcp_sock", 100, ("sk", sock, 0), ("snd_cwnd", U32, 768))
    sock_pointer = made.add(Kind.PTR, "", sock)
    void_pointer = made.add(Kind.PTR, "", 0)
    probe = made.prototype(
        0, ("", void_pointer), ("", sock_pointer), ("", made.add(Kind.CONST, "", U8))
    )
    made.add(Kind.TYPEDEF, "btf_trace_probe", made.add(Kind.PTR, "", probe))
    hook = made.add(Kind.PTR, "", made.prototype(I32, ("sk", sock_pointer)))
    rest = made.add(Kind.CONST, "", made.add(Kind.PTR, "", CHAR))
    made.add(
        Kind.FUNC, "tcp_send",
        made.prototype(I32, ("net", net_pointer), ("hook", hook), ("name", rest), ("", 0)),
    )  # fmt: skip
    return made
