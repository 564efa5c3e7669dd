# SPDX-License-Identifier: Apache-2.0
"""BBR's columns where BBR is a module: by its types, against ss; without it they are left out."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.pair import join, listening, look
from tcpkmon.collector.linux.btf import BBR_BTF, Btf
from tcpkmon.formats.analysis.why import connections
from tests.live.capturing import capturing, within

COLUMNS = ("--columns", "default,bbr_bw,bbr_mode,bbr_min_rtt_us,ca_name",
           "--locations", "default,SEND_CALL,RECEIVE_CALL")  # fmt: skip


def test_the_columns_of_a_module(tmp_path: Path) -> None:
    if subprocess.run(["modprobe", "tcp_bbr"], capture_output=True, check=False).returncode:
        pytest.skip("no module tcp_bbr")
    if not BBR_BTF.exists():
        pytest.skip("the module has no types")
    assert Btf.from_kernel().has_member("bbr", "min_rtt_us")
    options = [(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")]
    narrow = Bottleneck(rate_mbit=20, queue_bytes=100_000)
    with Lab(narrow) as lab, capturing(tmp_path / "a.pm", *COLUMNS, *within(lab)) as run:
        with listening(lab.b, "10.77.0.2") as listener:
            pair = join(lab.a, listener, "10.77.0.2", options)
        for _ in range(10):
            pair.exchange(50_000)
        look(pair.client)
        text = lab.a.command(["ss", "-tinH", f"sport = :{pair.client_port}"])
        outcome = run.stop()
        records = outcome.records.where(lport=pair.client_port)
        pair.close()
    outcome.check_complete()
    told = re.search(r"bbr:\(bw:([\d.]+)([KMG]?)bps,mrtt:([\d.]+)", text)
    assert told, text
    scale = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[told[2]]
    assert records.last("bbr_bw") * 8 == pytest.approx(float(told[1]) * scale, rel=0.02)
    assert records.last("bbr_min_rtt_us") == pytest.approx(float(told[3]) * 1000, abs=1)
    assert set(np.unique(records["bbr_mode"])) <= {0, 1, 2, 3, 4}
    assert records["bbr_mode"].any()
    table = connections(tmp_path / "a.pm")
    assert "bbr" in table["ca_name"].tolist()
