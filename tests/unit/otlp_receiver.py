# SPDX-License-Identifier: Apache-2.0
"""A receiver of OTLP over HTTP on loopback, which reads what it gets by OpenTelemetry's protos."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

traces = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
protos = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")


class Receiver:
    """An HTTP server on loopback that parses what it gets. status: what it answers."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.paths: list[str] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    data = gzip.decompress(data)
                receiver.paths.append(self.path)
                kind = protos.ExportMetricsServiceRequest
                if self.path == "/v1/traces":
                    kind = traces.ExportTraceServiceRequest
                receiver.got.append(kind.FromString(data))
                self.send_response(receiver.status)
                self.end_headers()
                self.wfile.write(protos.ExportMetricsServiceResponse().SerializeToString())

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/metrics"

    def metrics(self) -> dict[str, Any]:
        """The last ones, by name."""
        (resource,) = self.got[-1].resource_metrics
        (scope,) = resource.scope_metrics
        found = {one.name: one for one in scope.metrics}
        assert len(found) == len(scope.metrics)
        return found

    def resource(self) -> dict[str, str]:
        listed = self.got[-1].resource_metrics[0].resource.attributes
        return {one.key: one.value.string_value for one in listed}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that runs."""
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


def attributes(point: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in point.attributes}


def values(metric: Any) -> dict[tuple[str, ...], float]:
    data = metric.sum if metric.HasField("sum") else metric.gauge
    return {
        tuple(value for _, value in sorted(attributes(one).items())): (
            one.as_double if one.HasField("as_double") else one.as_int)
        for one in data.data_points
    }  # fmt: skip
