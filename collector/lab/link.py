# SPDX-License-Identifier: Apache-2.0
"""A test link between the namespaces of a lab, where the kernel has no netem.

link.c runs beside the lab: it has a tun device in each namespace, in place of the veth pair, and
does to each packet what a Path says. It counts what it did, and notes the life of each packet: a
witness of what the network did to a connection.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError, TcpkmonError

SOURCE = Path(__file__).with_name("link.c")
ANSWER_S = 60.0
FATES = ("delivered", "waiting", "down", "random", "burst", "chosen", "syn", "ack", "thinned",
         "too_big", "policed", "full", "codel")  # fmt: skip
NOTE = np.dtype(
    [("in_ns", "u8"), ("out_ns", "u8"), ("size", "u4"), ("queue", "u4"), ("seq", "u4"),
     ("data", "u4"), ("way", "u1"), ("fate", "u1"), ("flags", "u1"), ("marked", "?"), ("", "u4")]
)  # fmt: skip
"""Of a packet: when it came, when it was delivered or dropped (CLOCK_MONOTONIC), its size [bytes],
what was in the queue before it [bytes], the first byte of its data counted from the connection's
begin, its data [bytes], the way, its place in FATES, its TCP flags, whether it got an ECN mark."""


@dataclass(frozen=True)
class Way:
    """What one way does to packets. 0: it does not do that; sizes are of IP packets."""

    rate_mbit: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Added to each packet's delay, uniform from 0 on; packets stay in order unless ..."""
    jitter_reorders: bool = False
    loss_percent: float = 0.0
    burst_percent: float = 0.0
    """A burst of losses begins at a packet with this chance, ..."""
    burst_packets: float = 5.0
    """and lasts so long in the mean."""
    reorder_percent: float = 0.0
    """Packets that come late by ..."""
    reorder_ms: float = 0.0
    ack_loss_percent: float = 0.0
    """Of ACKs without data."""
    ack_thin: bool = False
    """Of such ACKs that follow each other in the queue, only the last is sent."""
    syn_loss: int = 0
    """The next SYNs, so many."""
    synack_loss: int = 0
    lose: tuple[int, int] = (0, 0)
    """Segments with these bytes of the connection's data, from .. to (exclusive), ..."""
    lose_every: int = 0
    """counted anew after so many bytes, ..."""
    lose_times: int = 1
    """so often each."""
    slot_ms: float = 0.0
    """It sends in bursts, every so often, what the rate allows for that time."""
    held: bool = False
    """It queues, but sends nothing."""
    down: bool = False
    """It drops everything."""
    queue_bytes: int = 0
    """Drops what does not fit; 0: no bound."""
    codel_ms: float = 0.0
    """CoDel's target, its interval is 20 times that; with ecn, it marks rather than drops."""
    ecn: bool = False
    ecn_above_bytes: int = 0
    """Marks what finds more in the queue."""
    mtu: int = 0
    """Drops larger packets; with icmp, it tells the sender (IPv4 only)."""
    icmp: bool = False
    police_mbit: float = 0.0
    """Drops what is above this rate, beyond a token bucket of ..."""
    police_bytes: int = 15_000

    def words(self) -> dict[str, int]:
        """What link.c calls them: ns, bits/s, millionths."""
        return {
            "rate": _whole(self.rate_mbit, 1e6), "delay": _whole(self.delay_ms, 1e6),
            "jitter": _whole(self.jitter_ms, 1e6), "jitter_reorders": self.jitter_reorders,
            "loss": _whole(self.loss_percent, 1e4), "burst_enter": _whole(self.burst_percent, 1e4),
            "burst_leave": _whole(1 / self.burst_packets, 1e6),
            "reorder": _whole(self.reorder_percent, 1e4),
            "reorder_by": _whole(self.reorder_ms, 1e6),
            "ack_loss": _whole(self.ack_loss_percent, 1e4), "ack_thin": self.ack_thin,
            "syn_loss": self.syn_loss, "synack_loss": self.synack_loss,
            "lose_from": self.lose[0], "lose_to": self.lose[1], "lose_every": self.lose_every,
            "lose_times": self.lose_times, "slot": _whole(self.slot_ms, 1e6), "held": self.held,
            "down": self.down, "queue": self.queue_bytes,
            "codel_target": _whole(self.codel_ms, 1e6),
            "codel_interval": _whole(20 * self.codel_ms, 1e6), "ecn": self.ecn,
            "ecn_above": self.ecn_above_bytes, "mtu": self.mtu, "icmp": self.icmp,
            "police": _whole(self.police_mbit, 1e6), "police_burst": self.police_bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class Link:
    """The ways from a to b and back. seed: of what is random."""

    there: Way = Way()
    back: Way = Way()
    seed: int = 1


class Wire(Closing):
    """A link that runs. KernelError where the kernel has no tun, TcpkmonError without compiler."""

    def __init__(self, link: Link, names: Sequence[str], device: str) -> None:
        self._now = [link.there, link.back]
        if not os.path.exists("/dev/net/tun"):
            subprocess.run(["modprobe", "tun"], check=False, capture_output=True)
        spaces = [f"/run/netns/{name}" for name in names]
        self._process = subprocess.Popen(
            [str(_program()), *spaces, device, str(link.seed)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            self._answer()
            for way, path in enumerate(self._now):
                self._set(0, way, path.words())
        except BaseException:
            self.close()
            raise

    def change(self, way: int, path: Way, after_s: float = 0.0) -> None:
        """From then on, this way (0: there, 1: back) is so. Counts of losses begin anew."""
        words, before = path.words(), self._now[way].words()
        self._now[way] = path
        changed = {key: value for key, value in words.items() if value != before[key]}
        if changed:
            self._set(time.monotonic_ns() + int(after_s * 1e9) if after_s else 0, way, changed)

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        """There and back: packets by what became of them (FATES), bytes, marks, queue_most
        [bytes], late: packets delivered over 0.3 ms too late, and late_most_ns."""
        there, back = json.loads(self._ask("counters"))
        return there, back

    def trace(self) -> NDArray[Any]:
        """(packets,) of NOTE, in the order in which they came; at most 4 million."""
        with tempfile.TemporaryDirectory() as folder:
            self._ask(f"trace {folder}/trace")
            return np.fromfile(f"{folder}/trace", NOTE)

    def close(self) -> None:
        """Ends it; its devices go with it."""
        self._process.kill()
        self._process.communicate()

    def _set(self, at_ns: int, way: int, words: dict[str, int]) -> None:
        told = " ".join(f"{key}={int(value)}" for key, value in words.items())
        answer = self._ask(f"set {at_ns} {way} {told}")
        if answer != "ok":
            raise TcpkmonError(f"the link: {answer}")

    def _ask(self, order: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None and self._process.stderr is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline().strip() if ready else ""
        if not line:
            self._process.kill()
            told = self._process.stderr.read().strip()
            raise KernelError(f"the test link ended: {told}", "does this kernel have tun?")
        return line


def _whole(value: float, unit: float) -> int:
    return round(value * unit)


@cache
def _program() -> Path:
    """link.c, compiled once in a process."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise TcpkmonError("there is no C compiler for the test link", "apt install gcc libc6-dev")
    folder = tempfile.TemporaryDirectory(prefix="tcpkmon-link-")
    program = Path(folder.name) / "link"
    command = [compiler, "-std=c11", "-O2", "-o", str(program), str(SOURCE), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TcpkmonError(f"the test link does not compile: {done.stderr.strip()}")
    _folders.append(folder)
    return program


_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Kept until the process ends."""
