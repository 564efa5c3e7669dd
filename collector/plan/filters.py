# SPDX-License-Identifier: Apache-2.0
"""The filters of the command line: checks them and enters them in the BPF maps.

--syscalls is for the schema syscall (syscall_choice.py), all others for the schema tcp: a
connection passes if one of the given port filters matches (--ports, -L, -D, --pair), and if each
given filter by address, family, network namespace, cgroup, process and user matches too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from tcpkmon.collector.linux import netns
from tcpkmon.collector.plan.cgroups import Cgroup, check_mounted, find_cgroup
from tcpkmon.collector.plan.named_groups import GROUPS_BY_NAME, Named, few
from tcpkmon.collector.plan.options import (
    FLAG,
    JOINED,
    NUMBERS,
    SEVERAL,
    Kind,
    Option,
    fields_of,
    option,
    options_of,
)
from tcpkmon.collector.plan.syscall_choice import LEFT_OUT, left_out, parse_syscalls
from tcpkmon.formats.base.errors import UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAPPED_BITS = 96  # the map has an IPv4 prefix as a part of ::ffff:0:0/96
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")

FILTER_MAP = "filter_settings"
"""The BPF map that only the programs of schemata with filters have (sock_filter.h)."""
PIDS = "filter_pids"
"""The BPF map of the processes that live."""
FOLLOWING = ("follow_fork", "follow_exit")
"""The programs that keep the processes of --pid and --follow up to date (followed.h)."""
MOST_FOLLOWED = 65536
"""Processes that live at once; further ones are not followed, and counted as lost."""


class Flag(IntFlag):
    """Bits of filter_settings.flags: the filters in force (FILTER_ in bpf/include/sock_filter.h).
    """

    PORTS = 1
    LOCAL = 2
    REMOTE = 4
    PAIRS = 8
    ADDRESS = 16
    ONLY_IPV4 = 32
    ONLY_IPV6 = 64
    NETNS = 128
    CGROUP = 256
    PID = 512
    USER = 1024


def _each(make: Callable[[Any], Any], most: int, kind: Kind = SEVERAL) -> Kind:
    """make() of each value; most: what the map of sock_filter.h has room for."""
    return replace(
        kind, make=lambda name, values: tuple(dict.fromkeys(map(make, few(name, values, most))))
    )


def _parse_ports(option: str, text: str) -> tuple[int, ...]:
    chosen = bytearray(1 << 16)
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if dash and _is_number(low) and _is_number(high):
            first, last = _parse_port(option, low), _parse_port(option, high)
            if first > last:
                raise UsageError(f"{option}: {part.strip()} runs backwards", f"say {high}-{low}")
            chosen[first : last + 1] = b"\1" * (last + 1 - first)
        else:
            chosen[_parse_port(option, part.strip())] = 1
    return tuple(port for port, is_chosen in enumerate(chosen) if is_chosen)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]+", text) is not None


def _parse_port(option: str, text: str) -> int:
    if _is_number(text) and 1 <= int(text[-9:]) <= 65535 and len(text) <= 5:
        return int(text)
    if not text or _is_number(text) or not text.isascii() or not text.isprintable():
        raise UsageError(f"{option}: '{text}' is no port", "say 1 to 65535, as 5001,5201-5210")
    try:
        return _port_of(text)
    except OSError:
        raise UsageError(
            f"{option}: '{text}' is neither a port nor a known service",
            "give a number (5001), a range (5201-5210) or a name of /etc/services",
        ) from None


@lru_cache
def _port_of(service: str) -> int:
    return socket.getservbyname(service, "tcp")


def _parse_pair(text: str) -> tuple[int, int]:
    local, dot, remote = text.partition(".")
    if not dot:
        raise UsageError(f"--pair: '{text}' is no pair", "say LOCAL.REMOTE, as 1055.5050")
    return _parse_port("--pair", local), _parse_port("--pair", remote)


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise UsageError(
            f"--addr: '{text}' is no address or prefix", "as 10.0.0.0/8, 192.0.2.1, 2001:db8::/32"
        ) from None


_PORTS = replace(JOINED, make=_parse_ports, default=())


def _family(number: int) -> Kind:
    def convert(value: Any) -> int:
        if type(value) is not int or value not in {4, 6}:
            raise UsageError(f"{value!r} is no family of addresses", "write 4 or 6")
        return value

    return Kind(lambda given: number, convert, flag=True, default=0)


def _check_pid(pid: int) -> int:
    if not 0 < pid < 1 << 31:
        raise UsageError("--pid: there is no process of this number", "ps -e lists them")
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise UsageError(f"--pid: there is no process {pid}", "ps -e lists them") from None
    leader = re.search(r"^Tgid:\s*(\d+)", status, re.MULTILINE)
    if leader is not None and int(leader.group(1)) != pid:
        raise UsageError(f"--pid: {pid} is a thread", f"its process is {leader.group(1)}")
    return pid


def _resolve_all(option: str, names: Sequence[str]) -> tuple[netns.Namespace, ...]:
    spaces: list[netns.Namespace] = []
    try:
        for name in few(option, names, 64):
            spaces.append(netns.resolve(name))
    except BaseException:
        for space in spaces:
            space.close()
        raise
    return tuple(spaces)


_TOLD: dict[str, Callable[[Any], Any]] = {
    "pairs": lambda pair: f"{pair[0]}.{pair[1]}", "addresses": str,
    "namespaces": attrgetter("name"), "cgroups": attrgetter("path"), "units": str,
    "containers": str, "pods": str,
}  # fmt: skip
"""What a file's header has of their values."""


@dataclass(frozen=True)
class Filters(Named):
    """Checked filters, made by parse(); an empty one is not in force."""

    # fmt: off
    ports: tuple[int, ...] = option(
        "--ports LIST", _PORTS, "Ports on either side: 5001,5201-5210.", True, live=True)
    local_ports: tuple[int, ...] = option(
        "-L PORTS", _PORTS, "Local ports.", "local_ports", live=True)
    remote_ports: tuple[int, ...] = option(
        "-D PORTS", _PORTS, "Remote ports.", "remote_ports", live=True)
    pairs: tuple[tuple[int, int], ...] = option(
        "--pair L.R", _each(_parse_pair, 1024), "One pair of local and remote port.", "pairs",
        live=True)
    addresses: tuple[Network, ...] = option(
        "--addr PREFIX", _each(_parse_network, 1024), "An address or prefix, either side.", True,
        live=True)
    family: int = option(
        "-4", _family(4), "IPv4 only (v4-mapped too).", "family", live=True,
        twins=[Option("-6", _family(6), "IPv6 only.")])
    """4 or 6; 0 for both."""
    namespaces: tuple[netns.Namespace, ...] = option(
        "--netns NAME|PID|PATH", replace(SEVERAL, make=_resolve_all), "A network namespace.", True,
        live=True)
    """Open until close()."""
    cgroups: tuple[Cgroup, ...] = option(
        "--cgroup PATH", _each(find_cgroup, 64), "A cgroup (v2), those below too.", True,
        live=True)
    """All of one level."""
    pids: tuple[int, ...] = option(
        "--pid N", _each(_check_pid, 1024, NUMBERS),
        "Connections of this process, and of those that it starts or has started.", True)
    follow: bool = option(
        "--follow", FLAG, "Only connections of COMMAND, and of the processes that it starts.")
    """following() has its number."""
    syscalls: tuple[int, ...] = option(
        "--syscalls NAME,...", replace(_PORTS, make=lambda name, text: parse_syscalls(text)),
        "Only these calls, in the schema syscall.", True)
    """Numbers of the calls to record; () for all. No filter of connections."""
    # fmt: on

    @property
    def flags(self) -> Flag:
        """The filters of connections in force."""
        given = (
            self.ports, self.local_ports, self.remote_ports, self.pairs, self.addresses,
            self.family == 4, self.family == 6, self.namespaces, self.cgroups or self.by_name,
            self.pids or self.follow, self.users,
        )  # fmt: skip
        return Flag(sum(flag for flag, value in zip(Flag, given, strict=True) if value))

    def entries(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """By name of a BPF map: its keys and values, in native byte order."""
        one = struct.pack("=I", 1)
        bits: dict[int, int] = {}
        for bit, ports in ((1, self.ports), (2, self.local_ports), (4, self.remote_ports)):
            for port in ports:
                bits[port] = bits.get(port, 0) | bit
        level = self.cgroups[0].level if self.cgroups else GROUPS_BY_NAME * self.by_name
        return {
            "filter_ports": [
                (struct.pack("=I", port), struct.pack("=I", value)) for port, value in bits.items()
            ],
            "filter_pairs": [
                (struct.pack("=I", local << 16 | remote), one) for local, remote in self.pairs
            ],
            "filter_addresses": [(_prefix_key(network), one) for network in self.addresses],
            "filter_netns": [(struct.pack("=Q", space.cookie), one) for space in self.namespaces],
            "filter_cgroups": [(struct.pack("=Q", cgroup.id), one) for cgroup in self.cgroups],
            PIDS: [(struct.pack("=I", pid), one) for pid in self.pids],
            "filter_users": [(struct.pack("=I", user), one) for user in self.users],
            LEFT_OUT: left_out(self.syscalls),
            # Last: a filter is in force only when its values are in the maps.
            FILTER_MAP: [(struct.pack("=I", 0), struct.pack("=II", self.flags, level))],
        }

    def apply(self, maps: dict[str, int]) -> None:
        """Fills the empty BPF maps that the capture has; maps: descriptors by name."""
        from tcpkmon.collector.linux.bpf import map_update

        for name, rows in self.entries().items():
            for key, value in rows if name in maps else ():
                map_update(maps[name], key, value)

    def following(self, pid: int) -> Filters:
        """The same, and with `follow` the process of the command."""
        return replace(self, pids=(*self.pids, pid)) if self.follow else self

    def describe(self) -> dict[str, Any]:
        """The filters in force, as plain values for the settings in a file's header."""
        values = {name: getattr(self, name) for name in options_of(Filters)}
        return {
            name: [_TOLD.get(name, int)(each) for each in value] if type(value) is tuple else value
            for name, value in values.items() if value
        }  # fmt: skip

    def close(self) -> None:
        """Closes the namespaces."""
        for space in self.namespaces:
            space.close()


def parse(**given: Any) -> Filters:
    """Makes Filters of the options' values, by field.

    UsageError for a wrong value and for what does not exist, KernelError for a cgroup where no
    cgroup2 is mounted, and the errors of netns.resolve().
    """
    last = {name: given.pop(name) for name in ("namespaces",) if name in given}
    made = Filters(**fields_of(Filters, given))
    family, networks = made.family, made.addresses
    if family and networks and not any(_has_family(network, family) for network in networks):
        raise UsageError(f"-{family} and --addr: no connection can match both", "drop one of them")
    if len({place.level for place in made.cgroups}) > 1:
        raise UsageError("--cgroup: all must be at the same depth", "capture their common parent")
    if made.cgroups and made.by_name:
        raise UsageError("--cgroup: not with --unit, --container or --pod", "choose by one of them")
    if made.by_name:
        check_mounted("--unit, --container and --pod")
    # Last, so that no error leaves these open.
    return replace(made, **fields_of(Filters, last))


def _has_family(network: Network, family: int) -> bool:
    mapped = _mapped_network(network)
    return mapped.overlaps(_MAPPED) if family == 4 else not mapped.subnet_of(_MAPPED)


def _mapped_network(network: Network) -> ipaddress.IPv6Network:
    if isinstance(network, ipaddress.IPv6Network):
        return network
    start = (0xFFFF << 32) | int(network.network_address)
    return ipaddress.IPv6Network((start, network.prefixlen + MAPPED_BITS))


def _prefix_key(network: Network) -> bytes:
    """A key of the LPM trie: u32 prefix length in bits, then 16 bytes of address."""
    mapped = _mapped_network(network)
    return struct.pack("=I", mapped.prefixlen) + mapped.network_address.packed
