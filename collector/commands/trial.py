# SPDX-License-Identifier: Apache-2.0
"""A trial: the copy of a path is fitted to a capture, judged, and settings are compared on it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab.copying import PORT, Copy, Ends, Play
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.formats.analysis.diff import compare
from tcpkmon.formats.analysis.trying import (
    METRICS,
    Fitted,
    Likeness,
    Outcome,
    Seen,
    Variant,
    acknowledged,
    approach,
    fit,
    look_alike,
    see,
    spans,
    values_of,
    with_last_data,
)
from tcpkmon.formats.analysis.trying.settings import CONGESTION, INITCWND, QDISC, RMEM, WMEM
from tcpkmon.formats.analysis.why import Source, connections, connections_of
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import DamagedError, UsageError

Say = Callable[[str], None]
_CHECKS = 3
_MOST_MBIT = 600.0
"""What the small program between the tun devices passes on."""
_COPIED = ("tcp_sack", "tcp_timestamps", "tcp_window_scaling", "tcp_ecn", "tcp_recovery",
           "tcp_early_retrans", "tcp_slow_start_after_idle", "tcp_notsent_lowat", "tcp_wmem",
           "tcp_no_ssthresh_metrics_save", "tcp_limit_output_bytes", "tcp_min_tso_segs",
           "tcp_pacing_ca_ratio", "tcp_pacing_ss_ratio", "tcp_reordering")  # fmt: skip
"""Of the sender's host, as the capture's header tells them."""
_SET = (*_COPIED, RMEM)
_AT_BOTH = ("tcp_sack", "tcp_timestamps", "tcp_window_scaling", "tcp_ecn")


class Trial(Closing):
    """A copy of a connection's path, until close().

    path: what the capture shows. rate_mbit: what the path's rate is, where the caller knows.
    PrivilegeError without root, KernelError without tun, UsageError: too fast for a copy.
    """

    def __init__(self, seen: Seen, rate_mbit: float = 0.0) -> None:
        self.seen, self.wanted = seen, fit(seen)
        goodput = seen.connection.goodput * 8e-6
        if goodput > 0.8 * _MOST_MBIT:
            raise UsageError(f"{goodput:.0f} Mbit/s are too fast for a copy",
                             f"it has at most {_MOST_MBIT:.0f} Mbit/s")  # fmt: skip
        self.fixed_mbit = rate_mbit
        first = self.wanted
        if rate_mbit or first.rate_mbit > _MOST_MBIT:
            first = replace(first, rate_mbit=rate_mbit or _MOST_MBIT)
        self.set_to = replace(first, window_bytes=2 * first.window_bytes)
        self._round = 0
        self._implied: list[Fitted] = []
        mtu = round(seen.connection.mss * seen.overhead)
        self._copy = Copy(link_of(self.set_to), min(max(mtu, 576), 65_000))
        self._folder = tempfile.TemporaryDirectory(prefix="tcpkmon-try-")

    def close(self) -> None:
        self._copy.close()
        self._folder.cleanup()

    def accept(self, variants: Sequence[Variant]) -> None:
        """UsageError for what this kernel refuses, before anything is played."""
        for variant in [*variants, None]:
            self._copy.set(self.ends(variant))

    def correct(self, say: Say) -> None:
        """Play with the old setting, and correct the copy by what it looks like, until it is near
        or four times."""

        def play(path: Fitted) -> Fitted:
            say("fits the copy")
            self._change(path)
            got: Fitted = self._played([None], with_fit=True)[1][0]
            return got

        def allow(path: Fitted) -> Fitted:
            rate = self.fixed_mbit or min(path.rate_mbit, _MOST_MBIT)
            return replace(path, rate_mbit=rate)

        fixed = ["rate_mbit"] if self.fixed_mbit else []
        found, self._implied = approach(self.wanted, self.set_to, play, allow, fixed)
        self._change(found)

    def check(self, say: Say) -> tuple[list[Likeness], list[Fitted]]:
        """Play some more with the old setting: how like the capture they are, and their paths."""
        say(f"plays the old setting {_CHECKS} times")
        values, fits = self._played([None] * _CHECKS, with_fit=True)
        self._implied += [self.set_to.implied(self.wanted, got) for got in fits]
        return look_alike(values_of(self.seen.connection), values), fits

    @property
    def spans(self) -> dict[str, tuple[float, float]]:
        """From what to what the path's values are, by all plays so far."""
        found = spans(self.wanted, self._implied)
        if self.fixed_mbit:
            found.pop("rate_mbit", None)
        return found

    def _change(self, path: Fitted) -> None:
        self.set_to = path
        self._copy.change(link_of(path))

    def compare(
        self, variants: Sequence[Variant], rounds: int, say: Say
    ) -> tuple[list[Outcome], list[Likeness]]:
        """Old and new in turn, each so often; and how like the capture the old ones were."""
        order: list[Variant | None] = []
        for number in range(rounds):
            all_of_them: list[Variant | None] = [None, *variants]
            order += all_of_them[:: 1 if number % 2 else -1]
        say(f"plays {len(order)} transfers in turn, old and new")
        values, _ = self._played(order)
        sides = {
            at: _columns([one for one, which in zip(values, order, strict=True) if which is at])
            for at in [None, *variants]
        }
        outcomes = []
        for variant in variants:
            found, _ = compare(sides[None], sides[variant], {variant.main_metric}, metrics=METRICS)
            by_name = {one.metric.name: one for one in found}
            outcomes.append(Outcome(variant, by_name, (rounds, rounds)))
        olds = [one for one, which in zip(values, order, strict=True) if which is None]
        return outcomes, look_alike(values_of(self.seen.connection), olds)

    def ends(self, variant: Variant | None) -> Ends:
        """What is set for a play; None: the old setting."""
        told = {name.removeprefix("net.ipv4."): value for name, value in self.seen.settings.items()}
        sender = {name: told[name] for name in _COPIED if name in told}
        receiver = {name: told[name] for name in _AT_BOTH if name in told}
        if self.set_to.sndbuf_bytes:
            sender[WMEM] = _memory(int(self.set_to.sndbuf_bytes), 16_384)
        if self.set_to.window_bytes:
            receiver[RMEM] = _memory(int(self.set_to.window_bytes), 131_072)
        congestion = self.seen.connection.ca_name or told.get(CONGESTION, "")
        initcwnd, qdisc = 0, ""
        for one in variant.settings if variant is not None else ():
            if one.name == INITCWND:
                initcwnd = int(one.value)
            elif one.name == CONGESTION:
                congestion = one.value
            elif one.name == QDISC:
                qdisc = one.value
            elif one.name == RMEM:
                receiver[RMEM] = _memory(int(one.value), 131_072)
            else:
                sender[one.name] = _memory(int(one.value), 16_384) if one.name == WMEM \
                    else one.value  # fmt: skip
        # A play sets all that another one may have set.
        begun = {name: value for name, value in self._copy.begun.items() if name in _SET}
        return Ends(begun | sender, begun | receiver, congestion, initcwnd, qdisc)

    def _played(
        self, order: Sequence[Variant | None], with_fit: bool = False
    ) -> tuple[list[dict[str, float]], list[Any]]:
        self._round += 1
        path = Path(self._folder.name) / f"{self._round}.pm"
        bursts = [(burst.pause_s, burst.nbytes) for burst in self.seen.bursts]
        options = ["--netns", self._copy.name, "--quiet", "--columns", "full", "--format", "psc"]
        plays: list[Play] = []
        with start(["tcp"], path, force=True, options=options, buffer_mb=32):
            for variant in order:
                plays.append(self._copy.play(bursts, self.ends(variant)))
        found, fits = _read(path, plays, with_fit)
        path.unlink()
        return found, fits


def _read(
    path: Path, plays: Sequence[Play], with_fit: bool
) -> tuple[list[dict[str, float]], list[Fitted]]:
    with Source(path) as source:
        table = connections(source)
        if source.reader.lost:
            raise DamagedError(f"{source.reader.lost} records of the copy's capture were lost",
                               "the machine is too busy: try again")  # fmt: skip
    order = np.argsort(table["start_ns"], kind="stable")
    ours = connections_of(table, order[table["rport"][order] == PORT])
    acked = acknowledged_in(path)
    values, fits = [], []
    for one, play in zip(ours, plays, strict=True):
        values.append(values_of(with_last_data(one, acked.get(one.conn_id))) | {
            "latency_whole_us": float(np.mean(play.latency_us)),
            "latency_whole_p95_us": float(np.quantile(play.latency_us, 0.95)),
        })  # fmt: skip
        if with_fit:
            with Source(path) as source:
                fits.append(fit(see(source, one.conn_id, 1e6)))
    return values, fits


def acknowledged_in(path: Path) -> dict[int, int]:
    """When all data of a connection that closed was acknowledged [ns], by conn_id."""
    found: dict[int, int] = {}
    with Source(path) as source:
        for piece in source.read():
            for conn_id, at_ns in acknowledged(piece).items():
                found.setdefault(conn_id, at_ns)
    return found


def _columns(values: Sequence[dict[str, float]]) -> dict[str, NDArray[Any]]:
    names = set.intersection(*(set(one) for one in values)) if values else set()
    return {name: np.array([one[name] for one in values]) for name in names}


def _memory(most: int, middle: int) -> str:
    """Of tcp_rmem and tcp_wmem."""
    return f"{min(4096, most)} {min(middle, most)} {most}"


def link_of(path: Fitted) -> Link:
    """The test link that is such a path."""
    holds = path.rate_mbit * 1e6 / 8 * path.rtt_ms / 1000
    # A queue that never dropped holds at least that; what it holds more, nobody saw.
    queue = path.queue_bytes if path.overflowed else max(path.queue_bytes, holds)
    there = Way(rate_mbit=path.rate_mbit, delay_ms=path.rtt_ms / 2, jitter_ms=path.jitter_ms,
                loss_percent=path.loss_percent, queue_bytes=int(max(queue, 3000)))  # fmt: skip
    return Link(there, Way(delay_ms=path.rtt_ms / 2))
