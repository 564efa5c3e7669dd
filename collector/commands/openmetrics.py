# SPDX-License-Identifier: Apache-2.0
"""What running captures answer, as metrics of prometheus-client. No address, port or PID is in
it; units and pods are, at most 200 of them, of a capture with the column cgroup.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tcpkmon.collector.control.choosing import named
from tcpkmon.collector.control.client import Client, making_sense
from tcpkmon.formats.base.causes import KERNEL_CAUSES
from tcpkmon.formats.base.errors import PrivilegeError, TcpkmonError

FRESH_S = 0.5
"""Answers are used for so long: who scrapes often does not cost the captures more."""
_ASK_S = 5.0
Answer = dict[str, Any]

_COUNTS = (
    ("records", "records", "Records that went to the file"),
    ("written_bytes", "bytes", "Bytes in the file, or in all files of a capture that rotates"),
    ("shed_events", "shed_events", "Events that a budget left out"),
    ("segments", "segment", "Files that a capture that rotates has begun"),
)
_GAUGES = (
    ("ring_fill_ratio", "ring_fill", "Largest share of a ring that was full in the last seconds"),
    ("reader_lag_seconds", "reader_lag_s", "Longest wait of a record in a ring, last seconds"),
    ("disk_free_bytes", "disk_free_bytes", "What may still be written to the file's disk"),
    ("segment_bytes", "segment_bytes", "Size of the file that is written now, where it rotates"),
    ("rotation_failing", "rotation_failing", "1 if no next file can be begun"),
    ("shed_level", "shed_level", "Steps of the budget in force"),
    ("capture_enabled", "enabled", "Whether logging is on"),
)
_HISTOGRAMS = (
    ("tcp_rtt_seconds", "srtt", "Smoothed round-trip time at each segment received"),
    ("tcp_min_rtt_seconds", "min_rtt", "Minimum round-trip time at each segment received"),
    ("tcp_handshake_duration_seconds", "handshake", "From SYN to established, active side"),
)


_Family = TypeVar("_Family", bound=Metric)


def _family(kind: Callable[..., _Family], name: str, text: str, *labels: str) -> _Family:
    """Metrics of captures, by these labels too."""
    return kind(f"tcpkmon_{name}", text, labels=["capture", *labels])


_counter = partial(_family, CounterMetricFamily)
_gauge = partial(_family, GaugeMetricFamily)
_histogram = partial(_family, HistogramMetricFamily)


def ask_all() -> tuple[dict[str, Answer], int]:
    """The answers of all captures that run here by the capture's name, and how many gave none.

    Who may not control a capture gets its public status.
    """
    found: dict[str, Answer] = {}
    silent = 0
    running: dict[str, Any] = {}
    with suppress(PrivilegeError):  # the command told it when it began
        running = named()
    for name, collector in running.items():
        client = Client(collector, _ASK_S)
        try:
            try:
                answer = client.metrics()
            except PrivilegeError:
                answer = client.status()
            check(answer)
        except TcpkmonError:
            silent += 1
            continue
        found[name] = answer
    return found, silent


def check(answer: Answer) -> None:
    """TcpkmonError where it makes no metrics: those of the other captures go on."""
    with making_sense():
        for metric in make_metrics({"capture": answer}, 0):
            for sample in metric.samples:
                float(sample.value)
                "".join(sample.labels.values())


class Captures(Collector):
    """Asks the captures at each scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: tuple[float, list[Metric]] | None = None

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            now_s = time.monotonic()
            if self._asked is None or now_s - self._asked[0] > FRESH_S:
                self._asked = now_s, list(make_metrics(*ask_all()))
            return self._asked[1]

    def describe(self) -> Iterable[Metric]:
        """Nothing: else the registry would ask the captures before the first scrape."""
        return ()


def make_registry() -> CollectorRegistry:
    """A registry with the captures alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Captures())
    return registry


def make_metrics(answers: dict[str, Answer], silent: int) -> Iterator[Metric]:
    """The metrics of these answers by the capture's name; silent: captures that gave none."""
    running = GaugeMetricFamily("tcpkmon_captures", "Captures that run here", labels=["answered"])
    running.add_metric(["yes"], len(answers))
    running.add_metric(["no"], silent)
    yield running
    info = _gauge("capture_info", "What a capture is", "version", "format", "schemata")
    proven = _gauge(
        "capture_proven",
        "1 if every loss is counted: no event is attached in a way that loses some unseen",
    )
    for name, answer in answers.items():
        words = [str(answer.get(word, "")) for word in ("tcpkmon", "format", "schemata")]
        info.add_metric([name, *words], 1)
        proven.add_metric([name], 0 if answer.get("unproven") else 1)
    yield from (info, proven, *_books(answers), *_tcp(answers))


def _books(answers: dict[str, Answer]) -> Iterator[Metric]:
    events = _counter(
        "events", "Events by what became of them in the kernel", "location", "outcome"
    )
    lost = _counter("lost_records", "Records that are not in the file", "cause")
    cpu = _counter("collector_cpu_seconds", "CPU time of the collecting process")
    memory = _gauge("collector_memory_bytes", "Its resident memory")
    counts = [(_counter(name, text), key) for name, key, text in _COUNTS]
    gauges = [(_gauge(name, text), key) for name, key, text in _GAUGES]
    for name, answer in answers.items():
        public = {row["name"]: {"written": row["written"]} for row in answer.get("events", ())}
        for location, outcomes in answer.get("outcomes", public).items():
            for outcome, count in outcomes.items():
                if outcome != "attempts":
                    label = _label(KERNEL_CAUSES.get(outcome, outcome))
                    events.add_metric([name, location, label], count)
        for cause, count in answer.get("lost", {}).items():
            lost.add_metric([name, _label(cause)], count)
        cpu.add_metric([name], answer["cost"]["cpu_s"])
        memory.add_metric([name], answer["cost"]["memory_bytes"])
        for counter, key in counts:
            if key in answer:
                counter.add_metric([name], answer[key])
        for gauge, key in gauges:
            if answer.get(key) is not None:
                gauge.add_metric([name], answer[key])
    yield from (events, lost, cpu, memory, *(family for family, _ in (*counts, *gauges)))


def _tcp(answers: dict[str, Answer]) -> Iterator[Metric]:
    """Of the captures with the schema tcp."""
    counted = {name: one["tcp"] for name, one in answers.items() if one.get("tcp", {}).get("srtt")}
    if not counted:
        return
    for name, key, text in _HISTOGRAMS:
        histogram = _histogram(name, text)
        for capture, tcp in counted.items():
            _add(histogram, [capture], tcp[key])
        yield histogram
    duration = _histogram("tcp_connection_duration_seconds", "From established to closed", "role")
    opened = _counter("tcp_connections_opened", "Connections that were established", "role")
    closed = _counter("tcp_connections_closed", "Connections that ended, and how", "role", "end")
    again = _counter("tcp_retransmits", "Segments sent again", "cause")
    zero = _counter(
        "tcp_zero_window", "Segments received while the peer's window was 0; probes of it", "what"
    )
    transferred = _counter(
        "tcp_bytes", "Bytes acknowledged by peers, and received in order", "direction"
    )
    limited = _counter(
        "tcp_limited_seconds",
        "What limited senders, by the kernel's own counts; busy has the others",
        "limit",
    )
    counting = _counter("counting_seconds", "What this counting costs the reader")
    pairs = (
        (again, "retransmits"),
        (zero, "zero_window"),
        (transferred, "bytes"),
        (limited, "limited"),
    )
    for capture, tcp in counted.items():
        for role, told in tcp["duration"].items():
            _add(duration, [capture, role], told)
        for role, count in tcp["opened"].items():
            opened.add_metric([capture, role], count)
        for role, end, count in tcp["closed"]:
            closed.add_metric([capture, role, _label(end)], count)
        for family, key in pairs:
            for label, count in tcp.get(key, {}).items():
                family.add_metric([capture, label], count)
        counting.add_metric([capture], tcp["counting_s"])
    yield from _requests(counted)
    yield from _owners(counted)
    yield from (duration, opened, closed, again, zero, transferred, limited, counting)


def _owners(counted: dict[str, Answer]) -> Iterator[Metric]:
    """Of the captures with ids of control groups."""
    opened = _gauge("tcp_owner_connections", "Open connections of a unit and pod", "unit", "pod")
    transferred = _counter(
        "tcp_owner_bytes", "Bytes acknowledged by peers, and received in order, by owner",
        "unit", "pod", "direction",
    )  # fmt: skip
    again = _counter("tcp_owner_retransmits", "Segments sent again, by owner", "unit", "pod")
    for capture, tcp in counted.items():
        for unit, pod, count, sent, received, resent in tcp.get("owners", ()):
            names = [capture, unit, pod]
            opened.add_metric(names, count)
            transferred.add_metric([*names, "sent"], sent)
            transferred.add_metric([*names, "received"], received)
            again.add_metric(names, resent)
    yield from (opened, transferred, again)


def _requests(counted: dict[str, Answer]) -> Iterator[Metric]:
    """Of the captures that record calls."""
    for name, text in (
        ("think", "From a request's last byte to its answer's first, without the path"),
        ("duration", "From a request's first byte until its answer was read, or sent"),
    ):
        family = _histogram(f"request_{name}_seconds", text, "side")
        for capture, tcp in counted.items():
            for side, told in tcp.get("requests", {}).get(name, {}).items():
                _add(family, [capture, side], told)
        yield family


def _label(text: str) -> str:
    return text.replace(" ", "_")


def _add(family: HistogramMetricFamily, labels: list[str], told: Answer) -> None:
    least, _ = told["log2_us"]
    total, buckets = 0, []
    for k, count in enumerate(told["counts"], least):
        total += count
        buckets.append((f"{2**k / 1e6:.6g}", total))
    buckets.append(("+Inf", total + told["beyond"]))
    family.add_metric(labels, buckets, told["sum_us"] / 1e6)
