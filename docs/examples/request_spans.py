# SPDX-License-Identifier: Apache-2.0
"""An example: requests that tcpkmon saw, as spans of the traces that a program's own log names.

    tcpkmon requests run.pm --json | python request_spans.py LOG http://127.0.0.1:4318/v1/traces

LOG is what your program writes, a line of JSON for each request that it handles: when it began, the
peer's port, and the header traceparent that came with the request (W3C Trace Context):

    {"time": "2026-01-31T12:00:00.123456Z", "peer_port": 40000,
     "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

A request of the capture is that of a line if it came from this port and the line was written while
it was under way. TCP itself carries no trace id: without such a log no span can have one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
PARTS = ("wait_ns", "request_ns", "think_ns", "network_ns", "response_ns", "read_ns")
SLACK_NS = 1_000_000
"""The log's clock is read a little before or after."""


def epoch_ns(text: str) -> int:
    """Of a time of day in UTC, exact to the microsecond."""
    told = datetime.fromisoformat(text.replace("Z", "+00:00")) - datetime.fromtimestamp(
        0, timezone.utc
    )
    return (told.days * 86_400 + told.seconds) * 10**9 + told.microseconds * 1000


def parents(log: Iterable[str]) -> dict[int, list[tuple[int, trace.SpanContext]]]:
    """By the peer's port: when a request was handled, and of which span it is a part."""
    found: dict[int, list[tuple[int, trace.SpanContext]]] = {}
    for line in log:
        told = json.loads(line)
        if (match := TRACEPARENT.fullmatch(told["traceparent"])) is None:
            continue
        context = trace.SpanContext(
            int(match[1], 16), int(match[2], 16), is_remote=True,
            trace_flags=trace.TraceFlags(int(match[3], 16)),
        )  # fmt: skip
        found.setdefault(told["peer_port"], []).append((epoch_ns(told["time"]), context))
    return found


def matched(
    rows: Iterable[dict[str, Any]], log: dict[int, list[tuple[int, trace.SpanContext]]]
) -> Iterator[tuple[dict[str, Any], int, trace.SpanContext]]:
    """Requests at their server, when each began, and their parents."""
    for row in rows:
        if row["side"] != "server" or row["total_ns"] is None or row["start"] is None:
            continue
        start_ns = epoch_ns(row["start"])
        end_ns = start_ns + int(row["total_ns"])
        for time_ns, context in log.get(row["rport"], ()):
            if start_ns - SLACK_NS <= time_ns <= end_ns + SLACK_NS:
                yield row, start_ns, context
                break


def main() -> None:
    """Send a span for each request of standard input that the log names."""
    path, endpoint = sys.argv[1:]
    with open(path, encoding="utf-8") as log:
        named = parents(log)
    provider = TracerProvider(resource=Resource.create({"service.name": "tcpkmon"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    tracer = provider.get_tracer("tcpkmon")
    count = 0
    for row, start_ns, context in matched(map(json.loads, sys.stdin), named):
        parent = trace.set_span_in_context(trace.NonRecordingSpan(context))
        known = {f"tcpkmon.{name}": row[name] for name in PARTS if row[name] is not None}
        span = tracer.start_span(
            "tcp request", parent, trace.SpanKind.SERVER, start_time=start_ns,
            attributes={"tcpkmon.certain": row["certain"], **known},
        )  # fmt: skip
        span.end(start_ns + int(row["total_ns"]))
        count += 1
    provider.shutdown()
    print(f"{count} spans")


if __name__ == "__main__":
    main()
