# SPDX-License-Identifier: Apache-2.0
"""A lab for tests and the demo: two network namespaces, a veth pair and a bottleneck between them.

       namespace a                                  namespace b
    10.77.0.1  fd77::1   [tbf]--veth0====veth0--[nftables drop]   10.77.0.2  fd77::2
                                data ->     <- netem delay, where the kernel has it
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from collector.netns import NAMED, Namespace, enter, resolve, run_inside
from formats.errors import KernelError, PrivilegeError, TcpkmonError

T = TypeVar("T")

DEVICE = "veth0"
SMALL_BYTES = 200  # packets up to this size (acknowledgements, handshakes) are never dropped
_NODAD = 0x02  # IFA_F_NODAD: an IPv6 address that can be used at once
_PERMANENT = 0x80  # NUD_PERMANENT
_serials = itertools.count()


@dataclass(frozen=True)
class Bottleneck:
    """What the path from a to b does to data."""

    rate_mbit: float = 20.0
    queue_bytes: int = 60_000
    loss_percent: float = 0.0
    """Random, of packets larger than SMALL_BYTES."""
    delay_ms: float = 0.0
    """On the way back, by netem; 0 in Lab.delay_ms where the kernel has none."""


@dataclass(frozen=True)
class Side:
    """One namespace of a lab."""

    namespace: Namespace
    address4: str
    address6: str

    @property
    def name(self) -> str:
        return self.namespace.name

    @property
    def mapped(self) -> str:
        """The IPv4 address as an IPv6 socket says it."""
        return f"::ffff:{self.address4}"

    def run(self, call: Callable[[], T]) -> T:
        """Calls it in a thread inside this namespace; returns its result."""
        return run_inside(self.namespace.fd, call)

    @contextmanager
    def routes(self) -> Iterator[IPRoute]:
        """The kernel's network settings of this namespace.

        IPRoute(netns=...) would fork to get there, and a fork of a process with threads can hang.
        """
        with enter(self.namespace.fd), IPRoute() as routes:
            yield routes

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """subprocess.Popen inside this namespace, with text streams and no standard input."""
        options = {"text": True, "stdin": subprocess.DEVNULL, "env": _environment(), **options}
        with enter(self.namespace.fd):
            return subprocess.Popen(list(command), **options)

    def command(self, command: Sequence[str], timeout_s: float = 120.0) -> str:
        """Runs a command inside this namespace and returns what it printed.

        Raises subprocess.CalledProcessError when it fails.
        """
        with enter(self.namespace.fd):
            return subprocess.run(
                list(command),
                check=True,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                env=_environment(),
                timeout=timeout_s,
            ).stdout


class Lab:
    """Two namespaces `a` and `b` that exist for the length of a `with`, whatever ends it.

    While it is open in the main thread, SIGTERM and SIGHUP end the program as an exception
    would, so that nothing is left behind. Labs of processes that died are removed first.
    Errors: PrivilegeError without root, KernelError where namespaces or veth are missing.
    """

    a: Side
    b: Side

    def __init__(self, bottleneck: Bottleneck | None = None) -> None:
        self.bottleneck = bottleneck
        self.delay_ms = 0.0
        self._names: list[str] = []
        self._serial = next(_serials)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Lab:
        if os.geteuid() != 0:
            raise PrivilegeError("a lab of network namespaces needs root", "run it with sudo")
        remove_stale()
        atexit.register(self.close)
        self._catch_signals()
        try:
            self.a = self._make_side("a", 1)
            self.b = self._make_side("b", 2)
            self._connect()
            if self.bottleneck is not None:
                self._narrow(self.bottleneck)
        except NetlinkError as error:
            self.close()
            raise KernelError(
                f"the lab's network could not be made: {error}", "tcpkmon doctor tells more"
            ) from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes the namespaces, and with them all that is in them; may be called again."""
        for side in ("a", "b"):
            made: Side | None = self.__dict__.pop(side, None)
            if made is not None:
                made.namespace.close()
        while self._names:
            _remove(self._names.pop())
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        atexit.unregister(self.close)

    def run(self, side: str, what: Callable[[], T] | Sequence[str]) -> T | str:
        """Side.run or Side.command of "a" or "b", by what is given."""
        place: Side = getattr(self, side)
        return place.run(what) if callable(what) else place.command(what)

    # Making

    def _make_side(self, letter: str, number: int) -> Side:
        name = f"tcpkmon-{os.getpid()}-{self._serial}-{letter}"
        if (NAMED / name).exists():  # of a process that died and had this number
            _remove(name)
        self._names.append(name)
        # A new /run/netns must be one that others can look into, whatever the umask.
        with _umask(0o022):
            _ip("netns", "add", name)
        return Side(resolve(name), f"10.77.0.{number}", f"fd77::{number}")

    def _connect(self) -> None:
        for side in (self.a, self.b):
            side.run(_prepare_addresses)
        with self.a.routes() as routes:
            peer = {"ifname": DEVICE, "net_ns_fd": self.b.namespace.fd}
            routes.link("add", ifname=DEVICE, kind="veth", peer=peer)
        hardware: dict[str, str] = {}
        for side in (self.a, self.b):
            with side.routes() as routes:
                index = _device_index(routes)
                routes.addr("add", index=index, address=side.address4, prefixlen=24)
                routes.addr(
                    "add", index=index, address=side.address6, prefixlen=64, flags=_NODAD
                )
                routes.link("set", index=index, state="up")
                routes.link("set", index=routes.link_lookup(ifname="lo")[0], state="up")
                hardware[side.name] = routes.get_links(index)[0].get("address")
        # Neighbours are told, not found out: a lost solicitation would cost a second and a SYN.
        for side, other in ((self.a, self.b), (self.b, self.a)):
            with side.routes() as routes:
                for address in (other.address4, other.address6):
                    routes.neigh(
                        "replace",
                        dst=address,
                        lladdr=hardware[other.name],
                        ifindex=_device_index(routes),
                        state=_PERMANENT,
                    )

    def _narrow(self, wanted: Bottleneck) -> None:
        rate = int(wanted.rate_mbit * 1e6 / 8)
        # A burst below a large segment makes tbf cut it into packets, as a real link would.
        burst_bytes = max(4096, rate // 250)
        with self.a.routes() as routes:
            routes.tc(
                "add",
                "tbf",
                _device_index(routes),
                0x10000,
                rate=rate,
                burst=burst_bytes,
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
                    _device_index(routes),
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
        """From now on b loses this share of the large packets that come from a (0: none)."""
        rules = ["add table inet lab", "flush table inet lab"]
        if loss_percent > 0:
            share = max(1, round(loss_percent * 100))
            rules += [
                "add chain inet lab losses { type filter hook input priority 0 ; }",
                f"add rule inet lab losses meta l4proto tcp meta length > {SMALL_BYTES} "
                f"numgen random mod 10000 < {share} counter drop",
            ]
        self.b.command(["nft", "\n".join(rules)])

    def dropped(self) -> int:
        """Packets that drop() has lost so far."""
        text = self.b.command(["nft", "list", "table", "inet", "lab"])
        found = re.search(r"counter packets (\d+)", text)
        return int(found.group(1)) if found else 0

    # Ending

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _leave)


def remove_stale() -> None:
    """Removes the labs of processes that are gone (killed, or the power failed)."""
    with suppress(FileNotFoundError):
        for entry in sorted(os.listdir(NAMED)):
            found = re.fullmatch(r"tcpkmon-(\d+)-\d+-[ab]", entry)
            if found and not Path("/proc", found.group(1)).exists():
                _remove(entry)


def _remove(name: str) -> None:
    # Another start may remove the same stale one: it is gone then, and all is well.
    with suppress(TcpkmonError):
        _ip("netns", "delete", name)
    with suppress(FileNotFoundError):
        os.unlink(NAMED / name)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["ip", *arguments],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    except FileNotFoundError:
        raise TcpkmonError("there is no command ip here", "apt install iproute2") from None
    if done.returncode:
        raise TcpkmonError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _environment() -> dict[str, str]:
    """This one's, with the folders where ip, tc and nft are, which sudo and cron may leave out."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"}


def _device_index(routes: Any) -> int:
    return int(routes.link_lookup(ifname=DEVICE)[0])


def _prepare_addresses() -> None:
    """Settings of a namespace made before its device: no waiting for IPv6 addresses."""
    ipv6 = Path("/proc/sys/net/ipv6/conf")
    if ipv6.is_dir():
        (ipv6 / "default/accept_dad").write_text("0")
        (ipv6 / "default/disable_ipv6").write_text("0")


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
