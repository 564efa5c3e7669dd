# SPDX-License-Identifier: Apache-2.0
"""Half of the new connections get socket options from a BPF program: for `tcpkmon try --live`.

The program is attached to a control group by a link that nothing pins. It ends when the link's
descriptor is closed, so also when this process is killed.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.syscalls import close_all, wait_for_running
from tcpkmon.collector.loader.bytecode import fill_maps
from tcpkmon.collector.loader.compiler import compile_text
from tcpkmon.formats.base.closing import Closing

SOURCE = Path(__file__).parents[2] / "bpf" / "halves.bpf.c"
_FUNCTION = "halve"
CHOSEN = np.dtype(
    [("time_ns", "=u8"), ("cookie", "=u8"), ("local", "=u4", 4), ("remote", "=u4", 4),
     ("family", "=u4"), ("lport", "=u4"), ("rport", "=u4"), ("has_options", "=u4"),
     ("error", "=i4"), ("refused", "=u4")]
)  # fmt: skip
"""struct halves_chosen. time_ns: of CLOCK_MONOTONIC. Addresses are in network order, those of IPv4
in the first word. cookie: as SO_COOKIE tells it."""
MOST_CHOSEN, _MOST_OPTIONS, _VALUE_BYTES = 65536, 8, 16


@dataclass(frozen=True)
class SocketOption:
    """For setsockopt(). value: a number, or a name of at most 15 characters."""

    level: int
    name: int
    value: int | str

    def pack(self) -> bytes:
        """struct halves_option."""
        if isinstance(self.value, int):
            size, value = 4, struct.pack("=i", self.value)
        else:
            size, value = _VALUE_BYTES, self.value.encode()[: _VALUE_BYTES - 1]
        return struct.pack("=III16s", self.level, self.name, size, value)


class Halves(Closing):
    """Sets options on half of the connections that open from now on, until close().

    cgroup: a folder of cgroup2; sockets of it and of those below it count. ports: the server's,
    so the local one of a socket that was accepted, the remote one of a socket that connected.
    KernelError where the kernel refuses it, PrivilegeError without root.
    """

    def __init__(
        self, cgroup: str, ports: Collection[int], options: Sequence[SocketOption]
    ) -> None:
        if len(options) > _MOST_OPTIONS:
            raise ValueError(f"{len(options)} options, of {_MOST_OPTIONS}")
        image = compile_text(SOURCE.read_text(encoding="utf-8"), [_FUNCTION])
        self._maps: dict[str, int] = {}
        self._link = -1
        self._rows = np.empty(0, CHOSEN)
        try:
            for spec in image.maps:
                self._maps[spec.name] = bpf.map_create(
                    spec.type, spec.key_size, spec.value_size, spec.max_entries, spec.flags,
                    spec.name,
                )  # fmt: skip
            for place, option in enumerate(options):
                self._write("halves_options", place, option.pack())
            for port in ports:
                self._write("halves_ports", port, struct.pack("=I", 1))
            code = fill_maps(image.programs[_FUNCTION], self._maps)
            program = bpf.prog_load(bpf.BPF_PROG_TYPE_SOCK_OPS, code, _FUNCTION,
                                    expected_attach_type=bpf.BPF_CGROUP_SOCK_OPS)  # fmt: skip
            folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._link = bpf.link_create(program, bpf.BPF_CGROUP_SOCK_OPS, folder)
            finally:
                close_all([program, folder])
        except BaseException:
            self.close()
            raise

    def rows(self) -> NDArray[Any]:
        """(n,) of CHOSEN: the connections that were decided on so far, in order. Not after close().
        """
        raw = bpf.map_lookup(self._maps["halves_count"], bytes(4), 8)
        assert raw is not None  # an array has all its elements
        count = min(int(struct.unpack("=Q", raw)[0]), MOST_CHOSEN)
        found = [self._row(place) for place in range(len(self._rows), count)]
        # One that is being written now is read the next time, and all after it.
        whole = next((n for n, row in enumerate(found) if not row["time_ns"][0]), len(found))
        self._rows = np.concatenate([self._rows, *found[:whole]])
        return self._rows

    def detach(self) -> None:
        """From now on no connection is changed; rows() still tells."""
        if self._link >= 0:
            os.close(self._link)
            self._link = -1
            wait_for_running()

    def close(self) -> None:
        """Detach, and forget. A second call does nothing."""
        self.detach()
        close_all(self._maps.values())
        self._maps.clear()

    def _row(self, place: int) -> NDArray[Any]:
        key = struct.pack("=I", place)
        raw = bpf.map_lookup(self._maps["halves_chosen"], key, CHOSEN.itemsize)
        assert raw is not None
        return np.frombuffer(raw, CHOSEN)

    def _write(self, name: str, place: int, value: bytes) -> None:
        bpf.map_update(self._maps[name], struct.pack("=I", place), value)


def refusal(rows: NDArray[Any]) -> tuple[int, str] | None:
    """The place of the first option that the kernel refused, and why; None: it took all."""
    bad = rows[rows["error"] != 0]
    if not len(bad):
        return None
    number = -int(bad[0]["error"])
    name = errno.errorcode.get(number, str(number))
    return int(bad[0]["refused"]), f"{os.strerror(number)} ({name})"


def address_of(words: NDArray[Any], family: int) -> str:
    """A row's address as text."""
    raw = words.astype("=u4").tobytes()
    return socket.inet_ntop(family, raw if family == socket.AF_INET6 else raw[:4])
