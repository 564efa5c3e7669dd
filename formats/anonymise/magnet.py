# SPDX-License-Identifier: Apache-2.0
"""A MAGNeT file without what could name somebody: the same records, with checksums of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.anonymise.settings import LeftOut, header_of, only
from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.klogger.table import NUMBERS
from tcpkmon.formats.magnet.control import Block, encode, encode_header
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import FIELDS
from tcpkmon.formats.magnet.walk import Piece, Walk

_HEADER = (
    "format", "byteorder", "bits", "data", "tick_ns", "clock", "events", "host", "kernel",
    "tcpkmon", "cpus", "settings", "schema",
)  # fmt: skip
_EVENT = ("code", "name", "data")
_COMMON = ("sockid", "timestamp", "event", "size")
_ENTRY = {
    "CHECK": (),
    "LEDGER": ("checkpoint", "final", "points", "cpus", "programs"),
    "CHANGE": ("change",),
    "TRIGGER": ("trigger",),
    "UNSEEN": ("unseen",),
    "END": ("reason",),
}
"""Control entries, and what each has besides what all have."""
_TOLD = (
    "kind", "which", "before_ns", "after_ns", "old", "new", "by_others", "why", "number",
    "mono_ns", "conn_id", "told_ns", "count", "pid", "cpu_ns",
)  # fmt: skip
"""The numbers of a CHANGE, of a TRIGGER and of what was not seen."""
_ALL = ("kind", "time_ns", "number", "records", "block", "sums")


def anonymise_magnet(path: Path, to: IO[bytes], who: Who, left_out: LeftOut) -> None:
    """Write the new file. The old one is sound, or ends within an entry, which is left out."""
    with MagnetFile(path) as file:
        header = header_of(file.header, _HEADER, _EVENT, who, left_out)
        to.write(encode_header(header, file.layout))
        if file.cut_bytes:
            left_out.repaired.append(f"{path.name}: the last record, which is cut short")
        block, kinds = Block(file.layout.size), file.data_kinds()
        for found in Walk(file):
            if isinstance(found, Piece):
                data = _replaced(found.rows, kinds, who).tobytes()
                block.add(data)
                to.write(data)
                continue
            values = _entry(found.values, left_out)
            to.write(encode({**values, **block.values()}, file.layout))
            block = Block(file.layout.size)


def _entry(values: Mapping[str, Any], left_out: LeftOut) -> dict[str, Any]:
    """What a control entry of a known kind has; of another one, what all have."""
    kind = values["kind"]
    made = only(values, (*_ALL, *_ENTRY.get(kind, ())))
    for name in ("change", "trigger", "unseen"):
        if isinstance(told := made.get(name), dict):
            made[name] = {key: told[key] for key in _TOLD if type(told.get(key)) is int}
    if kind not in _ENTRY:
        left_out.key("a control entry")
        made["kind"] = "CHECK"
    return made


def _replaced(rows: NDArray[Any], kinds: NDArray[Any], who: Who) -> NDArray[Any]:
    """Records with what their events have, and zeros elsewhere."""
    made = np.zeros(len(rows), rows.dtype)
    for name in _COMMON:
        made[name] = rows[name]
    if "source" not in (rows.dtype.names or ()):
        return made
    of_rows = kinds[np.minimum(rows["event"], NUMBERS - 1)]
    for kind, names in FIELDS.items():
        at = np.flatnonzero(of_rows == kind) if names else np.zeros(0, np.int64)
        for name in names:
            made[name][at] = rows[name][at]
    at = np.flatnonzero(of_rows == "tcp")
    if "ports" in who.replaced and len(at):
        for name in ("source", "dest"):
            distinct, which = np.unique(rows[name][at], return_inverse=True)
            new = np.array([who.port(int(one)) for one in distinct], rows.dtype[name])
            made[name][at] = new[which.reshape(-1)]
    return made
