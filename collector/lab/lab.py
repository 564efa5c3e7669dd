# SPDX-License-Identifier: Apache-2.0
"""The lab: two network namespaces and, if wanted, a bottleneck between them.

Lab():
           a --veth0==========================================veth0-- b
    10.77.0.1 fd77::1                                  10.77.0.2 fd77::2

Lab(Bottleneck(...)): the queue is in a router r. In a queue of its own host, the sender's TCP
would see each drop at once (TCP small queues, local congestion). a and b have the same addresses.

           a --veth0====left-- r --[tbf]right====veth0--[nftables drop] b
                                         <- netem delay, where the kernel has it

Lab(link=Link(...)): in place of all that, tun devices of the same name, and a process between them
that delays, loses and counts packets (link.py).
"""

from __future__ import annotations

import atexit
import errno
import itertools
import os
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from tcpkmon.collector.lab import namespaces
from tcpkmon.collector.lab.link import Link, Wire
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.linux.privileges import check_root
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError

DEVICE = "veth0"
"""The device in a and in b that leads to the other."""
SMALL_BYTES = 200  # packets up to this size (acknowledgements, handshakes) are never dropped
_NODAD = 0x02  # IFA_F_NODAD: the IPv6 address can be used at once
_PERMANENT = 0x80  # NUD_PERMANENT
_LINK = 253  # RT_SCOPE_LINK
_serials = itertools.count()


@dataclass(frozen=True)
class Bottleneck:
    """What the path from a to b does to packets."""

    rate_mbit: float = 20.0
    queue_bytes: int = 60_000
    loss_percent: float = 0.0
    """Dropped at random, of the packets larger than SMALL_BYTES."""
    delay_ms: float = 0.0
    """From b to a, by netem. Lab.delay_ms stays 0 where the kernel has no netem."""


class Lab(Closing):
    """Two namespaces `a` and `b`, which exist inside a `with`. Any end of it removes them.

    In the main thread, SIGTERM and SIGHUP raise SystemExit inside the `with`, so that the
    namespaces are removed. At the start it removes the labs of processes that died.
    Errors: PrivilegeError without root, KernelError where the kernel lacks namespaces, veth or
    nf_tables, TcpkmonError where the commands ip or nft are missing.
    """

    a: Side
    b: Side
    router: Side | None = None
    """The namespace with the queue, if there is a bottleneck."""

    wire: Wire | None = None
    """The link that runs, if there is one."""

    def __init__(self, bottleneck: Bottleneck | None = None, link: Link | None = None) -> None:
        self.bottleneck, self.link = bottleneck, link
        self.delay_ms = 0.0
        self._names: list[str] = []
        self._sides: list[Side] = []
        self._serial = next(_serials)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Lab:
        check_root("a lab of network namespaces")
        namespaces.remove_stale()
        atexit.register(self.close)
        self._catch_signals()
        try:
            self.a = self._make_side("a", 1)
            self.b = self._make_side("b", 2)
            self._connect()
        except NetlinkError as error:
            self.close()
            raise KernelError(
                f"the lab's network could not be made: {error}", "tcpkmon doctor tells more"
            ) from None
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Remove the namespaces with all their devices. A second call does nothing."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None
        while self._sides:
            self._sides.pop().namespace.close()
        while self._names:
            namespaces.remove(self._names.pop())
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        atexit.unregister(self.close)

    # Making

    def _make_side(self, letter: str, number: int) -> Side:
        name = f"tcpkmon-{os.getpid()}-{self._serial}-{letter}"
        self._names.append(name)
        side = Side(namespaces.make(name), f"10.77.0.{number}", f"fd77::{number}")
        self._sides.append(side)
        side.run(_prepare)
        return side

    def _connect(self) -> None:
        ends: dict[Side, str] = {}
        if self.link is not None:
            self.wire = Wire(self.link, (self.a.name, self.b.name), DEVICE)
            for side in (self.a, self.b):
                _set_up(side, DEVICE, "lo", txqlen=10_000)
        elif self.bottleneck is None:
            _join(self.a, DEVICE, self.b, DEVICE)
            ends = {self.a: _hardware(self.b, DEVICE), self.b: _hardware(self.a, DEVICE)}
        else:
            self.router = router = self._make_side("r", 3)
            for side, device in ((self.a, "left"), (self.b, "right")):
                _join(side, DEVICE, router, device)
            ends = {self.a: _hardware(router, "left"), self.b: _hardware(router, "right")}
            router.run(_forward)
            with router.routes() as routes:
                for side, device in ((self.a, "left"), (self.b, "right")):
                    _add_neighbours(routes, device, side, _hardware(side, DEVICE))
                    _add_host_routes(routes, device, side)
                self._narrow(routes, self.bottleneck)
        for side, other in ((self.a, self.b), (self.b, self.a)):
            with side.routes() as routes:
                index = _index(routes, DEVICE)
                routes.addr("add", index=index, address=side.address4, prefixlen=24)
                routes.addr("add", index=index, address=side.address6, prefixlen=64, flags=_NODAD)
                if self.link is None:
                    _add_neighbours(routes, DEVICE, other, ends[side])

    def _narrow(self, router: IPRoute, wanted: Bottleneck) -> None:
        rate = int(wanted.rate_mbit * 1e6 / 8)
        router.tc(
            "add",
            "tbf",
            _index(router, "right"),
            0x10000,
            rate=rate,
            # tbf splits a segment that is larger than the burst, like a real link.
            burst=max(4096, rate // 250),
            limit=wanted.queue_bytes,
        )
        if wanted.delay_ms > 0:
            self._delay(wanted.delay_ms)
        if wanted.loss_percent > 0:
            self.drop(wanted.loss_percent)

    def _delay(self, delay_ms: float) -> None:
        with self.b.routes() as routes:
            try:
                routes.tc(
                    "add",
                    "netem",
                    _index(routes, DEVICE),
                    0x10000,
                    delay=int(delay_ms * 1000),
                    limit=10_000,
                )
            except NetlinkError as error:
                if error.code not in (errno.ENOENT, errno.EOPNOTSUPP):
                    raise
            else:
                self.delay_ms = delay_ms

    def drop(self, loss_percent: float) -> None:
        """Let b drop this share of the large packets from a, from now on (0: none)."""
        share = max(1, round(loss_percent * 100))
        large = f"meta l4proto tcp meta length > {SMALL_BYTES}"
        self.drop_all(f"{large} numgen random mod 10000 < {share}" if loss_percent > 0 else "")

    def drop_all(self, match: str) -> None:
        """Let b drop what this expression of nftables matches, from now on ("": nothing)."""
        rules = ["add table inet lab", "flush table inet lab"]
        if match:
            rules += [
                "add chain inet lab losses { type filter hook input priority 0 ; }",
                f"add rule inet lab losses {match} counter drop",
            ]
        self._nft("\n".join(rules))

    def dropped(self) -> int:
        """Packets that the rule of drop() or drop_all() dropped so far."""
        text = self._nft("list", "table", "inet", "lab")
        found = re.search(r"counter packets (\d+)", text)
        return int(found.group(1)) if found else 0

    def _nft(self, *arguments: str) -> str:
        try:
            return self.b.command(["nft", *arguments])
        except subprocess.CalledProcessError as error:
            raise KernelError(
                f"nft failed in the lab: {error.stderr.strip()}", "does this kernel have nf_tables?"
            ) from None

    # Ending

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _prepare() -> None:
    """Set a namespace without devices so that its IPv6 addresses can be used at once."""
    ipv6 = Path("/proc/sys/net/ipv6/conf")
    if ipv6.is_dir():
        (ipv6 / "default/accept_dad").write_text("0")
        (ipv6 / "default/disable_ipv6").write_text("0")


def _forward() -> None:
    for name in ("ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"):
        path = Path("/proc/sys/net", name)
        if path.exists():
            path.write_text("1")
    for path in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter"):
        path.write_text("0")


def _join(side: Side, device: str, other: Side, other_device: str) -> None:
    """Make a veth pair between two namespaces, and set it up."""
    with side.routes() as routes:
        peer = {"ifname": other_device, "net_ns_fd": other.namespace.fd}
        routes.link("add", ifname=device, kind="veth", peer=peer)
    for place, name in ((side, device), (other, other_device)):
        _set_up(place, name, "lo")


def _set_up(side: Side, *devices: str, **more: int) -> None:
    with side.routes() as routes:
        for one in devices:
            routes.link("set", index=_index(routes, one), state="up", **more)


def _hardware(side: Side, device: str) -> str:
    with side.routes() as routes:
        return str(routes.get_links(_index(routes, device))[0].get("address"))


def _add_neighbours(routes: IPRoute, device: str, other: Side, hardware: str) -> None:
    """Add static neighbours: after a lost solicitation, a SYN would wait for a second."""
    for address in (other.address4, other.address6):
        routes.neigh(
            "replace",
            dst=address,
            lladdr=hardware,
            ifindex=_index(routes, device),
            state=_PERMANENT,
        )


def _add_host_routes(routes: IPRoute, device: str, side: Side) -> None:
    index = _index(routes, device)
    routes.route("add", dst=f"{side.address4}/32", oif=index, scope=_LINK)
    routes.route("add", dst=f"{side.address6}/128", oif=index)


def _index(routes: IPRoute, device: str) -> int:
    return int(routes.link_lookup(ifname=device)[0])
