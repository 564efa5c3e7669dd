# SPDX-License-Identifier: Apache-2.0
"""Random loss by netem: what is retransmitted is recorded, and the kernel counts the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tcpkmon.collector.lab import traffic
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.traffic import Workload
from tests.live.capturing import capturing, within
from tests.live.faults import verify

LOSSES = ("--columns", "all", "--locations", "RETRANSMIT,DESTROY,CONG_STATE")
NETEM = ("tc", "qdisc", "add", "dev", "veth0", "root", "netem")


def test_loss_by_netem(lab: Lab, tmp_path: Path) -> None:
    try:
        lab.a.command([*NETEM, "loss", "5%", "delay", "2ms", "limit", "10000"])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"netem: {error.stderr.strip()}")
    path = tmp_path / "netem.pm"
    with capturing(path, *LOSSES, *within(lab)) as running:
        workload = Workload(server=lab.b.address4, connections=2, count=60, size=20_000)
        result = traffic.run(workload, lab.a.namespace.fd, lab.b.namespace.fd, timeout_s=300)
    outcome = running.stop()
    outcome.check_complete()
    verify(path, 0)
    statistics = lab.a.command(["tc", "-s", "qdisc", "show", "dev", "veth0"])
    dropped = re.search(r"dropped (\d+)", statistics)
    assert dropped and int(dropped[1]) > 0, statistics
    client = outcome.records.where(rport=result.port)
    again = client.at("RETRANSMIT")
    assert len(again)
    final = client.at("DESTROY")
    assert len(final) == 2
    # One record may stand for several segments, sent again together: never for none.
    assert int(final["total_retrans"].sum()) >= len(again)
    assert int(final["bytes_retrans"].sum()) == int(again["seg_len"].sum())
    assert len(client.at("CONG_STATE"))
