# SPDX-License-Identifier: Apache-2.0
"""The control entries of a capture: what the collector writes between snapshots, and verify reads.

A control entry is an ordinary entry whose ports are 0.0 and whose location is 224 or more (226,
EXISTING, is a snapshot and is not one). Its payload, in the byte order of the file:

     offset  12          16          20    22    24   28        60
            +-----------+-----------+-----+-----+----+----+ ... +----+
            | callvalue | location  |  0  |  0  | w0 | w1 |     | w9 |
            +-----------+-----------+-----+-----+----+----+ ... +----+
             u32         u32         u16   u16   ten u32 words; a u64 is a pair (low, high)
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

FORMAT_VERSION = 1
FIRST_CONTROL = 224
EXISTING = 226
WORDS_OFFSET = 24
WORDS_COUNT = 10
WORDS_BYTES = 4 * WORDS_COUNT
ANY_CPU = 0xFFFF
"""Loss.cpu where the lost sequence numbers cannot be told apart by CPU (causes 2 to 4)."""

# How a field of a control entry is stored; the names are read from the annotations below.
Call = int
"""in callvalue, u32; two such fields: its high and low 16 bits"""
U32 = int
U64 = int
S64 = int
_CODES = {"U32": "I", "U64": "Q", "S64": "q"}
_LIMITS = {"I": (0, 2**32 - 1), "Q": (0, 2**64 - 1), "q": (-(2**63), 2**63 - 1)}
_WORDS = struct.Struct(f"<{WORDS_COUNT}I")


class LossCause(enum.IntEnum):
    """Why sequence numbers are missing."""

    KERNEL = 0
    LATE = 1
    QUEUE_FULL = 2
    DISK_FULL = 3
    WRITE_ERROR = 4
    DAMAGED = 5


class EndReason(enum.IntEnum):
    """Why a capture ended."""

    ASKED = 0
    DURATION = 1
    COUNT = 2
    COMMAND_ENDED = 3
    ERROR = 4


ControlT = TypeVar("ControlT", bound="Control")


@dataclass(frozen=True)
class Control:
    """One control entry; a subclass names its location and fields, the words' in order from w0.

    Values beyond the width of their field are held at its limit.
    """

    location: ClassVar[int] = 0

    def callvalue(self) -> int:
        """The entry's callvalue, u32."""
        values = [int(getattr(self, name)) for name in _layout(type(self))[0]]
        if len(values) == 2:
            return (min(values[0], 0xFFFF) << 16) | min(values[1], 0xFFFF)
        return _held(values[0], "I") if values else 0

    def words(self) -> tuple[int, ...]:
        """The ten u32 words of the entry."""
        _, names, codes = _layout(type(self))
        pairs = zip(names, codes, strict=True)
        values = (_held(int(getattr(self, name)), code) for name, code in pairs)
        return _WORDS.unpack(struct.pack("<" + codes, *values).ljust(WORDS_BYTES, b"\0"))

    @classmethod
    def from_words(cls: type[ControlT], callvalue: int, words: Sequence[int]) -> ControlT:
        """The entry that has this callvalue and these ten u32 words. Takes any values."""
        call, names, codes = _layout(cls)
        stored = struct.unpack_from("<" + codes, _WORDS.pack(*words))
        values: dict[str, Any] = dict(zip(names, stored, strict=True))
        halves = (callvalue >> 16, callvalue & 0xFFFF) if len(call) == 2 else (callvalue,)
        values.update(zip(call, halves, strict=False))
        return cls(**values)


_Layout = tuple[tuple[str, ...], tuple[str, ...], str]
_layouts: dict[str, _Layout] = {}


def _layout(kind: type[Control]) -> _Layout:
    """Names in callvalue, names in the words, and the words' struct codes."""
    if kind.__name__ not in _layouts:
        fields = [(field.name, str(field.type)) for field in dataclasses.fields(kind)]
        call = tuple(name for name, code in fields if code == "Call")
        words = {name: _CODES[code] for name, code in fields if code in _CODES}
        _layouts[kind.__name__] = (call, tuple(words), "".join(words.values()))
    return _layouts[kind.__name__]


def _held(value: int, code: str) -> int:
    low, high = _LIMITS[code]
    return min(max(value, low), high)


@dataclass(frozen=True)
class Start(Control):
    """First entry of a file: the clock pair at the start and what was enabled."""

    location: ClassVar[int] = 224
    mono_ns: U64
    realtime_ns: U64
    cpus: U32
    locations: U32
    version: Call = FORMAT_VERSION


@dataclass(frozen=True)
class Clock(Control):
    """Readings of CLOCK_MONOTONIC and CLOCK_REALTIME, and their step since the last such pair."""

    location: ClassVar[int] = 225
    mono_ns: U64
    realtime_ns: U64
    uncertainty_ns: U32
    step_ns: S64


@dataclass(frozen=True)
class Loss(Control):
    """Stands right after a gap of `count` sequence numbers and says whose and why."""

    location: ClassVar[int] = 227
    cpu: Call
    first_serial: U64
    count: U64
    cause: U32


@dataclass(frozen=True)
class Checkpoint(Control):
    """Totals so far; `group` entries of the ledger follow it."""

    location: ClassVar[int] = 228
    number: Call
    entries: U64
    lost: U64
    group: U32
    final: U32


@dataclass(frozen=True)
class Mark(Control):
    """A user's mark: text of at most 40 bytes of UTF-8, its first byte in the low bits of w0."""

    location: ClassVar[int] = 229
    number: Call
    text: str

    def words(self) -> tuple[int, ...]:
        """The text as ten u32 words, cut to 40 bytes at a character's end, NUL padded."""
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
    """Last entry of a finished file; without it the tail is unknown."""

    location: ClassVar[int] = 230
    reason: Call
    entries: U64
    lost: U64
    checkpoints: U32


@dataclass(frozen=True)
class Ledger(Control):
    """Attempts of one location (`point`) on one CPU, and what came of them in the kernel."""

    location: ClassVar[int] = 231
    cpu: Call
    point: Call
    attempts: U64
    filtered: U64
    unchanged: U64
    written: U64


@dataclass(frozen=True)
class Losses(Control):
    """Records of one location on one CPU that the kernel could not hand over, by cause."""

    location: ClassVar[int] = 232
    cpu: Call
    point: Call
    ring_full: U64
    no_ring: U64
    other: U64
    table_full: U64
    no_slot: U64


@dataclass(frozen=True)
class Cpu(Control):
    """What one CPU's serials and ring came to."""

    location: ClassVar[int] = 233
    cpu: Call
    serials: U64
    read: U64
    damaged: U64
    late: U64
    online: U32
    ring_lost: U32


@dataclass(frozen=True)
class Program(Control):
    """What the kernel says of one location's BPF program; run counts are 0 without stats."""

    location: ClassVar[int] = 234
    point: Call
    missed: U64
    kprobe_missed: U64
    runs: U64
    run_ns: U64


@dataclass(frozen=True)
class Collector(Control):
    """Records of one location on one CPU that the collector dropped, by cause, or wrote."""

    location: ClassVar[int] = 235
    cpu: Call
    point: Call
    late: U64
    queue_full: U64
    disk_full: U64
    write_error: U64
    in_file: U64


@dataclass(frozen=True)
class Unknown(Control):
    """A control entry of a location that this version does not know; kept as it is."""

    number: int
    value: Call
    raw: tuple[int, ...]

    def words(self) -> tuple[int, ...]:
        """The words as read."""
        return self.raw


_ALL = (Start, Clock, Loss, Checkpoint, Mark, End, Ledger, Losses, Cpu, Program, Collector)
KINDS: dict[int, type[Control]] = {kind.location: kind for kind in _ALL}
NAMES = {kind.location: kind.__name__.upper() for kind in _ALL} | {EXISTING: "EXISTING"}


def location_of(entry: Control) -> int:
    """The location number under which an entry is written."""
    return entry.number if isinstance(entry, Unknown) else entry.location


def decode(callvalue: int, location: int, words: Sequence[int]) -> Control:
    """The control entry with these values; `words` are its ten u32. Never fails on file content."""
    kind = KINDS.get(location)
    if kind is None:
        return Unknown(location, callvalue, tuple(int(word) for word in words))
    return kind.from_words(int(callvalue), [int(word) for word in words])


def encode_many(entries: Iterable[Control], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Entries as rows of an entry dtype (see formats.psc.columns), one row each, in order.

    Only callvalue, location and the words are filled; all else is zero, and the caller sets
    seq_no, the time and any `seq` and `time_ns` columns.
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

    The bytes 24 to 64 are taken whether or not those columns exist on this kernel.
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
    """Which of these location numbers are of control entries (224 and up, but for 226)."""
    mask: npt.NDArray[np.bool_] = (location >= FIRST_CONTROL) & (location != EXISTING)
    return mask
