# SPDX-License-Identifier: Apache-2.0
"""A witness that asks the kernel: TCP_INFO of the sender every 2 ms, as inet_diag has it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from tcpkmon.collector.lab.pair import Pair
from tests.live.capturing import tcp_info
from tests.truth.why.acts import Act, Clock, Span

_EVERY_S, _SPAN_S, _RECOVERY = 0.002, 0.04, 3
_NAMES = ("ca_state", "unacked", "snd_cwnd", "notsent_bytes", "rwnd_limited", "sndbuf_limited")


class Sample(NamedTuple):
    """now: CLOCK_MONOTONIC [s]. state: of congestion control. in_flight, window [segments],
    unsent [bytes]. by_receiver_us, by_buffer_us: the kernel's chronographs, in jiffies."""

    now: float
    state: int
    in_flight: int
    window: int
    unsent: int
    by_receiver_us: int
    by_buffer_us: int


def sample(end: socket.socket) -> Sample:
    """What the kernel says now. OSError."""
    told = tcp_info(end)
    return Sample(time.monotonic(), *(told[name] for name in _NAMES))


def judged(samples: list[Sample], window: tuple[str, ...], path: tuple[str, ...]) -> list[Span]:
    """One span, or none where it is not clear: the receiver's window bounded it for 90 % of the
    time, by the kernel's chronograph; or never did it, nor the send buffer, and in each sample
    data was unsent, and the congestion window was full, or it recovered."""
    first, last = samples[0], samples[-1]
    by_receiver = (last.by_receiver_us - first.by_receiver_us) / 1e6
    span = (first.now, last.now)
    if by_receiver >= 0.9 * (last.now - first.now):
        return [(*span, window)]
    full = all(
        one.unsent and (one.state >= _RECOVERY or one.in_flight >= 0.8 * one.window)
        for one in samples
    )  # fmt: skip
    if full and not by_receiver and last.by_buffer_us == first.by_buffer_us:
        return [(*span, path)]
    return []


def watched(window: tuple[str, ...], path: tuple[str, ...], from_s: float = 0.2) -> Act:
    """Truths of a sender that always has data, from such samples."""

    def disturb(pair: Pair, clock: Clock) -> None:
        def watch() -> None:
            time.sleep(from_s)
            samples: list[Sample] = []
            with suppress(OSError):
                while clock.goes_on:
                    samples.append(sample(pair.client))
                    if samples[-1].now - samples[0].now >= _SPAN_S:
                        clock.spans += judged(samples, window, path)
                        samples = samples[-1:]
                    time.sleep(_EVERY_S)

        threading.Thread(target=watch, daemon=True).start()

    return disturb
