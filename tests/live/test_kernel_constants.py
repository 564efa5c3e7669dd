# SPDX-License-Identifier: Apache-2.0
"""The constants against what the kernel says, or does, elsewhere."""

from __future__ import annotations

import gzip
import os
import re
import socket
import struct
from pathlib import Path

import pytest

from tcpkmon.collector.linux import kernel_constants
from tcpkmon.collector.linux.btf import Btf

TCP_WMEM = Path("/proc/sys/net/ipv4/tcp_wmem")
# A reset instead of TIME_WAIT: the trials leave nothing behind.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def facts() -> kernel_constants.Facts:
    return kernel_constants.read_facts(Btf.from_kernel())


def test_hz_is_the_configured_one(facts: kernel_constants.Facts) -> None:
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
    assert facts.hz == int(found[1])


def test_page_and_buffer_sizes(facts: kernel_constants.Facts) -> None:
    assert facts.page_size == os.sysconf("SC_PAGE_SIZE")
    btf = Btf.from_kernel()
    assert facts.skb_size % 64 == 0
    assert 0 <= facts.skb_size - btf.struct("sk_buff").size_bytes < 64


def test_the_overhead_predicts_the_send_buffer(facts: kernel_constants.Facts) -> None:
    """When a connection is established, the kernel sets its send buffer by the same formula."""
    overhead = facts.mss_overhead
    assert overhead is not None
    largest = int(TCP_WMEM.read_text().split()[2])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sizes = [8192 - overhead, 8193 - overhead, 16384 - overhead, 16385 - overhead, 5000]
        seen = {mss: send_buffer(listener, mss) for mss in sizes}
    for mss, (size, before) in seen.items():
        room = 1 << (mss + overhead - 1).bit_length()
        assert size == max(before, min(largest, 2 * 10 * (room + facts.skb_size))), mss


def send_buffer(listener: socket.socket, mss: int) -> tuple[int, int]:
    """SO_SNDBUF of a connection with this MSS, (once established, before)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        # This one is in every kernel, and has no send buffer of its own.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
        before = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        client.connect(listener.getsockname())
        size = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        listener.accept()[0].close()
    return size, before


@pytest.mark.parametrize("text", ["", "protocol size maxhdr\n", "protocol maxhdr\nTCP ?\n"])
def test_an_unknown_header_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    (tmp_path / "protocols").write_text(text)
    monkeypatch.setattr(kernel_constants, "PROTOCOLS", tmp_path / "protocols")
    assert kernel_constants.read_max_header() is None
    monkeypatch.setattr(kernel_constants, "PROTOCOLS", tmp_path / "none")
    assert kernel_constants.read_max_header() is None
