# SPDX-License-Identifier: Apache-2.0
"""All that a BPF map holds, for tests that look into the tables of a capture."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator

from tcpkmon.collector.linux.bpf import map_lookup
from tcpkmon.collector.linux.syscalls import address
from tcpkmon.collector.linux.syscalls import bpf as call_bpf

GET_NEXT_KEY = 4


def keys_of(fd: int, key_size: int) -> Iterator[bytes]:
    """All keys of a map, one system call each."""
    following = ctypes.create_string_buffer(key_size)
    given = 0
    while True:
        try:
            call_bpf(GET_NEXT_KEY, struct.pack("=IIQQQ", fd, 0, given, address(following), 0))
        except OSError as error:
            assert error.errno == errno.ENOENT
            return
        yield following.raw
        before = ctypes.create_string_buffer(following.raw, key_size)
        given = address(before)


def entries_of(fd: int, key_size: int, value_size: int) -> dict[bytes, bytes]:
    """All entries of a map that is not per CPU."""
    found = ((key, map_lookup(fd, key, value_size)) for key in keys_of(fd, key_size))
    return {key: value for key, value in found if value is not None}
