# SPDX-License-Identifier: Apache-2.0
"""OTLP: a real receiver takes what the SDK sends, and reads it by OpenTelemetry's protos."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from tcpkmon.collector.commands.metrics import command
from tcpkmon.collector.commands.openmetrics import make_metrics
from tcpkmon.collector.commands.otlp import Sender
from tcpkmon.collector.daemon.metrics_process import MetricsProcess
from tcpkmon.collector.linux import isolated
from tcpkmon.collector.metrics.endpoint import check_endpoint
from tcpkmon.collector.metrics.histogram import Histogram
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands import requests
from tests.unit.otlp_receiver import Receiver, attributes, receiving, values
from tests.unit.request_capture import server, write_requests

WAIT_S = 60.0
EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/request_spans.py"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def histogram(*values_us: int) -> dict[str, Any]:
    import numpy as np

    made = Histogram(4, 25)
    made.add(np.array(values_us, np.uint64))
    return made.told()


ANSWER: dict[str, Any] = {
    "tcpkmon": "0.1.0", "format": "psc", "schemata": "tcp", "records": 700, "enabled": True,
    "events": [], "outcomes": {"RTO": {"attempts": 9, "written": 7, "filtered": 2}},
    "lost": {"ring full": 3}, "cost": {"cpu_s": 1.5, "memory_bytes": 1 << 20},
    "tcp": {
        "srtt": histogram(20, 30, 1000), "min_rtt": histogram(20), "handshake": histogram(500),
        "duration": {"client": histogram(10_000, 20_000), "server": histogram(1 << 40)},
        "opened": {"client": 2, "server": 1}, "closed": [["client", "reset sent", 1]],
        "retransmits": {"timeout": 2, "syn": 3, "recovery": 4, "probe": 5, "synack": 1},
        "zero_window": {"segments": 6, "probes": 8}, "bytes": {"sent": 10, "received": 20},
        "counting_s": 0.1,
    },
}


class Answers(Collector):
    def collect(self) -> Any:
        return list(make_metrics({"run.pm": ANSWER}, 0))

    def describe(self) -> Any:
        return ()


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Answers())
    made = Sender(registry, url)
    try:
        yield made
    finally:
        made.close()


def test_what_a_receiver_reads(receiver: Receiver) -> None:
    with sender(receiver.url) as one:
        assert one.send()
    assert receiver.paths == ["/v1/metrics"]
    assert receiver.resource()["service.name"] == "tcpkmon"
    found = receiver.metrics()
    assert values(found["tcpkmon_records"]) == {("run.pm",): 700}
    assert values(found["tcpkmon_lost_records"]) == {("run.pm", "ring_full"): 3}
    records = found["tcpkmon_records"].sum
    assert records.is_monotonic and records.aggregation_temporality == 2  # cumulative
    again = found["system.network.tcp.retransmits"]
    assert again.unit == "{segment}"
    assert values(again) == {
        ("timeout", "run.pm"): 6, ("fast", "run.pm"): 4, ("tail_loss_probe", "run.pm"): 5,
    }  # fmt: skip
    assert values(found["system.network.tcp.flow_control.events"]) == {
        ("zero_window", "run.pm"): 6,
    }
    rtt = found["system.network.tcp.rtt.duration"]
    (point,) = rtt.histogram.data_points
    assert rtt.unit == "s" and point.count == 3 and point.sum == pytest.approx(0.00105)
    assert attributes(point) == {"tcpkmon.capture": "run.pm"}
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert list(point.explicit_bounds) == sorted(point.explicit_bounds)
    bounds = [0.0, *point.explicit_bounds, float("inf")]
    for value_s in (20e-6, 30e-6, 1000e-6):
        at = next(n for n, least in enumerate(bounds[1:]) if value_s <= least)
        assert point.bucket_counts[at] >= 1
    assert sum(point.bucket_counts) == 3 and not point.HasField("min")
    (shake,) = found["system.network.tcp.handshake.duration"].histogram.data_points
    assert attributes(shake)["network.tcp.handshake.role"] == "client"
    roles = {
        attributes(one)["network.tcp.handshake.role"]: one
        for one in found["system.network.tcp.connection.duration"].histogram.data_points
    }
    assert roles["client"].count == 2
    assert roles["server"].count == roles["server"].bucket_counts[-1] == 1


def test_every_family_is_sent(receiver: Receiver) -> None:
    with sender(receiver.url) as one:
        one.send()
    told = {family.name for family in make_metrics({"run.pm": ANSWER}, 0) if family.samples}
    assert told <= set(receiver.metrics())


def test_an_endpoint_that_fails_is_tried_again(
    receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.status = 400  # what the SDK does not try again by itself
    with sender(receiver.url) as one:
        assert not one.send() and not one.send()
        receiver.status = 200
        assert one.send() and one.send()
    lines = capfd.readouterr().err.splitlines()
    assert [line.rpartition("/v1/metrics ")[2] for line in lines] == [
        "takes no metrics; it is tried again", "takes them again",
    ]  # fmt: skip


@pytest.mark.parametrize("text", [
    "127.0.0.1:4318", "ftp://a/", "http://", "http://a b/", "http://a:99999/", "unix:/a", "",
])  # fmt: skip
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(UsageError, match="is no URL"):
        check_endpoint(text)


def test_the_command_sends_and_opens_no_port(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path))
    words = isolated.command(
        "tcpkmon.collector.commands.tcpkmon", "metrics", "--until-eof", f"--otlp={receiver.url}",
        "--interval=1",
    )  # fmt: skip
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until_s = time.monotonic() + WAIT_S
        while len(receiver.got) < 2 and time.monotonic() < until_s:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        assert len(receiver.got) >= 2
        assert values(receiver.metrics()["tcpkmon_captures"]) == {("no",): 0, ("yes",): 0}
        listening = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
        sockets = {one.readlink().name for one in Path(f"/proc/{process.pid}/fd").iterdir()}
        own = [line for line in listening if f"socket:[{line.split()[9]}]" in sockets]
        assert not [line for line in own if line.split()[3] == "0A"]
        status = Path(f"/proc/{process.pid}/status").read_text()
        capabilities = [line.split()[1] for line in status.splitlines() if "CapEff" in line]
        assert [int(one, 16) for one in capabilities] == [0]
        assert process.stdin is not None
        process.stdin.close()
        process.wait(WAIT_S)


def test_the_daemons_process_sends(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path))
    metrics = MetricsProcess()
    metrics.adopt({"otlp": receiver.url}, None)
    try:
        until_s = time.monotonic() + WAIT_S
        while not receiver.got and time.monotonic() < until_s:
            metrics.look_after()
            time.sleep(0.05)
    finally:
        metrics.end()
    assert "tcpkmon_captures" in receiver.metrics()


def test_once(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path))
    words = [sys.executable, "-c", "from tcpkmon.collector.commands.tcpkmon import main; main()",
             "metrics", "--once", "--otlp"]  # fmt: skip
    assert subprocess.run([*words, receiver.url], check=False).returncode == 0
    assert len(receiver.got) == 1
    receiver.status = 400
    assert subprocess.run([*words, receiver.url], check=False).returncode == 1


def test_requests_as_spans(receiver: Receiver, tmp_path: Path) -> None:
    """The example of docs/requests.md."""
    real_ns = 1_700_000_000 * 10**9
    write_requests(tmp_path / "run.pm", server(think=40, count=3), clock=(0, real_ns, 100))
    told = CliRunner().invoke(
        requests.command, [str(tmp_path / "run.pm"), "--json"], standalone_mode=False
    )
    rows = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    assert [row["side"] for row in rows] == ["server"] * 3
    ids = [f"{number:032x}" for number in (1, 2)]
    lines = [
        {"time": rows[number + 1]["start"], "peer_port": 40000,
         "traceparent": f"00-{one}-00f067aa0ba902b7-01"}
        for number, one in enumerate(ids)
    ]  # fmt: skip
    lines.append({**lines[0], "peer_port": 1})
    lines.append({**lines[0], "traceparent": "none"})
    (tmp_path / "log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path / "log", receiver.url.replace("metrics", "traces")],
        input=told.stdout, text=True, capture_output=True, check=True, timeout=WAIT_S,
    )  # fmt: skip
    assert done.stdout == "2 spans\n", done.stderr
    (resource,) = receiver.got[-1].resource_spans
    spans = resource.scope_spans[0].spans
    assert [one.trace_id.hex() for one in spans] == ids
    for span, row in zip(spans, rows[1:], strict=True):
        assert span.parent_span_id.hex() == "00f067aa0ba902b7"
        assert span.end_time_unix_nano - span.start_time_unix_nano == row["total_ns"]
        known = {one.key: one.value for one in span.attributes}
        assert known["tcpkmon.think_ns"].int_value == row["think_ns"]


def test_the_configuration_names_the_endpoint() -> None:
    from tcpkmon.collector.daemon.config import OTHERS

    _, convert = OTHERS["metrics"]["otlp"]
    assert convert("http://127.0.0.1:4318/v1/metrics") == "http://127.0.0.1:4318/v1/metrics"
    with pytest.raises(UsageError):
        convert("nowhere")
    assert "otlp" in {option.name for option in command.params}
    assert json.dumps(ANSWER)
