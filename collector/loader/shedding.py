# SPDX-License-Identifier: Apache-2.0
"""Puts steps of a budget into force: the map klogger_shedding of bpf/include/klogger.h."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.plan.budget import Step, sample_bits
from tcpkmon.collector.plan.engine_config import POINTS
from tcpkmon.collector.ring.points import row_of

MAP = "klogger_shedding"
_NAMES = [("sample", "=u8"), ("unchanged", "=u4"), ("level", "=u4"), ("points", "=u1", POINTS)]
_SHEDDING = np.dtype(_NAMES, align=True)
"""struct klogger_shedding."""
_FIRST = struct.pack("=I", 0)


def shed(maps: Mapping[str, int], numbers: Mapping[str, int], steps: Sequence[Step]) -> None:
    """Leave out what these steps name, and nothing else; numbers: the points of locations."""
    value = np.zeros(1, _SHEDDING)
    value["level"] = len(steps)
    for step in steps:
        value["unchanged"] |= step.unchanged
        value["sample"] |= np.uint64(sample_bits(step.sample))
        for name in step.locations:
            value["points"][0][row_of(numbers[name])] = 1
    bpf.map_update(maps[MAP], _FIRST, value.tobytes())


def read_level(maps: Mapping[str, int]) -> int:
    """How many steps are in force: those that a process before this one took."""
    raw = bpf.map_lookup(maps[MAP], _FIRST, _SHEDDING.itemsize) if MAP in maps else None
    return 0 if raw is None else int(np.frombuffer(raw, _SHEDDING)["level"][0])
