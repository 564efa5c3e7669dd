# SPDX-License-Identifier: Apache-2.0
"""M5: what the stack makes of an application that writes regularly; sizes and times by layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scripts.experiments.context import Context
from scripts.experiments.figure import Figure
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.magnet.recording import HEADERS, RECEIVED, SENT, covered, first_times
from scripts.magnet.wire import Link, recording, wired

NAME = "M5"
TITLE = "M5: modulation"
WRITE_BYTES, PAUSE_MS = 10_240, 200
WRITES, QUICK_WRITES = 25, 5
MOST_BYTES = 1500
AT, SIZE, BYTES = "at, ms", "size, bytes", "bytes, counted once"
PATH = "path of a write's packets, us"
DRAWN = 1
"""The write whose path is kept; the first one's is that of a new connection."""
RISING = "bytes whose times rise through all layers"


def measure(context: Context) -> None:
    """Writes of 10 KiB; each layer's events, and the bytes that they tell of."""
    context.say(f"{NAME}: writes of {WRITE_BYTES} bytes, {PAUSE_MS} ms after one another")
    writes = QUICK_WRITES if context.quick else WRITES
    with wired(context) as wire:
        wire.set(Link(100, offload=False))
        with recording(context, wire.lab) as found:
            wire.load.run(f"stream {writes} {WRITE_BYTES} {PAUSE_MS * 1000}")
    context.results.add(NAME, "lost", "records", found.lost)
    context.results.add(NAME, BYTES, "written", writes * WRITE_BYTES)
    first: dict[str, int] = {}
    times: dict[str, NDArray[np.float64]] = {}
    # Every byte: a layer may divide them as it likes.
    offsets = np.arange(writes * WRITE_BYTES)
    for layers in (SENT, RECEIVED):
        connection = found.busiest("SOCK_SEND" if layers is SENT else "SOCK_RECV")
        for layer in layers:
            events = found.of(layer, connection)
            moved = events["seq_hi"] != events["seq_lo"]
            events = {name: column[moved] for name, column in events.items()}
            if not len(moved) or not len(events["time_ns"]):
                continue
            if not first:
                first = {name: int(events[name][0]) for name in ("seq_lo", "time_ns")}
            headers = 0 if layer.startswith(("SOCK", "TCP")) else HEADERS
            for at, size in zip(events["time_ns"].tolist(), events["size"].tolist(), strict=True):
                context.results.add(NAME, AT, layer, (at - first["time_ns"]) / 1e6)
                context.results.add(NAME, SIZE, layer, size + headers)
            context.results.add(NAME, BYTES, layer, covered(events, first["seq_lo"]))
            # The call to send ends last: it began before all the others.
            stamp = "entered" if layer == "SOCK_SEND" else "time_ns"
            times[layer] = first_times(events, first["seq_lo"] + offsets, stamp)
    every = np.array(list(times.values()))
    rises = np.all(np.diff(every, axis=0) >= 0, axis=0) & np.isfinite(every).all(axis=0)
    context.results.add(NAME, RISING, "all layers", int(rises.sum()))
    begin = DRAWN * WRITE_BYTES
    packets = np.arange(begin, begin + WRITE_BYTES, MOST_BYTES - HEADERS)
    for layer, each in times.items():
        for at in (each[packets] - times["SOCK_SEND"][begin]).tolist():
            context.results.add(NAME, PATH, layer, at / 1e3)


def column(results: Results, subject: str, layer: str) -> NDArray[np.float64]:
    """Of all events of a layer, in the order of time."""
    return np.array(results.all(NAME, subject, layer))


def figures(results: Results) -> list[Figure]:
    written = results.median(NAME, BYTES, "written")
    rising = results.median(NAME, RISING, "all layers") or 0
    at, size = (column(results, subject, "SOCK_SEND") for subject in (AT, SIZE))
    packets = column(results, SIZE, "DEV_SEND")
    if written is None or len(at) < 2 or not len(packets):
        return []
    pause = float(np.mean(np.diff(at)))
    sums = {layer: results.median(NAME, BYTES, layer) for layer in (*SENT, *RECEIVED)}
    known = {layer: total for layer, total in sums.items() if total is not None}
    wrong = {layer: total for layer, total in known.items() if total != written}
    return [
        Figure(
            f"{NAME}: the application's writes", "10 KB every 0.2 s",
            f"{np.mean(size):,.0f} B every {pause:.1f} ms", f"{WRITE_BYTES:,} B / {PAUSE_MS} ms",
            bool(np.all(size == WRITE_BYTES)) and abs(pause - PAUSE_MS) < 0.05 * PAUSE_MS,
        ),
        Figure(
            f"{NAME}: packets at the device", "1500-byte packets, in bursts",
            f"{len(packets) / len(at):.1f} a write, {np.mean(packets):,.0f} B in the mean, "
            f"{packets.max():,.0f} B at most", f"at most {MOST_BYTES} B",
            bool(packets.max() <= MOST_BYTES),
        ),
        Figure(
            f"{NAME}: bytes at each of {len(known)} layers", "-",
            ", ".join(f"{layer} {number(total, 0)}" for layer, total in wrong.items())
            or f"{number(written, 0)} at all", f"{number(written, 0)} at all",
            not wrong and len(known) == len(sums),
        ),
        Figure(
            f"{NAME}: bytes whose times rise through all layers", "-",
            f"{number(rising, 0)} of {number(written, 0)}", "all",
            rising == written,
        ),
    ]  # fmt: skip


def tables(results: Results) -> list[Table]:
    rows = []
    for layer in (*SENT, *RECEIVED):
        at, size = column(results, AT, layer), column(results, SIZE, layer)
        if len(at) > 1:
            rows.append([
                layer, number(len(at), 0), number(float(np.mean(size)), 0),
                number(float(size.min()), 0), number(float(size.max()), 0),
                number(float(at[-1] - at[0]) / (len(at) - 1), 2),
                number(results.median(NAME, BYTES, layer) or 0, 0),
            ])  # fmt: skip
    return [
        Table(
            "One connection, by layer",
            ("", "events", "mean size", "least", "most", "mean interval, ms", BYTES),
            rows,
            f"IP and DEV: the data and {HEADERS} bytes of headers. TCP_SEND: what is left to take "
            "each time. TCP_RECV: what is in order and not read yet.",
        )
    ]
