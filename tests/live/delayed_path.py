# SPDX-License-Identifier: Apache-2.0
"""A delay from b to a of a lab where the kernel has no netem: a process behind a TUN device.

Packets to a are routed into the device; the process sends each one on when its time has come.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcpkmon.collector.lab.lab import DEVICE, Lab

_TUNSETIFF, _TUN, _NO_HEAD = 0x400454CA, 0x0001, 0x1000
_NAME = "delay"


@contextmanager
def delayed(lab: Lab, delay_ms: float) -> Iterator[None]:
    """The round trip of the lab takes so much longer, for IPv4."""
    command = [sys.executable, __file__, str(delay_ms), lab.a.address4]
    process = lab.b.start(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


def forward(delay_ms: float, peer: str) -> None:
    """Never returns."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _NAME.encode(), _TUN | _NO_HEAD))
    for path in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter"):
        path.write_text("0")
    for words in (f"link set {_NAME} up txqueuelen 10000", f"route replace {peer}/32 dev {_NAME}"):
        subprocess.run(["ip", *words.split()], check=True)
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE.encode())
    print("ready", flush=True)
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([device], [], [], wait)[0]:
            waiting.append((time.monotonic() + delay_ms / 1000, os.read(device, 1 << 16)))
        while waiting and waiting[0][0] <= time.monotonic():
            packet = waiting.popleft()[1]
            if packet[0] >> 4 == 4:  # what IPv6 says to a new device is not for the peer
                out.sendto(packet, (peer, 0))


if __name__ == "__main__":
    forward(float(sys.argv[1]), sys.argv[2])
