# SPDX-License-Identifier: Apache-2.0
"""What the kernel is said to offer is what it offers."""

from __future__ import annotations

import os
import time

import pytest

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.loader import attach_trials
from tcpkmon.collector.loader.attach_trials import Probing
from tests.descriptors import descriptors


def test_tracepoints_that_all_kernels_have(btf: Btf) -> None:
    asked = Probing(btf)
    for kind in ("btf", "raw"):
        for target in ("tcp_probe", "tcp_retransmit_skb", "inet_sock_set_state", "sched_switch"):
            assert asked.can(kind, target), asked.why_not(kind, target)
        assert not asked.can(kind, "tcpkmon_no_such_tracepoint")
        assert "tcpkmon_no_such_tracepoint" in asked.why_not(kind, "tcpkmon_no_such_tracepoint")
        assert asked.can(kind, "tcp_probe"), "one absent target says nothing of the others"


@pytest.mark.parametrize("kind", ["fentry", "fexit", "kprobe", "iter"])
def test_an_absent_target_has_a_reason(btf: Btf, kind: str) -> None:
    asked = Probing(btf)
    assert not asked.can(kind, "tcpkmon_no_such_function")
    assert asked.why_not(kind, "tcpkmon_no_such_function")


def test_answers_are_kept(btf: Btf, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Probing(btf)
    targets = [("btf", "tcp_probe"), ("raw", "tcp_probe"), ("raw", "nope"), ("fentry", "tcp_ack")]
    before = [asked.can(*target) for target in targets]

    def refuse(*_: object) -> None:
        raise AssertionError("asked the kernel again")

    monkeypatch.setattr(attach_trials, "load_code", refuse)
    monkeypatch.setattr(bpf, "prog_load", refuse)
    assert [asked.can(*target) for target in targets] == before
    assert asked.can("btf", "tcp_destroy_sock"), "one trial stands for all BTF tracepoints"


def test_probing_leaves_no_descriptor_and_is_quick(btf: Btf) -> None:
    before = descriptors()
    used = time.process_time()
    asked = Probing(btf)
    for kind in ("btf", "raw", "fentry", "fexit", "kprobe", "iter"):
        for target in ("tcp_probe", "tcp_ack", "tcp_rcv_established", "tcp", "tcp_destroy_sock"):
            asked.can(kind, target)
    assert time.process_time() - used < (60 if "TCPKMON_GUEST" in os.environ else 5)
    assert descriptors() == before
