# SPDX-License-Identifier: Apache-2.0
"""The measured facts against what the kernel says, or does, elsewhere."""

from __future__ import annotations

import gzip
import os
import re
import socket
import sys
from pathlib import Path

import pytest

import formats
from collector.lab.lab import Lab
from collector.linux import kernel_constants
from collector.linux.btf import Btf


@pytest.fixture(scope="module")
def measured() -> kernel_constants.Facts:
    return kernel_constants.measure(Btf.from_kernel(), overhead=True)


def test_hz_is_the_configured_one(measured: kernel_constants.Facts) -> None:
    config = Path("/proc/config.gz")
    boot = Path(f"/boot/config-{os.uname().release}")
    if config.exists():
        text = gzip.decompress(config.read_bytes()).decode()
    elif boot.exists():
        text = boot.read_text()
    else:
        pytest.skip("this kernel shows no configuration")
    found = re.search(r"^CONFIG_HZ=(\d+)$", text, re.MULTILINE)
    assert found is not None
    assert measured.hz == int(found[1])


def test_page_and_buffer_sizes(measured: kernel_constants.Facts) -> None:
    assert measured.page_size == os.sysconf("SC_PAGE_SIZE")
    btf = Btf.from_kernel()
    assert measured.skb_size % 64 == 0
    assert 0 <= measured.skb_size - btf.struct("sk_buff").size_bytes < 64


def test_overhead_predicts_the_send_buffer(measured: kernel_constants.Facts) -> None:
    """Of connections with other sizes of segment than those that it was measured with."""
    overhead = measured.mss_overhead
    if overhead is None:
        pytest.skip("tcp_wmem or the loopback here do not let it be measured")
    assert overhead > (Btf.from_kernel().struct("skb_shared_info").size_bytes + 63) & -64
    largest = int(kernel_constants.TCP_WMEM.read_text().split()[2])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sizes = [8192 - overhead, 8193 - overhead, 16384 - overhead, 16385 - overhead, 5000]
        seen = {mss: kernel_constants._sndbuf(listener, mss) for mss in sizes}
    for mss, (size, before) in seen.items():
        room = 1 << (mss + overhead - 1).bit_length()
        assert size == max(before, min(largest, 2 * 10 * (room + measured.skb_size))), mss


def test_nothing_is_left_behind(measured: kernel_constants.Facts) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        port = listener.getsockname()[1]
        kernel_constants._sndbuf(listener, 1000)
    table = Path("/proc/self/net/tcp").read_text()
    assert f":{port:04X} " not in table


def test_what_cannot_be_measured_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tcp_wmem").write_text("4096 16384 20000\n")
    monkeypatch.setattr(kernel_constants, "TCP_WMEM", tmp_path / "tcp_wmem")
    assert kernel_constants.measure_mss_overhead(256) is None
    monkeypatch.setattr(kernel_constants, "TCP_WMEM", tmp_path / "none")
    assert kernel_constants.measure_mss_overhead(256) is None


def test_another_reckoning_is_not_believed() -> None:
    assert kernel_constants.measure_mss_overhead(4711) is None


@pytest.mark.parametrize(
    ("columns", "connects"),
    [("default", True), ("default,-sb_net_target", False), ("-sb_net_target", False)],
)
def test_only_a_capture_of_that_column_makes_connections(
    lab: Lab, tmp_path: Path, columns: str, connects: bool
) -> None:
    def opened() -> int:
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(values[names.index("ActiveOpens")])

    path = tmp_path / "x.psc"
    before = lab.run("a", opened)
    run = "from collector.commands.collect import main; main()"
    collect = [sys.executable, "-c", run, "--duration", "100ms", "-o", str(path)]
    lab.run("a", [*collect, "--columns", columns])
    assert (lab.run("a", opened) > before) == connects
    with formats.open(path) as capture:
        described = {column.name: column.length for column in capture.header.columns}
    assert described["sb_net_target"] == (4 if connects else 0)
    assert described["srtt_us"] == 4
