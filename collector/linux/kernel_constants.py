# SPDX-License-Identifier: Apache-2.0
"""Constants that the running kernel was compiled with."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.formats.base.errors import KernelError

# uapi/linux/time.h; Python does not name it. Its resolution is one tick.
CLOCK_MONOTONIC_COARSE = 6
CACHE_LINE_BYTES = 64
PROTOCOLS = Path("/proc/net/protocols")


@dataclass(frozen=True)
class Facts:
    """Of the running kernel. tcp_sndbuf_expand() gives each segment of a send buffer, in bytes,
    roundup_pow_of_two(mss + mss_overhead) + skb_size.
    """

    hz: int
    """Jiffies per second."""
    page_size: int
    """Bytes."""
    skb_size: int
    """SKB_DATA_ALIGN(sizeof(struct sk_buff)), bytes."""
    mss_overhead: int | None
    """MAX_TCP_HEADER + SKB_DATA_ALIGN(sizeof(struct skb_shared_info)), bytes; None if unknown."""


def read_facts(btf: Btf) -> Facts:
    """Raises KernelError if BTF lacks a type."""
    max_header = read_max_header()
    shared = _aligned(btf.struct_bytes("skb_shared_info"))
    return Facts(
        hz=measure_hz(),
        page_size=mmap.PAGESIZE,
        skb_size=_aligned(btf.struct_bytes("sk_buff")),
        mss_overhead=None if max_header is None else max_header + shared,
    )


def measure_hz() -> int:
    """Jiffies per second; KernelError if the coarse clock does not tick like a kernel's."""
    hz = round(1 / time.clock_getres(CLOCK_MONOTONIC_COARSE))
    if not 10 <= hz <= 10_000:
        raise KernelError(f"the coarse clock ticks {hz} times a second: that is no HZ")
    return hz


def read_max_header() -> int | None:
    """MAX_TCP_HEADER in bytes, which no type holds: the field maxhdr of the protocol TCP."""
    try:
        heading, *rows = (line.split() for line in PROTOCOLS.read_text().splitlines())
        row = next(row for row in rows if row[0] == "TCP")
        return int(row[heading.index("maxhdr")])
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _aligned(size_bytes: int) -> int:
    return (size_bytes + CACHE_LINE_BYTES - 1) & -CACHE_LINE_BYTES
