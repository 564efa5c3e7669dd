# SPDX-License-Identifier: Apache-2.0
"""The snapshots of the schema tcp, of a PSC file or of Klogger logs, as arrays in time order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.analysis.blocks import HEAD, Block, Losses, blocks, record_type
from tcpkmon.formats.base.control import is_control
from tcpkmon.formats.base.drops import DropPlace, DropPlaces
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reader import Reader
from tcpkmon.formats.base.sequence import unwrap
from tcpkmon.formats.base.tcp import DROPS, Location, State
from tcpkmon.formats.base.whose import GroupPart, Groups
from tcpkmon.formats.klogger import merge_logs
from tcpkmon.formats.klogger.batch import LogBatch, facts_of
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.psc.header import KIND_HOST
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.registry import open_files
from tcpkmon.formats.verify import find_unseen

Note = Callable[[Array, Array, Array], None]
"""Takes (n,) begins, ends [ns] and numbers of what is missing."""
SNAPSHOT = "SNAPSHOT"
_PIECE_ROWS = 1 << 16
_CACHED_BYTES = 1 << 20
"""So much stays in the second-level cache while all its columns are decoded."""
_KEYS = ("conn_id", "location", "state", "lport", "rport")
"""Of which connection a record is, and whether it is of one."""
NEEDED = (
    "conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state", "ca_state",
    "snd_una", "snd_max", "snd_sb_cc", "snd_wnd", "snd_cwnd_segs", "snd_ssthresh", "mss",
    "packets_out", "sacked_out", "lost_out", "retrans_out", "sk_wmem_bytes", "sb_hiwat",
    "sk_wmem_alloc", "pacing_rate", "srtt_us", "min_rtt_us", "rcv_nxt", "rcv_sb_cc", "rcv_wnd",
    "sk_rcvbuf", "seg_len")  # fmt: skip
"""What a capture must have. The default columns are enough."""
OPTIONAL = (
    "pid", "comm", "ca_name", "netns", "cgroup", "uid", "protocols", "mptcp_token", "mptcp_sent",
    "mptcp_received", "mptcp_retrans", "family", "bytes_retrans", "dsack_dups", "reordering",
    "delivered", "delivered_ce", "rcv_ooopack", "segs_in", "segs_out", "data_segs_in",
    "data_segs_out", "busy_us", "rwnd_limited_us", "sndbuf_limited_us", "bbr_mode",
    "is_cwnd_limited", "rate_app_limited", "sk_nospace", "sk_tsq_flags", "sk_pacing_status",
    "snd_wscale", "rcv_wscale", "first_tx_us", "next_tx_us",
)  # fmt: skip
"""What the table connections tells more of where a capture has it."""
OF_RECEIVERS = ("rcv_rtt_us", "seg_seq")
"""What tells a receiver's side: the first one, which tells of its window, is no default column."""


@dataclass(frozen=True)
class Snapshots:
    """n snapshots. columns: by name, (n,). times_ns: (n,) int64, CLOCK_MONOTONIC. lost: (n,) int64,
    how many records of the capture are missing before each one, since its start. seq: (n,) their
    sequence numbers, None in a capture of several files."""

    columns: dict[str, Array]
    times_ns: NDArray[np.int64]
    lost: NDArray[np.int64]
    seq: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.times_ns)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, places: Array) -> Snapshots:
        """Those in these rows."""
        columns = {name: values[places] for name, values in self.columns.items()}
        seq = None if self.seq is None else self.seq[places]
        return Snapshots(columns, self.times_ns[places], self.lost[places], seq)


class Source:
    """A capture that is read snapshot by snapshot; use `with`.

    path: of a capture, or a reader that is open, which stays open. more: of further segments of the
    capture. needed: columns, for `what`. Raises UsageError where it lacks one, FileError,
    DamagedError. reader.lost and reader.complete are known when all snapshots were read.
    """

    def __init__(
        self, path: str | os.PathLike[str] | Reader, *more: str | os.PathLike[str],
        needed: Sequence[str] = NEEDED, what: str = "what tells the limits of a connection",
    ) -> None:  # fmt: skip
        self._needed, self._what = needed, what
        self._is_ours = isinstance(path, (str, os.PathLike))
        self.reader: Any = path
        if isinstance(path, (str, os.PathLike)):
            self.reader = open_files(path, *more)
        self.names: Sequence[str] = ()
        """The columns that are read, which may be set: those that read() itself needs stay."""
        self.known: set[str] = set()
        """Those that the capture has."""
        self._note_drops: Callable[[Array], None] | None = None
        self.until_ns = 0
        """CLOCK_MONOTONIC of the last entry that was read."""
        self.placed = 0
        """Missing records of which is known where; all are counted by reader.lost."""
        try:
            self._check()
        except BaseException:
            self.__exit__()
            raise
        self.groups = Groups(self.settings())
        """Whose the control groups are; those that came later are known when all was read."""
        self.places = DropPlaces(self.settings())
        """The functions that dropped packets; those that came later as above."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self.reader.close()

    def _check(self) -> None:
        reader = self.reader
        if isinstance(reader, Capture):
            columns = reader.columns_by_name
            known = {
                name for name in reader.names
                if name and _fits(name, columns[name].length, columns[name].is_integer)
            }  # fmt: skip
            usable = reader.controls_fit and "time_ns" in known
        elif isinstance(reader, Logs):
            event = reader.format.find_event(SNAPSHOT)
            known = {
                field.name for field in (event.fields if event is not None else ())
                if _fits(field.name, field.length, field.kind in ("int", "enum"))
            }  # fmt: skip
            usable = True
        else:
            known, usable = set(), False
        self.known = known
        missing = [name for name in self._needed if name not in known]
        if missing or not usable:
            lacks = ", ".join(missing[:5]) or "time_ns"
            raise UsageError(
                f"{reader.path} lacks {self._what}: {lacks}"
                f"{' and more' if len(missing) > 5 else ''}",
                "capture the schema tcp with --columns default, full or all",
            )
        more = (*NEEDED, *OPTIONAL, *OF_RECEIVERS)
        self.names = [*dict.fromkeys((*self._needed, *(one for one in more if one in known)))]

    @property
    def tells_limits(self) -> bool:
        """Whether it has the columns of NEEDED."""
        return self.known.issuperset(NEEDED)

    @property
    def start_ns(self) -> int | None:
        """When the capture began, CLOCK_MONOTONIC; None where it does not tell."""
        if isinstance(self.reader, Capture):
            first = self.reader.mono_ns(0, 1)
            return int(first[0]) if first is not None and len(first) else None
        clock = self.reader.format.clock
        return clock[0] if clock is not None else None

    def location_codes(self) -> dict[str, int]:
        """The numbers of the locations, by name."""
        if isinstance(self.reader, Capture):
            return {self.reader.location_name(code): code for code in range(223, -1, -1)}
        field = self.reader.format.event(SNAPSHOT).find_field("location")
        names = self.reader.format.enums.get(field.type if field is not None else "", {})
        return {name: code for code, name in names.items()}

    def settings(self) -> Any:
        """What the capture's header tells of it."""
        if isinstance(self.reader, Capture):
            return self.reader.settings
        header = self.reader.format.header
        more = header.get("settings")
        return more if isinstance(more, dict) else header

    def records(self, location: str) -> bool:
        """Whether the capture records this location; also where its header does not say."""
        recorded = self.locations()
        return recorded is None or location in recorded

    def locations(self) -> dict[str, Any] | None:
        """The locations that the capture records, and how each is attached, as its header says."""
        recorded = self.settings().get("locations")
        return recorded if isinstance(recorded, dict) else None

    def unseen(self) -> str:
        """What the kernel showed no program, as the header says."""
        return "; ".join(find_unseen(self.settings()))

    def about(self) -> dict[str, Any]:
        """What the headers tell of the capture: columns of the table connections."""
        settings = self.settings()
        if isinstance(self.reader, Capture):
            host, clock = self.reader.header.text(KIND_HOST), self.reader.clock
        else:
            host, clock = self.reader.format.header.get("host"), self.reader.format.clock
        found = {"host": host, "boot_id": _part(settings, "system", "boot_id"),
                 "capture_id": _part(settings, "segment", "capture")}  # fmt: skip
        told: dict[str, Any] = {
            name: value for name, value in found.items() if isinstance(value, str) and value
        }
        if clock is not None and max(clock[:2]) < 1 << 62:
            told["ahead_ns"] = clock[1] - clock[0]
        number = _part(settings, "segment", "number")
        if isinstance(spaces := settings.get("namespaces"), dict):
            told["netns_name"] = {key: one for key, one in spaces.items() if isinstance(one, str)}
        told["groups"] = self.groups
        return told | ({"segment": number} if isinstance(number, int) else {})

    def constants(self, enum: str) -> dict[int, str]:
        """The names of an enum of the capture's schema; none where it lacks it."""
        if not isinstance(self.reader, Capture):
            return dict(self.reader.format.enums.get(enum, {}))
        schema = self.reader.schema
        enums = () if schema is None else schema.enums
        return next((one.names() for one in enums if one.name == enum), {})

    def read(self, note: Note | None = None, all_records: bool = False) -> Iterator[Snapshots]:
        """All snapshots with a connection, some ten thousand at a time, in the file's order; or all
        records but control entries.

        note: gets where records are missing, ahead of the snapshots behind it.
        """
        has_seq = isinstance(self.reader, Capture)
        decode = self._decoder()
        for records in self._records(note, all_records):
            columns, heads = decode(records, slice(None))
            yield Snapshots(columns, heads["time_ns"], heads["lost"],
                            heads["seq"] if has_seq else None)  # fmt: skip

    def blocks(
        self, memory: int | None = None, ids: Array | None = None,
        drops: Callable[[Snapshots], None] | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """All snapshots with a connection, in blocks of whole connections; see blocks.blocks().

        ids: only those of these connections. It reads the file to its end before the first block,
        so all losses are known then. drops: gets before that what was dropped and is of no
        connection.
        """
        has_seq, found = isinstance(self.reader, Capture), list[tuple[Array, Array, Array]]()
        decode = self._decoder()

        def note(some: Array) -> None:
            columns, heads = decode(some, slice(None))
            if drops is not None:
                drops(Snapshots(columns, heads["time_ns"], heads["lost"]))

        self._note_drops = note if drops is not None else None
        records = self._records(lambda *gaps: found.append(gaps))
        if ids is not None:
            records = (some[np.isin(some["conn_id"], ids)] for some in records)
        losses: Losses | None = None
        for store, at in blocks(records, self._kind, memory, self._size()):
            losses = Losses.join(found) if losses is None else losses
            columns, heads = decode(store, at)
            yield Block(columns, heads["conn_id"], heads["time_ns"], heads["lost"],
                        heads["seq"] if has_seq else None, heads["at"], losses)  # fmt: skip

    def _records(self, note: Note | None, all_records: bool = False) -> Iterator[Array]:
        """All snapshots with a connection, as records of blocks.HEAD and the file's own row. The
        memory of some may be that of the next ones."""
        self.placed = self.until_ns = self._read = 0
        self.groups, self.places = Groups(self.settings()), DropPlaces(self.settings())
        if isinstance(self.reader, Capture):
            return self._read_capture(self.reader, note, all_records)
        assert isinstance(self.reader, Logs)
        return self._read_logs(self.reader, note, all_records)

    @property
    def _kind(self) -> np.dtype[Any]:
        if isinstance(self.reader, Capture):
            return record_type(np.dtype(f"V{self.reader.entry_dtype.itemsize}"))
        return record_type(self.reader.format.event(SNAPSHOT).dtype)

    def _size(self) -> int:
        """About how many bytes its records take; 0: nobody knows."""
        is_psc = isinstance(self.reader, Capture)
        return len(self.reader) * self._kind.itemsize if is_psc else 0

    def _decoder(self) -> Callable[[Array, Any], tuple[dict[str, Array], dict[str, Array]]]:
        """What makes columns of records, and their heads: of those at some places."""
        kind, names = self._kind, list(self.names)
        rows = np.empty(max(_CACHED_BYTES // kind.itemsize, 1), kind)
        if isinstance(self.reader, Capture):
            offset = kind.fields["row"][1] if kind.fields else 0
            reader: Any = self.reader.column_reader(names, rows, offset)
        else:
            reader = FieldReader([rows["row"][name] for name in names])
        plain = rows.view(f"V{kind.itemsize}")

        def decode(records: Array, at: Any) -> tuple[dict[str, Array], dict[str, Array]]:
            count = len(records) if isinstance(at, slice) else len(at)
            found = [np.empty(count, dtype) for dtype in reader.dtypes]
            heads = {name: np.empty(count, form) for name, form in HEAD}
            source = records.view(plain.dtype)
            for low in range(0, count, len(rows)):
                high = min(low + len(rows), count)
                some = slice(low, high)
                if isinstance(at, slice):
                    plain[: high - low] = source[some]
                else:
                    np.take(source, at[some], out=plain[: high - low], mode="clip")
                reader.read(high - low, found, low)
                for name, values in heads.items():
                    values[some] = rows[name][: high - low]
            return dict(zip(names, found, strict=True)), heads

        return decode

    def _read_capture(
        self, capture: Capture, note: Note | None, all_records: bool
    ) -> Iterator[Array]:
        numbered, kind = capture.seq_column, self._kind
        keys = [*_KEYS, "time_ns", *([numbered.name] if numbered is not None else ())]
        reader = capture.column_reader(keys)
        plain = reader.rows.view(kind["row"])
        losses = capture.count_losses()
        before = int(capture.seq(0, 1)[0]) - 1 if len(capture) else 0
        room = np.empty(min(len(capture), _PIECE_ROWS), kind)
        for piece in capture.chunks(_PIECE_ROWS):
            count = piece.stop - piece.start
            records = room[:count]
            found = [np.empty(count, dtype) for dtype in reader.dtypes]
            for low in range(0, count, len(reader.rows)):
                some = slice(low, min(low + len(reader.rows), count))
                size = some.stop - low
                capture.read_into(reader.rows[:size], piece.start + low)
                reader.read(size, found, low)
                records["row"][some] = plain[:size]
            columns = dict(zip(keys, found, strict=True))
            if numbered is None or losses is None:
                numbers = capture.seq(piece.start, piece.stop).astype(np.int64)
            else:
                raw = columns.pop(numbered.name)
                losses.add(raw)
                numbers = unwrap(raw, np.array([before]), bits=8 * numbered.length)
            times = columns.pop("time_ns").astype(np.int64)
            steps = np.diff(numbers, prepend=before) - 1
            lost = self.placed + np.cumsum(np.maximum(steps, 0))
            if note is not None:
                _tell(note, times, steps, self.until_ns or None)
            self.until_ns = int(times[-1])
            before, self.placed = int(numbers[-1]), int(lost[-1])
            if np.isin(columns["location"], (GroupPart.location, DropPlace.location)).any():
                for _, entry in capture.controls(piece.start, piece.stop):
                    self.groups.feed(entry)
                    self.places.feed(entry)
            has_ports = (columns["lport"] | columns["rport"]) > 0
            is_record = has_ports | ~is_control(columns["location"])
            if not all_records:
                is_record &= _is_connection(columns)
            made = self._headed(records, is_record, columns["conn_id"], times, lost, numbers)
            self._pass_others(records, ~is_record, columns)
            yield made

    def _read_logs(
        self, logs: Logs, note: Note | None, all_records: bool
    ) -> Iterator[Array]:
        gaps, kind = _Gaps(len(logs.readers) > 1, note), self._kind
        for batch in merge_logs(logs.readers, note=gaps.add):
            lost = self.placed + np.cumsum(gaps.before(batch))
            self.placed, self.until_ns = int(lost[-1]), int(batch.times_ns[-1])
            for _, part in facts_of(batch, GroupPart):
                self.groups.feed(part)
            for _, place in facts_of(batch, DropPlace):
                self.places.feed(place)
            at = batch.where(SNAPSHOT)
            records = np.empty(len(at), kind)
            records["row"] = rows = batch.rows(SNAPSHOT, at)
            columns = {name: _native(rows[name]) for name in _KEYS}
            keep = np.ones(len(at), np.bool_) if all_records else _is_connection(columns)
            made = self._headed(records, keep, columns["conn_id"],
                                batch.times_ns[at].astype(np.int64), lost[at], None)  # fmt: skip
            self._pass_others(records, ~keep, columns)
            yield made

    def _pass_others(self, records: Array, others: Array, columns: dict[str, Array]) -> None:
        """To who asked for them, drops that are of no connection, and what is of listeners."""
        if self._note_drops is None:
            return
        location, state = columns["location"], columns["state"]
        begins = (location == Location.STATE_CHANGE) & (state == State.CLOSE)
        listens = begins | (state == State.LISTEN)
        at = np.flatnonzero(others & (listens | is_one_of(location, DROPS)))
        if len(at):
            self._note_drops(records.view(f"V{records.dtype.itemsize}")[at].view(records.dtype))

    def _headed(
        self, records: Array, keep: Array, ids: Array, times_ns: Array, lost: Array,
        seq: Array | None,
    ) -> Array:  # fmt: skip
        """The records that are to be kept, with their heads."""
        for name, values in (("conn_id", ids), ("time_ns", times_ns), ("lost", lost),
                             ("seq", 0 if seq is None else seq)):  # fmt: skip
            records[name] = values
        if not keep.all():
            records = records.view(f"V{records.dtype.itemsize}")[keep].view(records.dtype)
        records["at"] = np.arange(self._read, self._read + len(records))
        self._read += len(records)
        return records


class FieldReader:
    """Columns of rows of a log, as psc.values.ColumnReader reads those of PSC files."""

    def __init__(self, views: Sequence[Array]) -> None:
        self._views = views
        self.dtypes = [view.dtype.newbyteorder("=") for view in views]

    def read(self, count: int, out: Sequence[Array], low: int) -> None:
        """Write the values of the first rows into the arrays, from this place on."""
        for view, values in zip(self._views, out, strict=True):
            values[low : low + count] = view[:count]


def _native(values: Array) -> Array:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def _tell(note: Note, times_ns: Array, missing: Array, before_ns: int | None) -> None:
    """Where records are missing: from the record before to the one behind, of one file."""
    at = np.flatnonzero(missing > 0)
    if len(at):
        before = np.append(times_ns[0] if before_ns is None else before_ns, times_ns[:-1])[at]
        note(np.minimum(before, times_ns[at]), np.maximum(before, times_ns[at]), missing[at])


def _fits(name: str, length: int, is_number: bool) -> bool:
    """Whether a column is what the analysis takes it for: a number, or raw bytes."""
    if name in ("laddr", "raddr"):
        return length == 16
    if name in ("comm", "ca_name"):
        return not is_number
    return is_number and length in (1, 2, 4, 8)


def _part(settings: Any, group: str, name: str) -> Any:
    """A value of a header, which may hold anything."""
    found = settings.get(group)
    return found.get(name) if isinstance(found, dict) else None


def _is_connection(columns: dict[str, Array]) -> NDArray[np.bool_]:
    """Snapshots of connections that are known; those of listeners, also closed ones, are none."""
    state = columns["state"]
    closed = (state == State.CLOSE) & (columns["rport"] == 0)
    return np.asarray((columns["conn_id"] != 0) & (state != State.LISTEN) & ~closed)


class _Gaps:
    """Where serials are missing in logs, whose batches are added in file order.

    Serials rise in a file, times do not: a record that is merged before an earlier one is no gap.
    by_cpu: each file is of one CPU; else there is one file.
    """

    def __init__(self, by_cpu: bool, note: Note | None) -> None:
        self._by_cpu, self._note = by_cpu, note
        self._last: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}
        self._found: dict[int, list[Array]] = {}

    def add(self, batch: LogBatch) -> None:
        """The next records of a file."""
        if not len(batch):
            return
        key, serials = self._key(batch.cpus[0]), batch.serials.astype(np.int64)
        missing = np.diff(serials, prepend=self._last.get(key, 0)) - 1
        self._last[key] = int(serials[-1])
        if self._note is not None:
            times = batch.times_ns.astype(np.int64)
            _tell(self._note, times, missing, self._last_ns.get(key))
            self._last_ns[key] = int(times[-1])
        at = np.flatnonzero(missing > 0)
        if len(at):
            some = np.stack([serials[at], missing[at]])
            self._found[key] = [np.concatenate([*self._found.get(key, []), some], axis=1)]

    def before(self, batch: LogBatch) -> NDArray[np.int64]:
        """(n,) how many records of its file are missing directly before each merged one."""
        found = np.zeros(len(batch), np.int64)
        for key, (gaps,) in self._found.items():
            at = np.arange(len(batch))
            if self._by_cpu:
                at = np.flatnonzero(batch.cpus == key)
            serials = batch.serials[at].astype(np.int64)
            place = np.minimum(np.searchsorted(gaps[0], serials), gaps.shape[1] - 1)
            found[at] = np.where(gaps[0][place] == serials, gaps[1][place], 0)
        return found

    def _key(self, cpu: Any) -> int:
        return int(cpu) if self._by_cpu else 0
