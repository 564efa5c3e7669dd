# SPDX-License-Identifier: Apache-2.0
"""A PSC file without what could name somebody: as many entries, in the same places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.anonymise.kinds import ADDRESS_TEXT, KEEP, kind_of
from tcpkmon.formats.anonymise.rows import Place, Rows
from tcpkmon.formats.anonymise.settings import LeftOut, host_of, schema_text, settings_of
from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.drops import DropPlace
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.reconciled import Reconciled, What
from tcpkmon.formats.base.whose import GroupPart
from tcpkmon.formats.psc.columns import CLASSIC, TIME, Column
from tcpkmon.formats.psc.header import (
    KIND_CLOCK,
    KIND_HOST,
    KIND_KERNEL,
    KIND_SCHEMA,
    KIND_SETTINGS,
    Header,
    encode_header,
    text_data,
)
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.verify import is_ours

_ROWS = 1 << 15
_LAST_KNOWN = DropPlace.location
"""What is in a later control entry was not looked at."""
_CONTROL = ("seq", "seq_no", "time_ns", TIME)
"""Columns that control entries have, besides their words."""


def anonymise_file(path: Path, to: IO[bytes], who: Who, left_out: LeftOut) -> None:
    """Write the new file. The old one is sound; an entry that is cut short is left out."""
    with open_capture(path) as capture:
        if capture.is_cut:
            left_out.repaired.append(f"{path.name}: the last entry, which is cut short")
        writer = _Writer(capture, who)
        to.write(encode_header(_header(capture, who, left_out)))
        for piece in capture.chunks(_ROWS):
            to.write(writer.rows(piece.start, piece.stop))


def check_version(path: Path) -> None:
    """DamagedError for a file of a newer tcpkmon: nobody knows what is in it."""
    with open_capture(path) as capture:
        for _, entry in capture.controls(0, 1) if capture.controls_fit else ():
            if isinstance(entry, control.Start) and entry.version > control.FORMAT_VERSION:
                raise DamagedError(
                    f"{path} is of version {entry.version}, and this tcpkmon knows "
                    f"{control.FORMAT_VERSION}", "a newer tcpkmon knows what is in it",
                )  # fmt: skip


def _header(capture: Capture, who: Who, left_out: LeftOut) -> Header:
    old = capture.header
    extras: dict[int, list[bytes]] = {}
    for kind in old.extras:
        text = old.text(kind) or ""
        if kind == KIND_HOST:
            extras[kind] = text_data(host_of(who, text))
        elif kind == KIND_KERNEL:
            extras[kind] = text_data(who.text("kernel", text))
        elif kind == KIND_SCHEMA:
            extras[kind] = text_data(schema_text(who, text))
        elif kind == KIND_CLOCK and old.clock() is not None:
            extras[kind] = [b"".join(old.extras[kind])]
        elif kind != KIND_SETTINGS:
            left_out.key(f"{kind:#x}")
    settings = settings_of(capture.settings, who, left_out)
    extras[KIND_SETTINGS] = text_data(json.dumps(settings, ensure_ascii=False))
    return Header(old.mods, old.version, old.entry_size, old.columns, old.endian, old.mclsize,
                  extras, old.has_checksum)  # fmt: skip


class _Writer:
    def __init__(self, capture: Capture, who: Who) -> None:
        self._capture = capture
        self._is_ours = is_ours(capture)
        self._who = who
        self._size = capture.entry_dtype.itemsize
        self._order = ">" if capture.header.endian == Endian.BIG else "<"
        columns = [one for one in capture.header.columns if one.length]
        self._snapshots = Rows(self._size, [self._place(one) for one in columns], who)
        self._heads = np.zeros(self._size, np.uint8)
        for one in columns:
            if one.name in _CONTROL:
                self._heads[one.offset : one.offset + one.length] = 0xFF
        start, length = CLASSIC["callvalue"]
        self._heads[start : start + length + CLASSIC["location"][1]] = 0xFF

    def _place(self, column: Column) -> Place:
        order = ">" if column.is_network else self._order
        if column.is_time or column.is_integer:
            kind = KEEP if column.is_time else kind_of("SNAPSHOT", column.name, "int",
                                                       column.length)  # fmt: skip
            return Place(column.offset, column.length, kind, order)
        kind = kind_of("SNAPSHOT", column.name, "string", column.length)
        if kind == ADDRESS_TEXT and column.length in (4, 16):
            return Place(column.offset, column.length, "addresses", "")
        return Place(column.offset, column.length, kind, "")

    def rows(self, start: int, stop: int) -> bytes:
        """The entries from one to another, as they are in the new file."""
        found = self._capture.rows(start, stop)
        octets = found.view(np.uint8).reshape(len(found), self._size)
        is_control = np.zeros(len(found), np.bool_)
        if self._is_ours:
            is_control = self._capture.control_of(found)
        made: NDArray[np.uint8] = np.zeros_like(octets)
        made[~is_control] = self._snapshots(octets[~is_control])
        if not is_control.any():
            return made.tobytes()
        made[is_control] = octets[is_control] & self._heads
        typed = made.view(found.dtype)[:, 0]
        at = np.flatnonzero(is_control)
        words = control.words_view(typed, self._order)
        entries = zip(
            at.tolist(), found["callvalue"][at].tolist(), found["location"][at].tolist(),
            control.words_view(found, self._order)[at].tolist(), strict=True,
        )  # fmt: skip
        for row, callvalue, location, values in entries:
            entry = self._entry(facts.decode(callvalue, location, values))
            if entry is None:  # it names somebody, or nobody knows what it is
                words[row] = 0
                continue
            typed["callvalue"][row], words[row] = entry.callvalue(), entry.words()
        return made.tobytes()

    def _entry(self, entry: control.Control) -> control.Control | None:
        if not control.FIRST_CONTROL <= control.location_of(entry) <= _LAST_KNOWN:
            return None
        if isinstance(entry, GroupPart):
            return None
        if isinstance(entry, control.Mark):
            data = self._who.octets("notes", entry.text.encode(), control.WORDS_BYTES)
            return control.Mark(entry.number, data.decode("utf-8", "replace"))
        if isinstance(entry, Reconciled) and entry.what != What.SUMMARY:
            return Reconciled(entry.when, entry.what, entry.connection, entry.record, entry.kernel,
                              self._who.ports(entry.ports))  # fmt: skip
        return entry
