# SPDX-License-Identifier: Apache-2.0
"""Sends the metrics by OTLP over HTTP, by the SDK of OpenTelemetry: to an endpoint that is named.

The families of openmetrics.py as they are, and those of TCP again under the names that are proposed
for semantic conventions (open-telemetry/semantic-conventions#3682).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import TcpkmonError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_TIMEOUT_S = 10.0
_ROLE = "network.tcp.handshake.role"
_RETRANSMITS = {
    "timeout": "timeout", "syn": "timeout", "synack": "timeout", "recovery": "fast",
    "probe": "tail_loss_probe",
}  # fmt: skip
"""network.tcp.retransmit.type by our cause. SYN and SYN-ACK are sent again by a timer."""
Labels = Mapping[str, str]


class Sender:
    """Sends to one endpoint. send() never raises: what fails is said once, and tried again."""

    def __init__(self, registry: CollectorRegistry, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource

        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False  # it is said here, in our words
        self._registry = registry
        self._endpoint = endpoint
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
        self._resource = Resource.create(
            {"service.name": "tcpkmon", "service.version": version("tcpkmon"),
             "host.name": socket.gethostname()}
        )  # fmt: skip
        self._failed = False
        self._lock = threading.Lock()

    def send(self) -> bool:
        """Ask the captures, and send; whether the endpoint took it."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        with self._lock:
            try:
                data = make_data(self._registry.collect(), self._resource, time.time_ns())
                done = self._exporter.export(data, timeout_millis=_TIMEOUT_S * 1000)
                is_good = done is MetricExportResult.SUCCESS
            except (OSError, ValueError, TcpkmonError):
                is_good = False
            if is_good is self._failed:
                what = "takes them again" if is_good else "takes no metrics; it is tried again"
                say(f"tcpkmon metrics: {self._endpoint} {what}")
            self._failed = not is_good
            return is_good

    def close(self) -> None:
        """Send no more."""
        self._exporter.shutdown()


def make_data(families: Iterable[Any], resource: Any, now_ns: int) -> Any:
    """The SDK's MetricsData of families of prometheus-client."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [one for family in families for one in _both(family, now_ns)]
    scope = ScopeMetrics(InstrumentationScope("tcpkmon", version("tcpkmon")), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _both(family: Any, now_ns: int) -> Iterator[Any]:
    """A family under our name, and under that of the proposal."""
    if not family.samples:
        return
    yield _metric(family, family.name, _unit(family.name), now_ns, dict)
    if (proposed := _PROPOSED.get(family.name)) is not None:
        name, unit, own = proposed

        def attributes(labels: Labels) -> Labels | None:
            told = own(labels)
            return None if told is None else {"tcpkmon.capture": labels["capture"], **told}

        made = _metric(family, name, unit, now_ns, attributes)
        if made.data.data_points:
            yield made


def _unit(name: str) -> str:
    endings = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
    return next((unit for ending, unit in endings.items() if name.endswith(ending)), "1")


def _metric(family: Any, name: str, unit: str, now_ns: int, attributes: Any) -> Any:
    """attributes: makes those of a sample from its labels; None leaves it out."""
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        Metric,
        NumberDataPoint,
        Sum,
    )

    cumulative = AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        points = list(_histograms(family, now_ns, attributes))
        return Metric(name, family.documentation, unit, Histogram(points, cumulative))
    sums: defaultdict[tuple[tuple[str, str], ...], float] = defaultdict(float)
    for sample in family.samples:
        if (made := attributes(sample.labels)) is not None:
            sums[tuple(sorted(made.items()))] += sample.value
    # A start of 0 is "not known": the capture may have begun before this process.
    numbers = [NumberDataPoint(dict(key), 0, now_ns, value) for key, value in sums.items()]
    data = Sum(numbers, cumulative, True) if family.type == "counter" else Gauge(numbers)
    return Metric(name, family.documentation, unit, data)


def _histograms(family: Any, now_ns: int, attributes: Any) -> Iterator[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    buckets: defaultdict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = defaultdict(list)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        if (made := attributes(labels)) is None:
            continue
        key = tuple(sorted(made.items()))
        if sample.name.endswith("_bucket"):
            buckets[key].append((float(sample.labels["le"]), int(sample.value)))
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    for key, listed in buckets.items():
        bounds, totals = zip(*sorted(listed), strict=True)
        counts = [total - before for total, before in zip(totals, (0, *totals), strict=False)]
        yield HistogramDataPoint(
            dict(key), 0, now_ns, totals[-1], sums.get(key, 0.0), counts, list(bounds[:-1]),
            None, None,  # type: ignore[arg-type] # nobody knows the least and the most
        )  # fmt: skip


def _again(labels: Labels) -> Labels | None:
    kind = _RETRANSMITS.get(labels["cause"])
    return None if kind is None else {"network.tcp.retransmit.type": kind}


def _zero_window(labels: Labels) -> Labels | None:
    is_told = labels["what"] == "segments"
    return {"network.tcp.flow_control.event": "zero_window"} if is_told else None


_PROPOSED: dict[str, tuple[str, str, Callable[[Labels], Labels | None]]] = {
    "tcpkmon_tcp_rtt_seconds": ("system.network.tcp.rtt.duration", "s", lambda labels: {}),
    "tcpkmon_tcp_handshake_duration_seconds": (
        "system.network.tcp.handshake.duration", "s", lambda labels: {_ROLE: "client"}
    ),
    "tcpkmon_tcp_connection_duration_seconds": (
        "system.network.tcp.connection.duration", "s", lambda labels: {_ROLE: labels["role"]}
    ),
    "tcpkmon_tcp_retransmits": ("system.network.tcp.retransmits", "{segment}", _again),
    "tcpkmon_tcp_zero_window": (
        "system.network.tcp.flow_control.events", "{event}", _zero_window
    ),
}  # fmt: skip
"""By our name: that of the proposal, its unit, and its attributes besides the capture's name; None
leaves a sample out."""
