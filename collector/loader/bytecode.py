# SPDX-License-Identifier: Apache-2.0
"""Patches an image's bytecode for one capture and this kernel: for programs.py."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.loader.compiler import Code

COPY_MARK = 0x6B6C6F6767657231
"""The constant in PROBE() of bpf/include/klogger.h."""
TYPE_MARK = 0x74637073
"""The constant in AS_TCP() of bpf/include/tcp_identity.h, in place of struct tcp_sock's BTF id."""
TO_TCP_SOCK = 137
"""The helper bpf_skc_to_tcp_sock()."""
TO_UNTRUSTED = 0x6B6C6200
"""No helper: the call of AS_UNTRUSTED() there, which returns its argument."""
_MOVE = bytes((0xBF, 0x10, 0, 0, 0, 0, 0, 0))
"""r0 = r1"""


class Cast(NamedTuple):
    """The BTF ids of bpf_rdonly_cast() and of struct tcp_sock."""

    function: int
    socket: int

    @classmethod
    def find(cls, btf: Btf) -> Cast | None:
        """None where the kernel has no bpf_rdonly_cast() (before Linux 6.2)."""
        function, socket = btf.find(Kind.FUNC, "bpf_rdonly_cast"), btf.find(Kind.STRUCT, "tcp_sock")
        return None if function is None or socket is None else cls(function, socket)


def fill_maps(code: Code, fds: Mapping[str, int]) -> bytes:
    """The code with the descriptors of its maps."""
    filled = bytearray(code.instructions)
    for index, name in code.map_refs:
        struct.pack_into("=i", filled, index * 8 + 4, fds[name])
    return bytes(filled)


def second_copy(code: bytes) -> bytes | None:
    """The code with 0 for the first COPY_MARK, or None where it has none."""
    index = 0
    while index < len(code) // 8:
        if code[index * 8] != bpf.BPF_LD_IMM64:
            index += 1
            continue
        low, high = (struct.unpack_from("=I", code, index * 8 + at)[0] for at in (4, 12))
        if low | high << 32 == COPY_MARK:
            patched = bytearray(code)
            for at in (4, 12):
                struct.pack_into("=I", patched, index * 8 + at, 0)
            return bytes(patched)
        index += 2
    return None


def cast_freely(code: bytes, cast: Cast | None) -> bytes:
    """The code with bpf_rdonly_cast() for AS_TCP() and AS_UNTRUSTED(): for the verifier a move.

    Without it the first is the helper, the second a move. So it is in code that calls the helper
    without TYPE_MARK.
    """
    patched, plain = bytearray(code), bytearray(code)
    types = calls = 0
    for at in range(0, len(code), 8):
        operation, registers, _, immediate = struct.unpack_from("=BBhi", code, at)
        if operation == bpf.BPF_MOV64_IMM and immediate == TYPE_MARK and cast is not None:
            types += 1
            struct.pack_into("=i", patched, at + 4, cast.socket)
        elif operation == bpf.BPF_CALL and registers == 0:
            if immediate == TO_UNTRUSTED:
                plain[at : at + 8] = _MOVE
            elif immediate != TO_TCP_SOCK:
                continue
            calls += 1
            if cast is not None:
                patched[at + 1] = bpf.BPF_PSEUDO_KFUNC_CALL << 4
                struct.pack_into("=i", patched, at + 4, cast.function)
    return bytes(patched if types == calls else plain)
