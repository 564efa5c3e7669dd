# SPDX-License-Identifier: Apache-2.0
"""The metrics of a capture of counted traffic, as a receiver of OTLP gets them."""

from __future__ import annotations

from pathlib import Path

from tcpkmon.collector.control.choosing import choose
from tcpkmon.collector.control.client import Client
from tests.live.capturing import capturing, wait_until
from tests.live.test_control_live import GROUP, group_name
from tests.live.test_metrics_live import (
    CONNECTIONS,
    check_user,
    folder,
    free_port,
    process,
    tcpkmon,
    transfer,
)
from tests.unit.otlp_receiver import attributes, receiving, values

__all__ = ["folder"]
LIMIT_S = 40


def test_a_receiver_has_what_the_capture_counted(folder: Path, tmp_path: Path) -> None:
    port, group = free_port(), group_name(GROUP)
    words = ["--ports", str(port), "--control-group", group, "--metrics"]
    with capturing(tmp_path / "run.pm", *words) as running, receiving() as receiver:
        client = Client(choose())
        transfer(port)
        sending = tcpkmon("metrics", "--otlp", receiver.url, "--interval", "1", "--group", group)
        with process(*sending) as sender:
            def is_told() -> bool:
                if not receiver.got or "tcpkmon_records" not in receiver.metrics():
                    return False
                told = values(receiver.metrics()["tcpkmon_records"])
                return told == {("run.pm",): client.status()["records"]}

            wait_until(is_told, LIMIT_S)
            check_user(sender.pid)
            found = receiver.metrics()
        (shake,) = found["system.network.tcp.handshake.duration"].histogram.data_points
        assert shake.count == CONNECTIONS
        for point in found["system.network.tcp.connection.duration"].histogram.data_points:
            assert point.count == CONNECTIONS == sum(point.bucket_counts), attributes(point)
        (rtt,) = found["system.network.tcp.rtt.duration"].histogram.data_points
        rows = client.status()["events"]
        segments = next(row for row in rows if row["name"] == "SEGMENT_RECEIVED")["written"]
        assert rtt.count == segments
        assert "127.0.0.1" not in repr(receiver.got)
        running.interrupt()
        running.stop().check_complete()
