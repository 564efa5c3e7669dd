# SPDX-License-Identifier: Apache-2.0
"""M6: what a stack makes of an application's writes, and another of the packets of the first."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from scripts.experiments.context import Context
from scripts.experiments.figure import Figure
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.magnet.recording import HEADERS
from scripts.magnet.wire import Link, recording, wired
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import connected, receive

NAME = "M6"
TITLE = "M6: cascade"
STEPS = ("the application", "through one stack", "through two stacks")
PAPER = dict(zip(STEPS, ((3284, 0.124), (1016, 0.045), (919, 0.037)), strict=True))
"""Mean size in bytes and mean interval in seconds, in 2001."""
SEED, WRITES, QUICK_WRITES, QUICK_SPEED = 2001, 100, 40, 10
BYTES, INTERVAL, COUNT = "bytes", "interval, s", "count"
Writes = Sequence[tuple[float, int]]
"""Seconds since the first, and bytes."""


def measure(context: Context) -> None:
    """Writes of random sizes and pauses, with the paper's means; twice what was sent for them."""
    speed = QUICK_SPEED if context.quick else 1
    writes = random_writes(QUICK_WRITES if context.quick else WRITES)
    _add(context.results, STEPS[0], writes)
    with wired(context) as wire:
        wire.set(Link(100, offload=False))
        for step in STEPS[1:]:
            context.say(f"{NAME}: {len(writes)} writes {step}")
            with recording(context, wire.lab) as found:
                play(wire.lab, [(at / speed, size) for at, size in writes])
            sent = found.of("DEV_SEND", found.busiest("SOCK_SEND"))
            data = sent["seq_hi"] != sent["seq_lo"]
            at = (sent["time_ns"][data].astype(np.int64) / 1e9 * speed).tolist()
            sizes = (sent["size"][data] + HEADERS).tolist()
            writes = [(one - at[0], size) for one, size in zip(at, sizes, strict=True)]
            _add(context.results, step, writes)


def random_writes(count: int) -> Writes:
    """Sizes and pauses by chance, the sizes even, the pauses exponential; the paper's means."""
    size, pause = PAPER[STEPS[0]]
    chance = np.random.default_rng(SEED)
    sizes, pauses = chance.random(count), chance.exponential(size=count - 1)
    at = np.concatenate([[0], np.cumsum(pauses * pause / pauses.mean())])
    whole = np.ceil(sizes * size / sizes.mean()).astype(np.int64)
    return list(zip(at.tolist(), whole.tolist(), strict=True))


def play(lab: Lab, writes: Writes) -> None:
    """Makes these writes from a to b, and reads them there."""
    with connected(lab) as pair:
        total = sum(size for _, size in writes)
        reader = threading.Thread(target=receive, args=(pair.server, total))
        reader.start()
        begin = time.monotonic()
        for at, size in writes:
            time.sleep(max(0.0, begin + at - time.monotonic()))
            pair.client.sendall(bytes(size))
        reader.join()


def _add(results: Results, step: str, writes: Writes) -> None:
    results.add(NAME, COUNT, step, len(writes))
    results.add(NAME, BYTES, step, sum(size for _, size in writes) / len(writes))
    results.add(NAME, INTERVAL, step, writes[-1][0] / (len(writes) - 1))


def figures(results: Results) -> list[Figure]:
    found = []
    for subject, place, digits, unit in ((BYTES, 0, 0, "B"), (INTERVAL, 1, 3, "s")):
        means = [results.median(NAME, subject, step) for step in STEPS]
        known = [mean for mean in means if mean is not None]
        if len(known) == len(STEPS):
            found.append(Figure(
                f"{NAME}: mean {'size' if unit == 'B' else 'interval'} at the application, "
                "through one stack, through two",
                f"{', '.join(str(paper[place]) for paper in PAPER.values())} {unit}",
                f"{', '.join(number(mean, digits) for mean in known)} {unit}",
                "each less than the last", known[0] > known[1] > known[2],
            ))  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    rows = [
        [step, number(results.median(NAME, COUNT, step) or 0, 0),
         number(results.median(NAME, BYTES, step) or 0, 0),
         number(results.median(NAME, INTERVAL, step) or 0, 4)]
        for step in STEPS if results.all(NAME, COUNT, step)
    ]  # fmt: skip
    return [
        Table(
            "Writes, and the packets with data that they become",
            ("", "count", "mean size, bytes", "mean interval, s"),
            rows,
            f"The writes: sizes and pauses by chance (seed {SEED}), with the means of 2001. A "
            f"packet: its data and {HEADERS} bytes of headers, at DEV_SEND; so many bytes are "
            "written next, at the time when it was sent.",
        )
    ]
