# SPDX-License-Identifier: Apache-2.0
"""The header made from BTF, as text: what is named, what is left out, how members are written."""

from __future__ import annotations

import pytest

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.plan import kernel_types
from tests.unit.btf_builder import Builder, sample


def made_for(text: str, order: str = "<") -> str:
    return kernel_types.make(Btf(sample(order).data()), text)


def test_names_come_from_code_in_order_and_not_from_strings() -> None:
    text = """
    struct b { int x; };            /* the text's own */
    struct a *f(union c *u) { enum d e; char *s = "struct no"; return 'x' + '"'; } // struct late
    struct __attribute__((packed)) own { int x; };
    /* enum quiet, "struct loud" */ struct a again;
    """
    assert kernel_types.named_types(text) == [
        ("struct", "a"),
        ("union", "c"),
        ("enum", "d"),
        ("struct", "late"),
        ("struct", "loud"),
    ]


def test_the_texts_own_types_and_those_of_bpf_h_are_left_out() -> None:
    assert "sock_common {" not in made_for("struct sock_common { int mine; };")
    made = Builder()
    made.struct("bpf_sock", 4, ("family", 1, 0))
    made.struct("__sk_buff", 4, ("len", 1, 0))
    header = kernel_types.make(Btf(made.data()), "struct bpf_sock *s; struct __sk_buff *b;")
    assert "struct bpf_sock {" not in header
    assert "struct __sk_buff {" not in header


@pytest.mark.parametrize(
    "line",
    [
        "struct { unsigned char __sk_common[16]; } __attribute__((packed));",
        "struct { char pad__whole[16]; u64 whole; } __attribute__((packed));",
        "struct { char pad__high[20]; u32 high; } __attribute__((packed));",
        "struct { char pad__sk_net[24]; struct net *sk_net; } __attribute__((packed));",
        "struct { char pad__sk_lock[32]; unsigned char sk_lock[4]; } __attribute__((packed));",
        "struct { char pad__sk_lock2[36]; struct { union { struct { u32 raw; }"
        " __attribute__((packed)); char size__[4]; }; } sk_lock2; } __attribute__((packed));",
        "struct { char pad__sk_state[40]; u32 sk_state; } __attribute__((packed));",
        "struct { char pad__sk_flag[44]; u8 sk_flag; } __attribute__((packed));",
        "struct { char pad__sk_name[45]; char sk_name[7]; } __attribute__((packed));",
        "struct { char pad__sk_other[64]; struct unknown *sk_other; } __attribute__((packed));",
        "struct { char pad__sk_locks[72]; unsigned char sk_locks[2][3][4]; }"
        " __attribute__((packed));",
        "char size__[96];",
        "#define HAVE_sock_sk_flag 1",
        "#define HAVE_sock_high 1",
        '_Static_assert(sizeof(struct sock) == 96, "sock");',
        '_Static_assert(__builtin_offsetof(struct sock, high) == 20, "sock.high");',
    ],
)
def test_a_member_is_written_at_its_offset(line: str) -> None:
    lines = [line.strip() for line in made_for("struct sock *sk;").splitlines()]
    assert line in lines


def test_a_named_struct_within_is_itself_and_stands_first() -> None:
    header = made_for("struct tcp_sock; struct lock; struct sock;")
    assert "struct { struct sock sk; } __attribute__((packed));" in header
    assert "struct lock sk_locks[2][3];" in header
    order = [header.index(f"struct {name} {{") for name in ("lock", "sock", "tcp_sock")]
    assert order == sorted(order)
    assert header.count("struct sock {") == 1


def test_bitfields_are_macros() -> None:
    header = made_for("struct sock;")
    # 9 bits from bit 420: bits 4..12 of the 16 at byte 52.
    assert "#define HAVE_sock_sk_proto 1" in header
    assert "#define BITS_sock_sk_proto_OFFSET 52\n#define BITS_sock_sk_proto_SIZE 2\n" in header
    assert "#define BITS_sock_sk_proto(raw) ((u64)((u64)(raw) << 51) >> 55)" in header
    load = "*(const volatile u16 *)((const u8 *)(p) + 52)"
    assert f"#define BITFIELD_sock_sk_proto(p) BITS_sock_sk_proto({load})" in header
    assert "#define BITS_sock_sk_kern(raw) ((u64)((u64)(raw) << 63) >> 63)" in header
    assert " sk_kern;" not in header


def test_bitfields_of_a_big_endian_kernel_count_from_the_top() -> None:
    # Bits 4..12 from the top of 16 are bits 3..11 from the bottom.
    assert "BITS_sock_sk_proto(raw) ((u64)((u64)(raw) << 52) >> 55)" in made_for(
        "struct sock;", ">"
    )


def test_signed_and_nested_bitfields() -> None:
    made = Builder()
    ack = made.struct("", 4, ("ato", 1, 0, 8), ("mark", 2, 8, 3))
    made.struct("icsk", 8, ("ack", ack, 32), ("many", made.array(ack, 0), 64))
    header = kernel_types.make(Btf(made.data()), "struct icsk;")
    assert "#define BITS_icsk_ack_ato_OFFSET 4\n" in header
    assert "#define BITS_icsk_ack_mark_OFFSET 5\n" in header
    assert "#define BITS_icsk_ack_mark(raw) ((s64)((u64)(raw) << 61) >> 61)" in header
    assert "icsk_many_ato" not in header


def test_enums_with_what_they_have() -> None:
    header = made_for("enum state s; enum sign t; enum wide w; enum nothing n;")
    assert "enum state {\n\tOPEN = 0,\n\tCLOSED = 7,\n};" in header
    assert "\tMINUS = -3," in header
    assert "\tHUGE = 1099511627776," in header
    assert "\tLEAST = (-0x7fffffffffffffffLL - 1)," in header
    for name in ("enum_state", "CLOSED", "MINUS"):
        assert f"#define HAVE_{name} 1" in header
    assert "nothing" not in header
