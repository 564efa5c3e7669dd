# SPDX-License-Identifier: Apache-2.0
"""Congestion controls of our own (struct_ops), which break rules on purpose: for `conform`.

Each is reno in C with one part changed. BCC compiles its functions; the kernel takes them as
members of struct tcp_congestion_ops. It is unregistered at the end of the `with`, when the last
socket that has it is closed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.loader.compiler import compile_text

NAME = "tcpkmon_test"
_STRUCT = "tcp_congestion_ops"
_VALUE = f"bpf_struct_ops_{_STRUCT}"

_MEMBERS = {
    "snd_cwnd": "tcp_sock", "snd_ssthresh": "tcp_sock", "is_cwnd_limited": "tcp_sock",
    "prior_cwnd": "tcp_sock", "max_packets_out": "tcp_sock", "snd_cwnd_cnt": "tcp_sock",
}  # fmt: skip
_HALVES = "u32 halved = CWND / 2; return halved > 2 ? halved : 2;"
_UNDOES = "u32 was = PRIOR; return CWND > was ? CWND : was;"


@dataclass(frozen=True)
class Control:
    """What its functions do, in C. ssthresh: returns the threshold after a loss; grows: what each
    ACK does while no reduction is under way; acked: what each ACK of new data does; event, state:
    at an event of enum tcp_ca_event, and before a change of the congestion state (`value`).
    whole: it sets the window alone, and the kernel does not reduce it (cong_control)."""

    ssthresh: str = _HALVES
    grows: str = "GROW(1);"
    acked: str = ""
    event: str = ""
    state: str = ""
    whole: bool = False

    @property
    def functions(self) -> dict[str, str]:
        """The members of struct tcp_congestion_ops, with their C."""
        given = {"ssthresh": self.ssthresh, "undo_cwnd": _UNDOES}
        if self.whole:
            given["cong_control"] = "return 0;"
        else:
            given["cong_avoid"] = f"u32 acked = ctx[2]; {self.grows} return 0;"
        for name, text in (("pkts_acked", self.acked), ("cwnd_event", self.event),
                           ("set_state", self.state)):  # fmt: skip
            if text:
                given[name] = f"u32 value = ctx[1]; {text} return 0;"
        return given


@contextmanager
def registered(control: Control) -> Iterator[str]:
    """Its name, for TCP_CONGESTION. KernelError where the kernel refuses it."""
    btf = Btf.from_kernel()
    members = [one.name for one in btf.struct(_STRUCT).members]
    functions = control.functions
    image = compile_text(_text(btf, functions), list(functions))
    target = btf.find(Kind.STRUCT, _STRUCT)
    value_id = btf.find(Kind.STRUCT, _VALUE)
    assert target is not None and value_id is not None
    base = btf.member(_VALUE, "data")
    assert base is not None
    value = bytearray(btf.struct_bytes(_VALUE))

    def put(member: str, data: bytes) -> None:
        place = btf.member(_STRUCT, member)
        assert place is not None
        at = (base.offset_bits + place.offset_bits) // 8
        value[at : at + len(data)] = data

    with ExitStack() as stack:
        for name in functions:
            code = image.programs[name].instructions
            place = members.index(name)
            fd = bpf.prog_load(bpf.BPF_PROG_TYPE_STRUCT_OPS, code, name, target, place)
            stack.callback(os.close, fd)
            put(name, struct.pack("=Q", fd))
        put("name", NAME.encode())
        types = bpf.btf_load(struct.pack("=III", 0, Kind.PTR << 24, 0))  # void *: any will do
        stack.callback(os.close, types)
        made = bpf.map_create(bpf.BPF_MAP_TYPE_STRUCT_OPS, 4, len(value), 1, name=NAME,
                              kernel_type=value_id, btf_fd=types)  # fmt: skip
        stack.callback(os.close, made)
        bpf.map_update(made, bytes(4), bytes(value))
        stack.callback(bpf.map_delete, made, bytes(4))
        yield NAME


def _text(btf: Btf, functions: dict[str, str]) -> str:
    """C with the offsets of this kernel's members."""
    lines = []
    for name, owner in _MEMBERS.items():
        place = btf.member(owner, name)
        assert place is not None
        bits = place.offset_bits
        lines.append(f"#define AT_{name} {bits // 8}\n#define BIT_{name} {bits % 8}")
    lines.append("""
#define PUT(name, value) (*(volatile u32 *)(sk + AT_##name) = (value))
#define GET(name) (*(volatile u32 *)(sk + AT_##name))
#define CWND GET(snd_cwnd)
#define PRIOR GET(prior_cwnd)
#define LIMITED ((*(volatile u8 *)(sk + AT_is_cwnd_limited) >> BIT_is_cwnd_limited) & 1)
#define STARTS (CWND < GET(snd_ssthresh))
#define USED (STARTS ? CWND < 2 * GET(max_packets_out) : 0)
/* Slow start, else one segment a window. */
#define GROW(times) do { \\
    if (!LIMITED && !USED) break; \\
    if (STARTS) { \\
        u32 left = GET(snd_ssthresh) - CWND, by = acked * times; \\
        PUT(snd_cwnd, CWND + (by < left ? by : left)); \\
        break; \\
    } \\
    u32 count = GET(snd_cwnd_cnt) + acked, more = 0; \\
    if (count >= CWND) { more = 1; count = 0; } \\
    PUT(snd_cwnd_cnt, count); \\
    if (more) PUT(snd_cwnd, CWND + times); \\
} while (0)
""")
    for name, body in functions.items():
        lines.append(f"int {name}(u64 *ctx) {{ u64 sk = ctx[0]; {body} }}")
    return "\n".join(lines)
