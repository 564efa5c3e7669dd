# SPDX-License-Identifier: Apache-2.0
"""What a kernel has compiled in and tells nobody: measured once, before a capture's programs."""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from collector.linux.btf import Btf
from formats.base.errors import KernelError

# uapi/linux/time.h; Python does not name it. Its resolution is one tick.
CLOCK_MONOTONIC_COARSE = 6
CACHE_LINE_BYTES = 64
TCP_WMEM = Path("/proc/sys/net/ipv4/tcp_wmem")
# A reset instead of TIME_WAIT: the trials leave nothing behind.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Facts:
    """Of the running kernel. `mss_overhead` is None where it was not or could not be measured.

    tcp_sndbuf_expand() gives each segment of a send buffer, in bytes,
    roundup_pow_of_two(mss + mss_overhead) + skb_size.
    """

    hz: int
    """Jiffies per second."""
    page_size: int
    """Bytes."""
    skb_size: int
    """SKB_DATA_ALIGN(sizeof(struct sk_buff)), bytes."""
    mss_overhead: int | None
    """MAX_TCP_HEADER + SKB_DATA_ALIGN(sizeof(struct skb_shared_info)), bytes."""


def measure(btf: Btf, overhead: bool) -> Facts:
    """Raises KernelError if BTF has no sk_buff.

    overhead: measure mss_overhead too, which takes some milliseconds and a dozen connections of
    our own over 127.0.0.1.
    """
    skb_size = _aligned(btf.struct("sk_buff").size_bytes)
    return Facts(
        hz=measure_hz(),
        page_size=mmap.PAGESIZE,
        skb_size=skb_size,
        mss_overhead=measure_mss_overhead(skb_size) if overhead else None,
    )


def measure_hz() -> int:
    """Jiffies per second; KernelError if the coarse clock does not tick like a kernel's."""
    hz = round(1 / time.clock_getres(CLOCK_MONOTONIC_COARSE))
    if not 10 <= hz <= 10_000:
        raise KernelError(f"the coarse clock ticks {hz} times a second: that is no HZ")
    return hz


def measure_mss_overhead(skb_size: int) -> int | None:
    """The header room that the kernel adds to a segment's size, or None.

    MAX_TCP_HEADER is in no type. But when a connection is established the kernel sets its send
    buffer to a multiple of roundup_pow_of_two(mss + overhead) + skb_size, so the MSS at which the
    buffer doubles tells the overhead: found by bisection between TCP_MAXSEG values.
    """
    try:
        largest = int(TCP_WMEM.read_text().split()[2])
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            listener.settimeout(TIMEOUT_S)
            # Which power of two shows the jump depends on tcp_wmem and the loopback's MTU.
            for power in (2048, 32768, 1024):
                overhead = _bisect(listener, power, skb_size, largest)
                if overhead is not None:
                    return overhead
    except (OSError, ValueError, IndexError):
        return None
    return None


def _bisect(listener: socket.socket, power: int, skb_size: int, largest: int) -> int | None:
    low, high = max(100, power - 1024), min(power - CACHE_LINE_BYTES, 32767)
    small, initial = _sndbuf(listener, low)
    large, _ = _sndbuf(listener, high)
    segments, rest = divmod(large, 2 * power + skb_size)
    # As many segments of half the room, or the default if that is more: else the kernel reckons
    # in another way than we know.
    if rest or not initial < large < largest:
        return None
    if small != max(initial, segments * (power + skb_size)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        size, _ = _sndbuf(listener, middle)
        if size not in (small, large):
            return None
        low, high = (middle, high) if size == small else (low, middle)
    return power - low


def _sndbuf(listener: socket.socket, mss: int) -> tuple[int, int]:
    """SO_SNDBUF of a connection with this MSS, (once established, before)."""
    address = listener.getsockname()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(TIMEOUT_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        # Any other would do, but this one is in every kernel and has no send buffer of its own.
        with contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
        before = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        client.connect(address)
        size = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        listener.accept()[0].close()
    return size, before


def _aligned(size_bytes: int) -> int:
    return (size_bytes + CACHE_LINE_BYTES - 1) & -CACHE_LINE_BYTES
