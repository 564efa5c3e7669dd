# SPDX-License-Identifier: Apache-2.0
"""What is known of the kernel since its boot: a later start reads no types for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.collector.linux import btf, kallsyms
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.loader import kernel_answers
from tcpkmon.collector.loader.kernel_answers import KernelAnswers
from tcpkmon.formats.base.errors import KernelError
from tests.unit.btf_builder import sample

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
