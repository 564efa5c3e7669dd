# SPDX-License-Identifier: Apache-2.0
"""The BTF reader, on blobs made here: names, offsets, text, and that damage is only ever named."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest

from tcpkmon.collector.linux import btf, kallsyms
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.loader import kernel_answers
from tcpkmon.collector.loader.kernel_answers import KernelAnswers
from tcpkmon.collector.plan import kernel_types
from tcpkmon.formats.base.errors import KernelError

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


@pytest.fixture(name="btf", params=["<", ">"], ids=["little", "big"])
def sample_btf(request: pytest.FixtureRequest) -> Btf:
    return Btf(sample(request.param).data())


@pytest.mark.parametrize(
    ("path", "offset"),
    [
        ("sk", 0),
        ("snd_cwnd", 96),
        ("sk.__sk_common.skc_refcnt.counter", 8),
        ("sk.whole", 16),
        ("sk.high", 20),
        ("sk.sk_name", 45),
    ],
)
def test_member_offset_goes_through_what_is_nested(btf: Btf, path: str, offset: int) -> None:
    assert btf.has_member("tcp_sock", path)
    member = btf.member("tcp_sock", path)
    assert member is not None and member.offset_bits // 8 == offset


@pytest.mark.parametrize("path", ["", "sk.", "cwnd", "sk.cwnd", "snd_cwnd.x", "sk.sk_net.cookie"])
def test_an_absent_member_is_none(btf: Btf, path: str) -> None:
    assert not btf.has_member("tcp_sock", path)
    assert not btf.has_member("nothing", path)
    assert btf.member("tcp_sock", path) is None


def test_a_bitfield_of_an_old_compiler_is_in_its_integer() -> None:
    made = Builder()
    three_bits = made.add(Kind.INT, "unsigned int", 4, 2 << 16 | 3)
    made.struct("old", 4, ("flag", three_bits, 8))
    member = Btf(made.data()).member("old", "flag")
    assert member is not None
    assert (member.offset_bits, member.bitfield_bits) == (10, 3)


def test_arguments(btf: Btf) -> None:
    func, probe = btf.find(Kind.FUNC, "tcp_send"), btf.find(Kind.TYPEDEF, "btf_trace_probe")
    assert func is not None
    assert probe is not None
    assert [name for name, _ in btf.args(func)] == ["net", "hook", "name", ""]
    kinds = [(name, btf.kind(btf.resolve(arg))) for name, arg in btf.args(probe)]
    assert kinds == [("", Kind.PTR), ("", Kind.PTR), ("", Kind.INT)]
    assert btf.name(btf.target(btf.args(probe)[1][1])) == "sock"
    with pytest.raises(KernelError, match="not FUNC_PROTO"):
        btf.args(btf.struct("sock").type_id)


def test_a_loop_of_types_is_damage() -> None:
    made = Builder()
    loop = made.add(Kind.TYPEDEF, "loop", made.count + 1)
    inside = made.struct("inside", 4, ("", made.count + 1, 0))
    pointer = made.add(Kind.PTR, "", made.count + 1)
    btf = Btf(made.data())
    with pytest.raises(KernelError, match="refers to itself"):
        btf.resolve(loop)
    with pytest.raises(KernelError, match="contains itself"):
        btf.has_member("inside", "x")
    with pytest.raises(KernelError, match="not FUNC_PROTO"):
        btf.args(pointer)
    assert btf.composite(inside).size_bytes == 4


def ask_everything(data: bytes) -> None:
    btf = Btf(data)
    for name in ("sock", "tcp_sock", "sock_common"):
        for member in ("whole", "__sk_common.skc_refcnt.counter", "sk.high"):
            with suppress(KernelError):
                btf.member(name, member)
    for type_id in range(btf.count + 1):
        for question in (btf.size_bytes, btf.tag, btf.args, btf.flattened, btf.enumerators):
            with suppress(KernelError):
                question(type_id)


def test_a_cut_blob_raises_kernel_error() -> None:
    data = sample().data()
    ask_everything(data)
    for length in range(len(data)):
        with pytest.raises(KernelError, match="damaged"):
            Btf(data[:length])


def test_a_damaged_blob_raises_nothing_but_kernel_error() -> None:
    data = sample().data()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= (0xFF, 0x01, 0x10, 0x04)[at // 4 % 4]
        with suppress(KernelError):
            ask_everything(bytes(damaged))


def test_no_btf_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"cannot read .*CONFIG_DEBUG_INFO_BTF"):
        Btf.from_file(tmp_path / "vmlinux")
    (tmp_path / "vmlinux").write_bytes(sample().data())
    assert Btf.from_file(tmp_path / "vmlinux").struct("sock").size_bytes


def test_a_modules_types_go_on_after_those_of_the_kernel() -> None:
    kernel, module = sample(), Builder()
    strings = kernel.strings
    module.strings, module.words, module.count = strings, [], kernel.count
    flag = module.struct("bbr", 8, ("min_rtt_us", U32, 0), ("mode", U32, 32, 3))
    module.struct("holder", 8, ("bbr", flag, 0))
    module.add(Kind.FUNC, "bbr_main", 0)
    module.strings = module.strings[len(strings) :]
    btf = Btf(kernel.data(), module.data())
    member = btf.member("holder", "bbr.mode")
    assert member is not None and (member.offset_bits, member.bitfield_bits) == (32, 3)
    assert btf.member("tcp_sock", "snd_cwnd") == Btf(kernel.data()).member("tcp_sock", "snd_cwnd")
    assert btf.find(Kind.FUNC, "bbr_main") is None  # no program can attach by that id
    with pytest.raises(KernelError, match="damaged"):
        Btf(kernel.data(), module.data()[:-1])


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


SYMBOLS = "ffffffff81000000 T tcp_sendmsg\nffffffff81000010 t tcp_write_timer\n"


class Kernel:
    """The files that say which kernel this is and what it has."""

    def __init__(self, folder: Path) -> None:
        self.types = folder / "vmlinux"
        self.types.write_bytes(sample("<").data())
        self.symbols = folder / "kallsyms"
        self.symbols.write_text(SYMBOLS)
        self.boot = folder / "boot_id"
        self.boot.write_text("first\n")
        self.cache = folder / "cache"

    def hide(self) -> None:
        """From now on neither types nor symbols can be read."""
        self.types.unlink()
        self.symbols.unlink()


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(tmp_path)
    monkeypatch.setattr(btf, "KERNEL_BTF", made.types)
    monkeypatch.setattr(kallsyms, "KALLSYMS", made.symbols)
    monkeypatch.setattr(kernel_answers, "BOOT_ID", made.boot)
    monkeypatch.setenv("TCPKMON_CACHE", str(made.cache))
    return made


def ask(answers: Btf) -> list[object]:
    """What a capture asks: there, not there, and what depends on another answer."""
    return [
        answers.find(Kind.STRUCT, "sock"),
        answers.find(Kind.STRUCT, "no_such"),
        answers.find(Kind.FUNC, "no_such"),
        answers.has_member("sock", "sk_state"),
        answers.has_member("sock", "sk_no_such"),
        answers.struct_bytes("sock"),
    ]


def test_the_answers_are_those_of_the_types(kernel: Kernel) -> None:
    assert ask(KernelAnswers()) == ask(Btf.from_kernel())


def test_a_later_start_reads_no_types(kernel: Kernel) -> None:
    first = KernelAnswers()
    expected = ask(first)
    assert first.address_of("tcp_write_timer") == 0xFFFFFFFF81000010
    first.save()
    kernel.hide()
    later = KernelAnswers()
    assert ask(later) == expected
    assert later.address_of("tcp_write_timer") == 0xFFFFFFFF81000010
    with pytest.raises(KernelError, match="cannot read"):
        later.find(Kind.STRUCT, "sock_common")


def test_another_boot_may_be_another_kernel(kernel: Kernel) -> None:
    first = KernelAnswers()
    ask(first)
    first.save()
    kernel.hide()
    kernel.boot.write_text("second\n")
    assert KernelAnswers().key != first.key
    with pytest.raises(KernelError, match="cannot read"):
        ask(KernelAnswers())


def test_the_next_boot_of_a_kernel_has_the_same_types(kernel: Kernel) -> None:
    """So what was compiled is found again."""
    first = KernelAnswers().types_key
    kernel.boot.write_text("second\n")
    assert KernelAnswers().types_key == first
    kernel.types.write_bytes(sample(">").data())
    assert KernelAnswers().types_key != first
    kernel.hide()
    assert KernelAnswers().types_key == KernelAnswers().key


@pytest.mark.parametrize("text", ["", "[1", "17", '{"FUNC x": 1', "\xff"])
def test_damaged_answers_are_ignored(kernel: Kernel, text: str) -> None:
    first = KernelAnswers()
    expected = ask(first)
    first.save()
    (file,) = kernel.cache.iterdir()
    file.write_text(text)
    assert ask(KernelAnswers()) == expected


def test_answers_that_others_may_write_are_not_believed(kernel: Kernel) -> None:
    first = KernelAnswers()
    expected = ask(first)
    first.save()
    (file,) = kernel.cache.iterdir()
    file.write_text(file.read_text().replace("true", "false"))
    assert ask(KernelAnswers()) != expected
    file.chmod(0o666)
    assert ask(KernelAnswers()) == expected
