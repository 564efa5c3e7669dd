# SPDX-License-Identifier: Apache-2.0
"""The control entries of a capture: the collector writes them between snapshots, verify reads them.

A control entry is an ordinary entry with ports 0.0 and a location of 224 or more (except 226,
EXISTING, which is a snapshot). Its payload, in the byte order of the file:

     offset  12          16          20    22    24   28        60
            +-----------+-----------+-----+-----+----+----+ ... +----+
            | callvalue | location  |  0  |  0  | w0 | w1 |     | w9 |
            +-----------+-----------+-----+-----+----+----+ ... +----+
             u32         u32         u16   u16   ten u32 words; a u64 is a pair (low, high)
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base import reasons
from tcpkmon.formats.base.tcp import Location

LossCause = reasons.LossCause
EndReason = reasons.EndReason
FORMAT_VERSION = 2
"""2: the header has a checksum."""
FIRST_CONTROL = Location.START
EXISTING = Location.EXISTING
WORDS_OFFSET = 24
WORDS_COUNT = 10
WORDS_BYTES = 4 * WORDS_COUNT
ANY_CPU = 0xFFFF
"""Loss.cpu if the CPUs of the lost sequence numbers are unknown (causes 2 to 4)."""

# How a field of a control entry is stored. _layout() reads these names from the annotations below.
Call = int
"""In callvalue, u32. Two such fields are its high and its low 16 bits."""
U32 = int
U64 = int
S64 = int
_CODES = {"U32": "I", "U64": "Q", "S64": "q"}
_LIMITS = {"I": (0, 2**32 - 1), "Q": (0, 2**64 - 1), "q": (-(2**63), 2**63 - 1)}
_WORDS = struct.Struct(f"<{WORDS_COUNT}I")
ControlT = TypeVar("ControlT", bound="Control")


@dataclass(frozen=True)
class Control:
    """One control entry. A subclass has its location, and its fields in the order of the words.

    A value that does not fit into its field is stored as the field's limit. event: of a log that
    tells the same, with the same fields (bpf/schemata/base.conf).
    """

    location: ClassVar[int] = 0
    event: ClassVar[str] = ""

    def callvalue(self) -> int:
        """The entry's callvalue, u32."""
        values = [int(getattr(self, name)) for name in _layout(type(self))[0]]
        if len(values) == 2:
            return (min(values[0], 0xFFFF) << 16) | min(values[1], 0xFFFF)
        return _clamp(values[0], "I") if values else 0

    def words(self) -> tuple[int, ...]:
        """The ten u32 words of the entry."""
        _, names, codes = _layout(type(self))
        pairs = zip(names, codes, strict=True)
        values = (_clamp(int(getattr(self, name)), code) for name, code in pairs)
        return _WORDS.unpack(struct.pack("<" + codes, *values).ljust(WORDS_BYTES, b"\0"))

    @classmethod
    def from_words(cls: type[ControlT], callvalue: int, words: Sequence[int]) -> ControlT:
        """The entry with this callvalue and these ten u32 words; any values are valid."""
        call, names, codes = _layout(cls)
        stored = struct.unpack_from("<" + codes, _WORDS.pack(*words))
        values: dict[str, Any] = dict(zip(names, stored, strict=True))
        halves = (callvalue >> 16, callvalue & 0xFFFF) if len(call) == 2 else (callvalue,)
        values.update(zip(call, halves, strict=False))
        return cls(**values)


_Layout = tuple[tuple[str, ...], tuple[str, ...], str]
_layouts: dict[str, _Layout] = {}


def _layout(kind: type[Control]) -> _Layout:
    """The names of the fields in callvalue and in the words, and the words' struct codes."""
    if kind.__name__ not in _layouts:
        fields = [(field.name, str(field.type)) for field in dataclasses.fields(kind)]
        call = tuple(name for name, code in fields if code == "Call")
        words = {name: _CODES[code] for name, code in fields if code in _CODES}
        _layouts[kind.__name__] = (call, tuple(words), "".join(words.values()))
    return _layouts[kind.__name__]


def _clamp(value: int, code: str) -> int:
    return min(max(value, _LIMITS[code][0]), _LIMITS[code][1])


@dataclass(frozen=True)
class Start(Control):
    """The first entry: the clock pair at the start, and how many CPUs and locations there are."""

    location: ClassVar[int] = Location.START
    mono_ns: U64
    realtime_ns: U64
    cpus: U32
    locations: U32
    version: Call = FORMAT_VERSION


@dataclass(frozen=True)
class Clock(Control):
    """Readings of CLOCK_MONOTONIC and CLOCK_REALTIME, and their step since the last such pair."""

    location: ClassVar[int] = Location.CLOCK
    mono_ns: U64
    realtime_ns: U64
    uncertainty_ns: U32
    step_ns: S64


@dataclass(frozen=True)
class Loss(Control):
    """Follows a gap of `count` sequence numbers, with the CPU and the cause of the loss."""

    location: ClassVar[int] = Location.LOSS
    cpu: Call
    first_serial: U64
    count: U64
    cause: U32


@dataclass(frozen=True)
class Checkpoint(Control):
    """Totals so far. The next `group` entries are its ledger."""

    location: ClassVar[int] = Location.CHECKPOINT
    number: Call
    entries: U64
    lost: U64
    group: U32
    final: U32


@dataclass(frozen=True)
class Mark(Control):
    """A user's mark: at most 40 bytes of UTF-8; the first byte is in the low bits of w0."""

    location: ClassVar[int] = Location.MARK
    number: Call
    text: str

    def words(self) -> tuple[int, ...]:
        """The text as ten u32 words, cut to 40 bytes of whole characters, NUL padded."""
        data = self.text.encode("utf-8", "replace")[:WORDS_BYTES]
        whole = data.decode("utf-8", "ignore").encode()
        return _WORDS.unpack(whole.ljust(WORDS_BYTES, b"\0"))

    @classmethod
    def from_words(cls, callvalue: int, words: Sequence[int]) -> Mark:
        """The mark in these words; bytes that are not UTF-8 are replaced."""
        data = _WORDS.pack(*words).rstrip(b"\0")
        return cls(callvalue, data.decode("utf-8", "replace"))


@dataclass(frozen=True)
class End(Control):
    """The last entry of a complete file. Without it, the losses at the end are unknown."""

    location: ClassVar[int] = Location.END
    reason: Call
    entries: U64
    lost: U64
    checkpoints: U32


@dataclass(frozen=True)
class Ledger(Control):
    """Attempts of one location (`point`) on one CPU, and their results in the kernel."""

    location: ClassVar[int] = Location.LEDGER
    cpu: Call
    point: Call
    attempts: U64
    filtered: U64
    unchanged: U64
    written: U64
    shed: U64 = 0


@dataclass(frozen=True)
class Losses(Control):
    """Records of one location on one CPU that the kernel could not store, by cause."""

    location: ClassVar[int] = Location.LOSSES
    cpu: Call
    point: Call
    ring_full: U64
    no_ring: U64
    other: U64
    table_full: U64
    no_slot: U64


@dataclass(frozen=True)
class Cpu(Control):
    """Totals of one CPU: serials, records read, damaged and late, and losses of its ring."""

    location: ClassVar[int] = Location.CPU
    cpu: Call
    serials: U64
    read: U64
    damaged: U64
    late: U64
    online: U32
    ring_lost: U32


@dataclass(frozen=True)
class Program(Control):
    """The kernel's counters of one location's BPF program; runs are 0 if BPF stats are off."""

    location: ClassVar[int] = Location.PROGRAM
    point: Call
    missed: U64
    kprobe_missed: U64
    runs: U64
    run_ns: U64


@dataclass(frozen=True)
class Collector(Control):
    """Records of one location on one CPU that the collector dropped, by cause, or wrote."""

    location: ClassVar[int] = Location.COLLECTOR
    cpu: Call
    point: Call
    late: U64
    queue_full: U64
    disk_full: U64
    write_error: U64
    in_file: U64


@dataclass(frozen=True)
class Change(Control):
    """What is recorded changed between two moments (CLOCK_MONOTONIC). by_others: 1 or 0; why: see
    formats/base/shedding.py."""

    location: ClassVar[int] = Location.CHANGE
    event: ClassVar[str] = "CHANGE"
    kind: Call
    which: Call
    before_ns: U64
    after_ns: U64
    old: U64
    new: U64
    by_others: U32 = 0
    why: U32 = 0


@dataclass(frozen=True)
class Trigger(Control):
    """A trigger fired, or a user asked for a dump. number: which of the header's triggers, from 1;
    0: a user asked, process `pid` or a signal. mono_ns: when its condition was met; told_ns: when
    the collector saw that; conn_id: of which connection, 0: none; count: how many at once.
    """

    location: ClassVar[int] = Location.TRIGGER
    event: ClassVar[str] = "TRIGGER"
    number: Call
    mono_ns: U64
    conn_id: U64
    told_ns: U64
    count: U32
    pid: U32


@dataclass(frozen=True)
class Unknown(Control):
    """A control entry with a location that this version does not know; its data is unchanged."""

    number: int
    value: Call
    raw: tuple[int, ...]

    def words(self) -> tuple[int, ...]:
        """The words from the file."""
        return self.raw


def location_of(entry: Control) -> int:
    """The location number of an entry."""
    return entry.number if isinstance(entry, Unknown) else entry.location


def encode_many(entries: Iterable[Control], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """One row of an entry dtype (see formats.psc.columns) for each entry, in order.

    It sets callvalue, location and the words. The caller sets seq_no, the time, and the columns
    `seq` and `time_ns` if there are any. All else is zero.
    """
    listed = list(entries)
    rows = np.zeros(len(listed), dtype)
    if listed:
        rows["callvalue"] = [entry.callvalue() for entry in listed]
        rows["location"] = [location_of(entry) for entry in listed]
        words_view(rows, rows.dtype["callvalue"].str[0])[:] = [entry.words() for entry in listed]
    return rows


def words_view(rows: npt.NDArray[Any], order: str = "=") -> npt.NDArray[Any]:
    """The words w0..w9 of contiguous rows as a u32 view of shape (len(rows), 10).

    It covers the bytes 24 to 64, even if this kernel lacks the columns there.
    """
    dtype = np.dtype(
        {
            "names": ["words"],
            "formats": [(f"{order}u4", (WORDS_COUNT,))],
            "offsets": [WORDS_OFFSET],
            "itemsize": rows.dtype.itemsize,
        }
    )
    view: npt.NDArray[Any] = rows.view(dtype)["words"]
    return view


def is_control(location: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """The mask of the locations of control entries: 224 or more, except 226."""
    mask: npt.NDArray[np.bool_] = (location >= FIRST_CONTROL) & (location != EXISTING)
    return mask
