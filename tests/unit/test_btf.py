# SPDX-License-Identifier: Apache-2.0
"""The BTF reader, on blobs made here: names, offsets, text, and that damage is only ever named."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.formats.base.errors import KernelError
from tests.unit.btf_builder import U32, Builder, sample


@pytest.fixture(params=["<", ">"], ids=["little", "big"])
def btf(request: pytest.FixtureRequest) -> Btf:
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
