# SPDX-License-Identifier: Apache-2.0
"""Finds what the processes of --pid and --follow had started and opened before the capture.

What they start from then on the programs of bpf/include/followed.h enter in the map of processes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.loader.socket_iterator import socket_inodes
from tcpkmon.collector.plan.filters import PIDS
from tcpkmon.collector.plan.tcp_codegen import INODES as ROOM
from tcpkmon.formats.base.errors import TcpkmonError

INODES = "existing_inodes"
SHARED = 1 << 31
"""SHARED_INODE of bpf/include/tcp_identity.h."""
_FIRST = struct.pack("=I", 0)
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")


class Following:
    """The processes and sockets that a capture's maps have."""

    def __init__(self, maps: Mapping[str, int]) -> None:
        self._maps = maps

    def begin(self, pids: Collection[int]) -> None:
        """Enters all that there are: call it when the programs are attached, so that none is
        missed between. TcpkmonError where one of `pids` is gone, or has too many sockets."""
        found = set(pids)
        while new := descendants(found) - found:
            for pid in new:
                bpf.map_update(self._maps[PIDS], _U32.pack(pid), _U32.pack(1))
                if not Path(f"/proc/{pid}").exists():
                    bpf.map_delete(self._maps[PIDS], _U32.pack(pid))
            found |= new
        if INODES in self._maps:
            self._enter_sockets(pids, found)

    def unfollowed(self) -> int:
        """How many processes found no room in the map."""
        raw = bpf.map_lookup(self._maps["unfollowed"], _FIRST, _U64.size)
        assert raw is not None  # an array has all its elements
        return int(_U64.unpack(raw)[0])

    def _enter_sockets(self, pids: Collection[int], followed: Collection[int]) -> None:
        rows = {inode: pid for pid in set(followed) - set(pids) for inode in sockets(pid)}
        rows |= {inode: pid for pid in pids for inode in socket_inodes(pid)}
        if len(rows) > ROOM:
            raise TcpkmonError(f"--pid: {len(rows)} sockets are more than the {ROOM} that fit")
        parents = {parent_of(pid) for pid in pids} - set(followed)
        shared = {inode for parent in parents for inode in sockets(parent)}
        for inode, pid in rows.items():
            value = pid | (SHARED if inode in shared else 0)
            bpf.map_update(self._maps[INODES], _U64.pack(inode), _U32.pack(value))


def descendants(pids: Collection[int]) -> set[int]:
    """These processes, and all that they have started, and those in turn."""
    if not pids:
        return set()
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(parent_of(int(name)), []).append(int(name))
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def parent_of(pid: int) -> int:
    """The process that started it, or took it over; 0 where there is none."""
    with suppress(OSError, IndexError, ValueError):
        # pid (comm) state ppid: a name may hold brackets and spaces.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def sockets(pid: int) -> set[int]:
    """socket_inodes(), and none of a process that has ended or may not be looked at."""
    try:
        return socket_inodes(pid)
    except TcpkmonError:
        return set()
