# SPDX-License-Identifier: Apache-2.0
"""Points: the numbers under which programs record, count and switch locations and events.

     1 .. 25               26 .. 31        32 .. 223                        226
    +---------------------+---------------+--------------------------------+----------+
    | locations of schema | those of what | events of klogger() of other   | EXISTING |
    | tcp                 | extends it    | schemas                        |          |
    +---------------------+---------------+--------------------------------+----------+

The kernel's ledger has a row of counters for each; row 0 is that of EXISTING. A record of an event
has EVENT_HEAD_BYTES before its payload (collector/plan/event_layout.py draws it).
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.base.causes import KERNEL_CAUSES
from tcpkmon.formats.base.control import EXISTING

ROWS = 32
"""Rows of the ledger for locations. Events follow, by number."""
FIRST_OWN = 26
"""Of the locations that a user's schema adds to tcp: no tcpkmon will use these itself."""
FIRST_EVENT = 32
EVENT_HEAD_BYTES = 24

COUNTERS = ("attempts", "filtered", "unchanged", "written", *KERNEL_CAUSES, "limited")
"""struct klogger_account of bpf/include/klogger.h, in its order; all u64."""
ACCOUNT = np.dtype([(name, "=u8") for name in COUNTERS])


def row_of(location: int) -> int:
    """The row of the kernel's ledger that counts this location."""
    return 0 if location == EXISTING else location


def location_of(row: int) -> int:
    """The location that this row of the kernel's ledger counts."""
    return EXISTING if row == 0 else row
