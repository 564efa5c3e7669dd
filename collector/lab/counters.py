# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts of TCP in a namespace of a lab, and packets that it is made to lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tcpkmon.collector.lab.namespaces import Side


def counters(side: Side) -> Counter[str]:
    """/proc/net/snmp and netstat: what TCP did in this namespace since it began, by name."""
    found: Counter[str] = Counter()
    for name in ("netstat", "snmp"):
        lines = side.command(["cat", f"/proc/thread-self/net/{name}"]).splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            pairs = zip(names.split()[1:], values.split()[1:], strict=True)
            found.update({name: int(value) for name, value in pairs})
    return found


@contextmanager
def losing(side: Side, packets: str) -> Iterator[None]:
    """Inside, this side loses all packets of a kind (in words of nftables) that come in."""
    chain = "add chain inet own losses { type filter hook input priority 0 ; }"
    rule = f"add rule inet own losses {packets} drop"
    side.command(["nft", f"add table inet own; {chain}; {rule}"])
    try:
        yield
    finally:
        side.command(["nft", "delete table inet own"])
