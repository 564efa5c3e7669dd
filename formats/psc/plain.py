# SPDX-License-Identifier: Apache-2.0
"""A PSC file as the report of 2000 has it, for readers that know nothing else.

No control entries, no header kinds beyond those of the report. Entries are numbered as if control
entries had never been: a gap in the numbers is a loss, as in the report.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from tcpkmon.formats.psc.entries import Entries
from tcpkmon.formats.psc.header import encode_header
from tcpkmon.formats.psc.values import ORDERS

_NUMBERS = ("seq_no", "seq")
_ALWAYS = ("seq_no", "time", "lport", "rport")


def write_plain(entries: Entries, names: Collection[str], out: BinaryIO) -> None:
    """Write all snapshots. names: the columns that the header describes, beside those that each
    reader needs; the entries are as long as they were. UsageError."""
    header = entries.header
    columns = tuple(one for one in header.columns if one.name in names or one.name in _ALWAYS)
    plain = replace(header, columns=columns, extras={}, has_checksum=False)
    out.write(encode_header(plain))
    numbers = [one for one in header.columns if one.name in _NUMBERS and one.is_integer]
    left_out = 0
    for piece in entries.chunks():
        rows = entries.rows(piece.start, piece.stop)
        is_control = entries.control_of(rows)
        found = np.ascontiguousarray(entries.snapshots_of(rows)).view(np.uint8)
        found = found.reshape(-1, header.entry_size).copy()
        before = (left_out + np.cumsum(is_control))[~is_control]
        for column in numbers if left_out or is_control.any() else ():
            order = ">" if column.is_network else ORDERS[header.endian]
            place = slice(column.offset, column.offset + column.length)
            was = np.ascontiguousarray(found[:, place]).view(f"{order}u{column.length}").ravel()
            now = was - before.astype(was.dtype)
            found[:, place] = now.astype(was.dtype).view(np.uint8).reshape(-1, column.length)
        left_out += int(is_control.sum())
        out.write(found.data)
