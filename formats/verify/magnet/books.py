# SPDX-License-Identifier: Apache-2.0
"""The LEDGER entries of a MAGNeT file as formats/verify/ledger.py has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_CPUS
from tcpkmon.formats.klogger.table import NUMBERS
from tcpkmon.formats.magnet.control import (
    CPU_COUNTERS,
    LEDGER,
    POINT_COUNTERS,
    SHED,
    number,
    points_of,
    table,
)
from tcpkmon.formats.verify.ledger import (
    COUNTERS,
    PROGRAM_COUNTERS,
    PROGRAMS_PART,
    Ledger,
    NamedPrograms,
    Table,
    sorted_table,
)
from tcpkmon.formats.verify.report import I64, U64

_MOST = 1 << 63


class MagnetLedger(Ledger):
    """The ledger that an entry holds. A record has no CPU, so `counts` has CPU 0 alone.

    names: of the events, by code. DamagedError where the entry is not as it should be.
    """

    lasting = frozenset({PROGRAMS_PART})

    def __init__(
        self,
        index: int,
        stop: int,
        values: Mapping[str, Any],
        names: Mapping[int, str],
        programs: NamedPrograms,
    ) -> None:
        """programs: all of the file so far; new ones are added."""
        found, final = number(values, "checkpoint", 1 << 31), number(values, "final", 1)
        if found is None or final is None:
            raise DamagedError("a LEDGER has no number")
        points, cpus = _points(values, names), _cpus(values)
        missed = programs.table(_programs(values))
        super().__init__(index, stop, found, final == 1, points, cpus, missed)
        self.stamp_ns = number(values, "time_ns", 1 << 62)
        self._names = names
        self._programs = programs

    def where(self, key: int, has_cpu: bool = True) -> str:
        name = self._names.get(key & 0xFFFF, str(key & 0xFFFF))
        return f"CPU {key >> 16}, {name}" if has_cpu else name

    def program(self, key: int) -> tuple[int, str]:
        return 0, self._programs.names[key]

    def missing(self) -> int:
        """How many serials that were given out are not in the file."""
        serials, in_file = self.cpu_rows["serials"].sum(), self.points["in_file"].sum()
        return int(serials) - int(in_file)


def _points(values: Mapping[str, Any], names: Mapping[int, str]) -> Table:
    rows: U64 = points_of(values)
    if (rows[:, 0] >= MOST_CPUS).any() or not {*rows[:, 1].tolist()} <= {*names}:
        raise DamagedError(f"a {LEDGER} has rows of a CPU or an event that there is not")
    keys = (rows[:, 0].astype(np.int64) << 16) | rows[:, 1].astype(np.int64)
    return _table((*POINT_COUNTERS, SHED), keys, rows[:, 2:])


def _cpus(values: Mapping[str, Any]) -> Table:
    rows: U64 = table(values, "cpus", 1, CPU_COUNTERS)
    if (rows[:, 0] >= MOST_CPUS).any():
        raise DamagedError(f"a {LEDGER} has a row of a CPU that there cannot be")
    return _table(CPU_COUNTERS, rows[:, 0].astype(np.int64), rows[:, 1:])


def _programs(values: Mapping[str, Any]) -> dict[str, list[int]]:
    found = values.get("programs")
    if not isinstance(found, dict) or len(found) > NUMBERS * 16:
        raise DamagedError(f"a {LEDGER} has no good programs")
    for row in found.values():
        is_pair = isinstance(row, list) and len(row) == len(PROGRAM_COUNTERS)
        if not is_pair or not all(type(one) is int and 0 <= one < _MOST for one in row):
            raise DamagedError(f"a {LEDGER} has no good programs")
    return found


def _table(names: tuple[str, ...], keys: I64, values: U64) -> Table:
    if len(np.unique(keys)) < len(keys):
        raise DamagedError(f"a {LEDGER} has a row twice")
    return sorted_table(names, keys, values)


assert {*POINT_COUNTERS, SHED} == set(COUNTERS)
