# SPDX-License-Identifier: Apache-2.0
"""What is written to and read from tracefs and /sys, against files that stand in for them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tcpkmon.collector.linux.kprobe_events import (
    KprobeEvent,
    remove_stale,
    stale_events,
)
from tcpkmon.collector.linux.syscalls import refused
from tcpkmon.formats.base.errors import KernelError, PrivilegeError

NOBODY = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1


def test_only_events_of_dead_tcpkmon_processes_are_stale() -> None:
    listing = f"""p:tcpkmon_{NOBODY}/p1_1_tcp_ack tcp_ack
r4:tcpkmon_{NOBODY}/r1_2_tcp_recvmsg tcp_recvmsg
p:tcpkmon_{os.getpid()}/p2_1_tcp_ack tcp_ack
p:kprobes/tcpkmon_{NOBODY} tcp_ack
p:mytcpkmon_{NOBODY}/p tcp_ack
p:tcpkmon_{NOBODY}x/p tcp_ack
e:tcpkmon_{NOBODY}/eprobe syscalls/sys_enter_openat
"""
    assert stale_events(listing) == (
        f"tcpkmon_{NOBODY}/p1_1_tcp_ack", f"tcpkmon_{NOBODY}/r1_2_tcp_recvmsg",
    )  # fmt: skip


def test_events_are_made_and_removed_without_touching_others(tmp_path: Path) -> None:
    file = tmp_path / "kprobe_events"
    others = f"p:others/event tcp_ack\np:tcpkmon_{NOBODY}/left tcp_ack\n"
    file.write_text(others)
    (tmp_path / "kprobe_profile").touch()
    assert remove_stale(tmp_path) == (f"tcpkmon_{NOBODY}/left",)
    first = KprobeEvent.make(tmp_path, "tcp_ack.constprop.0")
    second = KprobeEvent.make(tmp_path, "tcp_ack.constprop.0")
    names = [first.name, second.name]
    assert names[0] != names[1], "kprobe_profile shows names without their group"
    (tmp_path / "kprobe_profile").write_text(
        f"  {names[0]}    120   3\n  {names[1]}   7   0\n  event 1 99\n"
    )
    assert (first.read_missed(), second.read_missed()) == (3, 0)
    first.remove()
    first.remove()
    assert first.read_missed() == 3, "what was counted stays known"
    group = f"tcpkmon_{os.getpid()}"
    assert file.read_text().removeprefix(others).splitlines() == [
        f"-:tcpkmon_{NOBODY}/left",
        f"p:{group}/{names[0]} tcp_ack.constprop.0",
        f"p:{group}/{names[1]} tcp_ack.constprop.0",
        f"-:{group}/{names[0]}",
    ]


def test_a_kernel_without_kprobes_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="no kprobes"):
        KprobeEvent.make(tmp_path, "tcp_ack")


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "\n".join(f"line {n}" for n in range(20))
    error = refused(OSError(errno.EACCES, "x"), "loading", log)
    assert "loading failed: Permission denied (EACCES)" in error.message
    assert "line 19" in error.message
    assert "line 11 " not in error.message
    denied = OSError(errno.EPERM, "x")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isinstance(refused(denied, "loading"), PrivilegeError)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert isinstance(refused(denied, "loading"), KernelError)
    assert "(524)" in refused(OSError(524, "x"), "attaching").message
