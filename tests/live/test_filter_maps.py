# SPDX-License-Identifier: Apache-2.0
"""plan/filters.py against real BPF maps: the kernel takes the entries and finds them again."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.plan.filters import parse
from tests.unit.socket_rows import passes

HASH, ARRAY, LPM_TRIE = 1, 2, 11
NO_PREALLOC = 1

# Type, key bytes, value bytes, entries, flags; as in bpf/.
SHAPES = {
    "filter_settings": (ARRAY, 4, 8, 1, 0),
    "filter_ports": (ARRAY, 4, 4, 65536, 0),
    "filter_pairs": (HASH, 4, 4, 64, 0),
    "filter_addresses": (LPM_TRIE, 20, 4, 64, NO_PREALLOC),
    "filter_netns": (HASH, 8, 4, 64, 0),
    "filter_cgroups": (HASH, 8, 4, 64, 0),
    "filter_pids": (HASH, 4, 4, 64, 0),
    "filter_users": (HASH, 4, 4, 64, 0),
}


@pytest.fixture
def maps() -> Iterator[dict[str, int]]:
    made = {name: bpf.map_create(*shape) for name, shape in SHAPES.items()}
    yield made
    for fd in made.values():
        os.close(fd)


def test_the_kernel_takes_every_filter(maps: dict[str, int], lab: Lab) -> None:
    given = parse(
        ports="5001,5201-5210",
        local_ports="5001",
        pairs=["1055.5050"],
        namespaces=[lab.a.name],
        pids=[os.getpid()],
        users=["root", "1000"],
        family=4,
    )
    try:
        given.apply(maps)
    finally:
        given.close()
    ports = {
        port: struct.unpack("=I", value)[0]
        for port in range(65536)
        if (value := bpf.map_lookup(maps["filter_ports"], struct.pack("=I", port), 4))
        not in (None, bytes(4))
    }
    assert ports == {5001: 3, **dict.fromkeys(range(5201, 5211), 1)}
    cookie = struct.pack("=Q", lab.a.namespace.cookie)
    assert bpf.map_lookup(maps["filter_netns"], cookie, 4) == struct.pack("=I", 1)
    other = struct.pack("=Q", lab.b.namespace.cookie)
    assert bpf.map_lookup(maps["filter_netns"], other, 4) is None
    settings = bpf.map_lookup(maps["filter_settings"], bytes(4), 8)
    assert settings == struct.pack("=II", 1 | 2 | 8 | 32 | 128 | 512 | 1024, 0)
    for user, there in ((0, True), (1000, True), (1, False)):
        found = bpf.map_lookup(maps["filter_users"], struct.pack("=I", user), 4)
        assert (found is not None) is there


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        ("10.0.0.0/8", "10.255.1.2", "11.0.0.1"),
        ("192.0.2.1", "192.0.2.1", "192.0.2.3"),
        ("0.0.0.0/0", "203.0.113.1", "2001:db8::1"),
        ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
    ],
)
def test_prefixes_match_in_the_kernel_as_here(
    maps: dict[str, int], prefix: str, inside: str, outside: str
) -> None:
    given = parse(addresses=[prefix])
    given.apply(maps)
    for text, expected in ((inside, True), (outside, False)):
        address = ipaddress.ip_address(text)
        mapped = bytes(10) + b"\xff\xff" if address.version == 4 else b""
        packed = mapped + address.packed
        key = struct.pack("=I", 128) + packed
        found = bpf.map_lookup(maps["filter_addresses"], key, 4)
        assert (found is not None) is expected
        neither = ipaddress.ip_address("::1")
        assert passes(given, address, 1, neither, 2) is expected
