# SPDX-License-Identifier: Apache-2.0
"""The open connections that pass the filters, by sock_diag; of some, entries of a capture.

Like the iterator this leaves out listening, closed and time-wait sockets and requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.netns import run_inside
from tcpkmon.collector.loader.following import descendants
from tcpkmon.collector.loader.following import sockets as sockets_of
from tcpkmon.collector.loader.sock_diag import (
    EVERY_STATE,
    STATES,
    Answer,
    Wire,
    ask,
    cookie_or_0,
    list_answers,
)
from tcpkmon.collector.loader.socket_table import SOCKET, WHOLE, choose_sockets, decode
from tcpkmon.collector.loader.tcp_info import ECN, FROM_MEMORY
from tcpkmon.collector.plan.columns import Layout
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.tcp_info import FROM_INFO

AT_ONCE = 32
"""Datagrams that are decoded at once: 2,500 sockets, 2 ms."""


def list_connections(
    namespaces: Iterable[int], filters: Filters, every: bool = False
) -> NDArray[Any]:
    """(n,) of WHOLE: the open connections of these network namespaces (descriptors) that pass.

    Each is listed once. every: sockets of all states. KernelError where the kernel has no tcp_diag.
    """
    pids = {inode: pid for pid in descendants(filters.pids) for inode in sockets_of(pid)}
    cgroups = cgroups_of(filters)
    list_here = partial(list_answers, EVERY_STATE if every else STATES)
    found: dict[int, NDArray[Any]] = {}
    for namespace in namespaces:
        netns = cookie_or_0(namespace)
        rows = decode(run_inside(namespace, list_here), netns, WHOLE, every)
        rows = choose_sockets(rows, filters, cgroups)
        if filters.pids:
            rows["pid"] = [pids.get(inode, 0) for inode in rows["inode"].tolist()]
            rows = rows[rows["pid"] != 0]
        last = {cookie: place for place, cookie in enumerate(rows["cookie"].tolist())}
        found[netns or namespace] = rows[list(last.values())]
    return np.concatenate([np.empty(0, WHOLE), *found.values()])


def ends_of(row: Any) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """The local and the remote address (16 bytes, IPv4 as v4-mapped) and port of a row."""
    words, ports = row["ends"][:4].tobytes(), int(row["ends"][4])
    return (words[:16], ports >> 16), (words[16:], ports & 0xFFFF)


def list_by(wires: Iterable[Wire], filters: Filters) -> Iterator[NDArray[Any]]:
    """The open connections that pass the filters: (n,) of SOCKET, piece by piece.

    A datagram, about 80 sockets, may give an empty piece, so that the caller can do something else
    meanwhile. A socket may be in two pieces if others are opened meanwhile. OSError where the
    kernel refuses.
    """
    nothing, cgroups = np.empty(0, SOCKET), cgroups_of(filters)
    for netns, wire in wires:
        waiting: list[Answer] = []
        for answer in ask(wire):
            waiting.append(answer)
            if len(waiting) < AT_ONCE:
                yield nothing
                continue
            yield choose_sockets(decode(waiting, netns), filters, cgroups)
            waiting = []
        yield choose_sockets(decode(waiting, netns), filters, cgroups)


def make_entries(layout: Layout, sockets: NDArray[Any], mono_ns: int) -> NDArray[Any]:
    """An entry of location EXISTING for each socket, (n,) of WHOLE: shape (n,), of layout.dtype.

    As in a ring, mono_ns (u64) is at byte 4, and there are no sequence numbers yet. Columns that
    sock_diag does not have are 0: sequence numbers of TCP, identity, CPU, segment.
    """
    entries = np.zeros(len(sockets), layout.dtype)
    if not len(sockets):
        return entries
    entries["tv_sec"], entries["tv_usec"] = np.array([mono_ns], np.uint64).view(np.uint32)
    for name, values in _columns(sockets, mono_ns):
        if name in (layout.dtype.names or ()):
            entries[name] = values
    return entries


def list_batch(layout: Layout, namespaces: Iterable[int], filters: Filters, cpu: int) -> Batch:
    """The open connections, as a batch that the CPU of this number has just recorded."""
    now_ns = time.monotonic_ns()
    entries = make_entries(layout, list_connections(namespaces, filters), now_ns)
    serials = np.arange(1, len(entries) + 1)
    for name, value in (("seq_no", serials), ("serial", serials), ("cpu", cpu)):
        if name in (entries.dtype.names or ()):
            entries[name] = value
    return Batch(cpu, entries, now_ns)


def _columns(sockets: NDArray[Any], mono_ns: int) -> Iterator[tuple[str, Any]]:
    """Every column that sock_diag has, in the kernel's integers."""
    memory = sockets["memory"].copy().view("=u4").reshape(len(sockets), -1)
    ports = sockets["ends"][:, 4]
    yield "location", EXISTING
    yield "time_ns", mono_ns
    yield from (("lport", ports >> np.uint64(16)), ("rport", ports & np.uint64(0xFFFF)))
    yield from (("rcv_sb_cc", sockets["rqueue"]), ("snd_sb_cc", sockets["wqueue"]))
    yield from (("sk_mark", sockets["mark"]), ("ca_name", sockets["congestion"]))
    for name in ("state", "family", "netns", "pid", "uid", "cgroup"):
        yield name, sockets[name]
    for name, words in (("laddr", slice(2)), ("raddr", slice(2, 4))):
        yield name, np.ascontiguousarray(sockets["ends"][:, words]).view("V16")[:, 0]
    yield "snd_cwnd", sockets["snd_cwnd"] * sockets["snd_mss"]
    yield "ecn_flags", sum(np.where(sockets["options"] & bit, flag, 0) for bit, flag in ECN)
    yield from (("snd_wscale", sockets["wscales"] & 15), ("rcv_wscale", sockets["wscales"] >> 4))
    for name, member in FROM_INFO.items():
        yield name, sockets[member]
    for name, word in FROM_MEMORY.items():
        yield name, memory[:, word]


TOLD = frozenset(name for name, _ in _columns(np.zeros(1, WHOLE), 0))
"""The names of all columns that make_entries() fills."""


def cgroups_of(filters: Filters) -> set[int]:
    """Ids of the cgroups that the filter names, and of all below them."""
    ids = set()
    for cgroup in filters.cgroups:
        for folder, _folders, _files in os.walk(cgroup.path):
            try:
                ids.add(os.stat(folder).st_ino)
            except FileNotFoundError:
                continue  # just removed
    return ids
