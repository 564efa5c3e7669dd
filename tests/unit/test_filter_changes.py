# SPDX-License-Identifier: Apache-2.0
"""Filters that change while a capture runs: what both pass is passed at every step."""

from __future__ import annotations

import ipaddress
import struct
from itertools import product

import pytest

from tcpkmon.collector.control.server import parse
from tcpkmon.collector.plan.filter_changes import check_change, steps
from tcpkmon.collector.plan.filters import FILTER_MAP, Cgroup, Filters, Flag
from tcpkmon.formats.base.errors import UsageError

PORTS = (80, 443, 5001)
HERE, FAR = ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("192.0.2.0/24")
SOME = [
    Filters(),
    Filters(ports=(80,)),
    Filters(ports=(80, 443)),
    Filters(local_ports=(80,), remote_ports=(443,)),
    Filters(ports=(5001,), local_ports=(80, 443)),
    Filters(ports=(80,), addresses=(HERE,)),
    Filters(addresses=(FAR, HERE), pairs=((80, 5001),)),
    Filters(pairs=((443, 80),), family=4),
    Filters(ports=(80,), cgroups=(Cgroup("/a", 7, 1),)),
    Filters(ports=(80,), users=(0, 1000)),
    Filters(users=(1000,)),
]
Maps = dict[str, dict[bytes, bytes]]
LISTED = ("filter_addresses", "filter_cgroups", "filter_pids", "filter_netns",
          "filter_users")


def passes(maps: Maps, local: int, remote: int, listed: set[bytes]) -> bool:
    """As bpf/include/sock_filter.h does: the ports, and whether one of `listed` is in each list."""
    (raw,) = maps[FILTER_MAP].values()
    flags = Flag(struct.unpack("=II", raw)[0])
    if flags & (Flag.PORTS | Flag.LOCAL | Flag.REMOTE | Flag.PAIRS):
        bits = [
            struct.unpack("=I", maps["filter_ports"].get(struct.pack("=I", port), b"\0" * 4))[0]
            for port in (local, remote)
        ]
        pair = struct.pack("=I", local << 16 | remote)
        if not (
            bits[0] & flags & (Flag.PORTS | Flag.LOCAL)
            or bits[1] & flags & (Flag.PORTS | Flag.REMOTE)
            or (flags & Flag.PAIRS and pair in maps["filter_pairs"])
        ):
            return False
    named = {Flag.ADDRESS: "filter_addresses", Flag.CGROUP: "filter_cgroups",
             Flag.USER: "filter_users"}
    return all(listed & maps[name].keys() for flag, name in named.items() if flags & flag)


@pytest.mark.parametrize(("old", "new"), list(product(SOME, SOME)))
def test_what_both_pass_is_passed_all_the_while(old: Filters, new: Filters) -> None:
    maps = {name: dict(rows) for name, rows in old.entries().items()}
    wanted = {name: dict(rows) for name, rows in new.entries().items()}
    cases = [
        (local, remote, {key})
        for local, remote in product(PORTS, PORTS)
        for name in LISTED
        for key in {**maps[name], **wanted[name], b"no": b""}
    ]
    cases += [(*ports, {*maps["filter_addresses"], *maps["filter_cgroups"], *maps["filter_users"]})
              for ports in product(PORTS, PORTS)]  # fmt: skip
    both = [case for case in cases if passes(maps, *case) and passes(wanted, *case)]
    for name, key, value in steps(old, new):
        if value is None:
            del maps[name][key]
        else:
            maps[name][key] = value
        assert all(passes(maps, *case) for case in both), (name, key, value)
    for name, rows in maps.items():
        left = {key: value for key, value in rows.items() if name != "filter_ports" or any(value)}
        assert left == wanted[name], name


def test_what_programs_were_compiled_for_cannot_change() -> None:
    with pytest.raises(UsageError, match="--pid cannot change"):
        check_change(Filters(), Filters(pids=(1,)))
    with pytest.raises(UsageError, match="--syscalls cannot change"):
        check_change(Filters(syscalls=(1,)), Filters())
    check_change(SOME[1], SOME[2])


@pytest.mark.parametrize(
    "values",
    ['{"port": "1"}', '{"ports": 1}', '{"addresses": "10.0.0.0/8"}', '{"family": [4]}',
     '{"family": true}', '{"pids": ["1"]}', "[]", "3"],
)  # fmt: skip
def test_a_request_with_strange_filters_is_refused(values: str) -> None:
    with pytest.raises(UsageError, match="not a valid value of 'filters'"):
        parse(b'{"op": "set-filters", "filters": %s}' % values.encode())


def test_a_request_with_filters_or_limits() -> None:
    parse(b'{"op": "set-filters", "filters": {"ports": "80", "family": 4, "pids": [1]}}')
    parse(b'{"op": "set-limits", "limits": {"SCHEDIN": 5}}')
    for limits in (b'{"SCHEDIN": 0}', b'{"SCHEDIN": true}', b'["SCHEDIN"]'):
        with pytest.raises(UsageError, match="not a valid value of 'limits'"):
            parse(b'{"op": "set-limits", "limits": %s}' % limits)
