# SPDX-License-Identifier: Apache-2.0
"""A capture as a host would have made it whose clock stands elsewhere and runs faster or slower."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.psc.columns import entry_dtype
from tcpkmon.formats.psc.header import KIND_CLOCK, decode_header, encode_header

_START, _CLOCK = 224, 225
_PAIR_AT = 24
"""Of a control entry: where its monotonic time is."""
_MONOTONIC_US = ("first_tx_us", "next_tx_us")
Clock = Callable[[Any], NDArray[np.int64]]


def drifting(path: Path, out: Path, offset_ns: int, drift: float) -> Clock:
    """Write the PSC capture with another CLOCK_MONOTONIC, which has offset_ns more at the
    capture's begin and gains `drift` [ns/ns]; the time of day stays as it was read at the begin.
    Returns that clock, of the true one."""
    data = path.read_bytes()
    header, size = decode_header(data, len(data))
    told = header.clock()
    assert told is not None
    begin, real_ns, bound_ns = told

    def clock(times: Any) -> NDArray[np.int64]:
        times = np.asarray(times, np.int64)
        found: NDArray[np.int64] = times + offset_ns + np.rint((times - begin) * drift).astype(int)
        return found

    pair = struct.pack(">QQQ", int(clock(begin)), real_ns, bound_ns)
    raw = np.frombuffer(data[size:], np.uint8).reshape(-1, header.entry_size).copy()
    rows = raw.view(entry_dtype(header.columns, header.entry_size, "<")).ravel()
    times = rows["time_ns"].astype(np.int64)
    shift = clock(times) - times
    rows["time_ns"] = np.where(times > 0, times + shift, 0)
    for name in _MONOTONIC_US:
        if name in (rows.dtype.names or ()):
            was = rows[name].astype(np.int64)
            rows[name] = np.where(was > 0, (was + shift // 1000) & 0xFFFFFFFF, 0)
    is_pair = np.isin(rows["location"], (_START, _CLOCK)) & (rows["lport"] == 0)
    for at in np.flatnonzero(is_pair):
        words = raw[at, _PAIR_AT : _PAIR_AT + 8].view("<u8")
        words[0] = int(clock(int(words[0])))
    changed = replace(header, extras=header.extras | {KIND_CLOCK: [pair]})
    out.write_bytes(encode_header(changed) + raw.tobytes())
    return clock
