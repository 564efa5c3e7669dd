# SPDX-License-Identifier: Apache-2.0
"""Kprobe events are made and removed with care: others' stay, misses are counted."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.kprobe_events import (
    KprobeEvent,
    Tracefs,
    parse_profile,
    remove_stale,
)
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.loader.compiler import compile_text
from tcpkmon.collector.loader.programs import Loaded, ProgramSpec
from tcpkmon.collector.plan.probes import counts_skipped
from tests.live.capturing import capturing, connected, within

BY_FUNCTION = ("--locations", "TRANSMIT,ACK_PROCESSED,CWND_UNDO")
UNTYPED = "raw,kprobe,iter"
FOREIGN = "tcpkmontest/others"
FUNCTIONS = ("tcp_undo_cwnd_reduction", "tcp_check_space", "__tcp_transmit_skb")
"""7.3 has no tcp_check_space."""
TIMES = 50
TEXT = """
BPF_ARRAY(seen, u64, 4);

static inline __attribute__((always_inline)) void add(u32 which)
{
    u64 *counter = seen.lookup(&which);
    if (counter)
        __sync_fetch_and_add(counter, 1);
}

int outer(void *ctx)
{
    char comm[16];

    if (bpf_get_current_pid_tgid() >> 32 != MY_PID)
        return 0;
    bpf_get_current_comm(comm, sizeof(comm));
    add(0);
    return 0;
}

int inner(void *ctx)
{
    add(1);
    return 0;
}
"""


@pytest.fixture(autouse=True)
def kprobes_are_there(probing: Probing) -> None:
    if why := probing.why_not("kprobe", "tcp_sendmsg"):
        pytest.skip(why)


def command(file: Path, line: str) -> None:
    """As `echo LINE >> FILE` does it: Python's mode "a" would seek, which the file refuses."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


@pytest.fixture
def listing() -> Iterator[Path]:
    """kprobe_events, with an event of somebody else's in it."""
    with Tracefs() as tracefs:
        file = tracefs.path / "kprobe_events"
        command(file, f"p:{FOREIGN} tcp_sendmsg")
        try:
            yield file
        finally:
            command(file, f"-:{FOREIGN}")


def test_events_of_others_stay(
    lab: Lab, tmp_path: Path, listing: Path, probing: Probing
) -> None:
    least = sum(probing.can("kprobe", function) for function in FUNCTIONS)
    assert least >= 2

    def ours() -> list[str]:
        return [line for line in listing.read_text().splitlines() if ":tcpkmon_" in line]

    options = [*BY_FUNCTION, *within(lab)]
    with (
        contextlib.suppress(FileNotFoundError),
        capturing(tmp_path / "killed.pm", *options, kinds=UNTYPED) as killed,
    ):
        assert len(ours()) >= least
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        raise FileNotFoundError  # there is no outcome
    left = ours()
    assert len(left) >= least, "a killed capture leaves its events"
    assert FOREIGN in listing.read_text()
    with capturing(tmp_path / "next.pm", *options, kinds=UNTYPED) as running:
        assert not set(left) & set(ours()), "the next one removes them"
        with connected(lab) as pair:
            pair.exchange()
    outcome = running.stop()
    assert len(outcome.records.at("TRANSMIT"))
    assert ours() == []
    assert FOREIGN in listing.read_text()


def test_missed_hits_are_counted() -> None:
    """A probe hit inside another probe's program is not run: the kernel counts it as missed."""
    btf = Btf.from_kernel()
    image = compile_text(TEXT, ["outer", "inner"], cache=False, flags=[f"-DMY_PID={os.getpid()}"])
    helper = "bpf_get_current_comm"
    if why := Probing(btf).why_not("kprobe", helper):
        pytest.skip(why)
    with Loaded(image, btf) as loaded:
        loaded.load(
            [
                ProgramSpec("outer", "kprobe", "inet_csk_listen_start", required=True),
                ProgramSpec("inner", "kprobe", helper, required=True),
            ]
        )
        loaded.attach()
        for _ in range(TIMES):
            with socket.socket() as listener:
                listener.listen()
        loaded.detach()
        missed = loaded.missed()
    assert missed["inner"].nmissed == TIMES
    assert missed["outer"].nmissed == 0


def test_skipped_programs_are_counted_where_the_plan_says_so() -> None:
    """While a process reads a map the kernel skips kprobe programs; before 6.7 it counts none.

    The kprobe's hits have them all the same: see docs/kernels.md on why these are no proof.
    """
    btf = Btf.from_kernel()
    image = compile_text(TEXT, ["inner"], cache=False, flags=["-DMY_PID=0"])
    target = "bpf_percpu_array_copy"
    if why := Probing(btf).why_not("kprobe", target):
        pytest.skip(why)
    with Loaded(image, btf) as loaded:
        loaded.load([ProgramSpec("inner", "kprobe", target, required=True)])
        loaded.attach()
        values = bpf.map_create(bpf.BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, 1, name="values")
        for _ in range(TIMES):
            assert bpf.map_lookup_percpu(values, bytes(4), 8) is not None
        os.close(values)
        event = loaded.programs["inner"].attachment
        assert isinstance(event, KprobeEvent)
        with Tracefs() as tracefs:
            profile = parse_profile((tracefs.path / "kprobe_profile").read_text())
        assert profile[event.name][0] >= TIMES
        loaded.detach()
        assert bpf.map_lookup(loaded.maps["seen"], (1).to_bytes(4, "little"), 8) == bytes(8)
        missed = loaded.missed()["inner"]
    assert missed.nmissed == 0
    assert missed.first == (TIMES if counts_skipped(btf, "kprobe") else 0)


def test_events_of_the_living_stay() -> None:
    with Tracefs() as tracefs:
        event = KprobeEvent.make(tracefs.path, "tcp_sendmsg")
        try:
            assert not [name for name in remove_stale(tracefs.path) if event.name in name]
            assert event.name in (tracefs.path / "kprobe_events").read_text()
        finally:
            event.remove()
        assert event.name == ""
