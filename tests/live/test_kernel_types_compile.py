# SPDX-License-Identifier: Apache-2.0
"""The header from this kernel's BTF, compiled by BCC against the stub headers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.plan import kernel_types

STUB = Path(__file__).parents[2] / "bpf/include/stub"
NAMED = [
    *("sock", "sock_common", "tcp_sock", "inet_sock", "inet_connection_sock", "request_sock"),
    *("sk_buff", "task_struct", "net", "netns_ipv4", "cgroup", "kernfs_node", "socket"),
    *("tcp_congestion_ops", "proto", "timer_list"),
]
CHILD = """
import sys
from bcc import BPF
program = BPF(text=sys.stdin.read())
for name in sys.argv[1:]:
    sys.stdout.write(program.dump_func(name).hex() + "\\n")
"""
PROGRAM = """
int by_hand(u64 *ctx)
{
	volatile struct tcp_sock *tp = (void *)ctx[0];
	return ({ tp; })->snd_cwnd;
}

int by_macro(u64 *ctx)
{
	void *p = (void *)ctx[0];
	return BITFIELD_inet_connection_sock_icsk_ca_state(p);
}

int rewritten(struct pt_regs *ctx, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
	u64 sum = sk->__sk_common.skc_num + tp->snd_cwnd + icsk->icsk_ack.rcv_mss;

	sum += tp->inet_conn.icsk_inet.sk.sk_wmem_alloc.refs.counter;
	sum += sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_wmem[2];
	return sum + TCP_CA_Loss;
}
"""


def build(text: str, *functions: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/bin/python3", "-I", "-c", CHILD, *functions],
        input=text,
        env={"PATH": os.defpath + ":/usr/sbin:/sbin", "BCC_KERNEL_SOURCE": str(STUB)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def text_naming(*names: str) -> str:
    return "".join(f"struct {name};\n" for name in names)


def offset_of(btf: Btf, struct: str, path: str) -> int:
    """In bytes; of a bitfield, the byte that holds its first bit."""
    member = btf.member(struct, path)
    assert member is not None
    return member.offset_bits // 8



def test_a_program_compiles_and_its_loads_are_single(btf: Btf) -> None:
    text = text_naming(*NAMED, "pt_regs") + "enum tcp_ca_state; enum skb_drop_reason;\n" + PROGRAM
    header = kernel_types.make(btf, text)
    for name in NAMED:
        assert f"#define HAVE_struct_{name} 1\n" in header
    for name in ("sock_sk_rcvbuf", "tcp_sock_snd_cwnd", "TCP_CA_Loss", "enum_skb_drop_reason"):
        assert f"#define HAVE_{name} 1\n" in header
    done = build(header + text, "by_hand", "by_macro", "rewritten")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    by_hand, by_macro, _ = map(bytes.fromhex, done.stdout.split())
    # r1 = ctx[0]; r0 = *(u32 *)(r1 + offset); exit
    offset = offset_of(btf, "tcp_sock", "snd_cwnd").to_bytes(2, "little")
    assert by_hand[8:16] == b"\x61\x10" + offset + bytes(4)
    assert len(by_hand) == 24
    # r1 = ctx[0]; r0 = *(u8 *)(r1 + offset); r0 &= mask (or two shifts); exit
    offset = offset_of(btf, "inet_connection_sock", "icsk_ca_state").to_bytes(2, "little")
    assert by_macro[8:16] == b"\x71\x10" + offset + bytes(4)


def test_members_and_bitfields_are_where_btf_has_them(btf: Btf) -> None:
    """By static assertions of the compiler; of a bitfield, cut out of what contains it."""
    text = text_naming("sock", "tcp_sock", "inet_connection_sock", "inet_sock", "sock_common")
    for path in (
        "snd_cwnd", "rx_opt", "inet_conn.icsk_inet.sk.__sk_common.skc_dport",
        "inet_conn.icsk_ack.rcv_mss", "inet_conn.icsk_inet.inet_sport", "rcv_rtt_est.rtt_us",
    ):  # fmt: skip
        offset = offset_of(btf, "tcp_sock", path)
        where = f"__builtin_offsetof(struct tcp_sock, {path})"
        text += f'_Static_assert({where} == {offset}, "{path}");\n'
    member = btf.member("inet_connection_sock", "icsk_ca_state")
    assert member is not None
    assert member.bitfield_bits > 1
    name = "BITS_inet_connection_sock_icsk_ca_state"
    first = f"({member.offset_bits} - 8 * {name}_OFFSET)"
    ones = (1 << member.bitfield_bits) - 1
    text += f"""
    _Static_assert({name}(~0ULL) == {ones}, "all");
    _Static_assert({name}({ones}ULL << {first}) == {ones}, "its own");
    _Static_assert({name}(~({ones}ULL << {first})) == 0, "the others");
    _Static_assert({name}(5ULL << {first}) == 5, "value");
    _Static_assert({first} + {member.bitfield_bits} <= 8 * {name}_SIZE, "fits");
    """
    done = build(kernel_types.make(btf, text) + text)
    assert done.returncode == 0, done.stderr
