# SPDX-License-Identifier: Apache-2.0
"""Plays a scenario in a lab."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import join, listening
from tests.truth.why.acts import Act, Clock, Span
from tests.truth.why.scenarios import Scenario

CLIENT, SERVER = "10.77.0.1", "10.77.0.2"
_PACING = 47  # SO_MAX_PACING_RATE


class Played(NamedTuple):
    """port: the client's. begin, end: from when until when the truth is sharp (CLOCK_MONOTONIC, s).

    busy: the share of its time in which the sender's thread ran or waited for a CPU, as the
    scheduler counts it. spans: the parts of that time, where the truth changes.
    """

    port: int
    begin: float
    end: float
    busy: float
    spans: Sequence[Span] = ()


def run(lab: Lab, scenario: Scenario, seconds: float) -> Played:
    """Plays it for so long."""
    if not scenario.offloads:
        lab.a.command(["ip", "link", "set", "dev", "veth0", "gso_max_segs", "1"])
    if scenario.prepare is not None:
        scenario.prepare(lab)
    options: list[tuple[int, int, int | bytes]] = [
        (socket.IPPROTO_TCP, socket.TCP_CONGESTION, scenario.congestion.encode())
    ]
    if scenario.sndbuf:
        options.append((socket.SOL_SOCKET, socket.SO_SNDBUF, scenario.sndbuf // 2))
    if scenario.pacing:
        options.append((socket.SOL_SOCKET, _PACING, scenario.pacing))
    called = time.monotonic()
    with listening(lab.b, SERVER) as listener:
        listener.setsockopt(*options[0])
        if scenario.rcvbuf:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, scenario.rcvbuf // 2)
        if scenario.dial is not None:
            pair = scenario.dial(lab, listener)
        else:
            pair = join(lab.a, listener, SERVER, options)
    port, start = pair.client_port, time.monotonic()
    clock = Clock(start + seconds, lab)
    if scenario.disturb is not None:
        scenario.disturb(pair, clock)

    busy = {}

    def play(act: Act) -> None:
        began, before = time.monotonic_ns(), _on_a_cpu()
        with suppress(OSError):  # at the end it is shut down
            act(pair, clock)
        busy[act] = (_on_a_cpu() - before) / (time.monotonic_ns() - began)

    acts = (scenario.read, scenario.send)
    threads = [threading.Thread(target=play, args=(act,), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, clock.until - time.monotonic()))
    end = min(time.monotonic(), clock.sharp_until)
    for one in (pair.client, pair.server):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(timeout=5)
    pair.close()
    if scenario.opens:
        return Played(port, called, start, busy.get(scenario.send, 0.0))
    spans = clock.spans
    if scenario.witness is not None:
        assert lab.wire is not None
        spans = scenario.witness(lab.wire.trace(), called)
    spans = [one for one in spans if one[0] < one[1]]
    return Played(port, start + scenario.from_s, end, busy.get(scenario.send, 0.0), spans)


def _on_a_cpu() -> int:
    """For how long this thread ran or waited for a CPU so far [ns]."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran) + int(waited)
