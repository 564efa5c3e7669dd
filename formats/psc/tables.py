# SPDX-License-Identifier: Apache-2.0
"""PSC files to Parquet, Arrow, CSV and JSON lines, in bounded memory: what tcpkmon export calls.

Snapshots alone, one row each: the time as a timestamp of microseconds, enumerated values by name,
addresses and names as text. Control entries are left out (tcpkmon verify tells them).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from formats.base.errors import UsageError
from formats.klogger.values import address_of, text_of
from formats.psc.reader import Capture
from formats.psc.sequence import Losses
from formats.psc.values import decode

FORMS = ("parquet", "arrow", "csv", "json")
ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv"}
ENDINGS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
ROWS = 1 << 16
_STRIDE = 512


def import_pyarrow() -> Any:
    """The module pyarrow; UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise UsageError("pyarrow is not installed", "pip install 'tcpkmon[export]'") from error
    return pyarrow


class Export:
    """Chosen columns of a capture, by name; UsageError for one that it lacks.

    by_connection: in each row group the rows of a connection stand together (then they take a
    third of the room); the column seq has the order of the file.
    """

    def __init__(
        self, capture: Capture, names: Sequence[str] | None = None, by_connection: bool = False
    ) -> None:
        self.capture = capture
        self.names = list(capture.names if names is None else dict.fromkeys(names))
        for name in self.names:
            capture.find_column(name)
        self._by_connection = by_connection
        self._keys = [
            column.name
            for column in map(capture.columns_by_name.get, ("lport", "rport", "conn_id"))
            if by_connection and column is not None and column.is_integer
        ]
        self._places = capture.places(dict.fromkeys([*self.names, *self._keys]))
        self._enums = self._find_enums()

    def tables(self, rows: int | None = None, rooms: int = 0) -> Iterator[Any]:
        """The snapshots as pyarrow.Tables of at most so many rows (ROWS), dictionaries for texts.

        rooms: so many places in memory are used in turn; a table is valid until its place is used
        again. 0: each has its own, and stays valid. After the last, capture.lost is known.
        """
        pyarrow = import_pyarrow()
        column = self.capture.seq_column
        losses = Losses(8 * column.length) if column is not None else None
        places = itertools.cycle([_Room() for _ in range(rooms)] or [None])
        for piece in list(self.capture.chunks(rows or ROWS)) or [slice(0, 0)]:
            found = self._columns(piece, next(places) or _Room(), losses)
            if self._by_connection:
                self._sort(found)
            arrays = [self._array(name, found[name]) for name in self.names]
            fields = [
                pyarrow.field(name, array.type, nullable=False)
                for name, array in zip(self.names, arrays, strict=True)
            ]
            yield pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))
        if losses is not None:
            self.capture.lost = losses.lost

    def _columns(
        self, piece: slice, room: _Room, losses: Losses | None
    ) -> dict[str, npt.NDArray[Any]]:
        """The columns of the snapshots of a piece of the file, and those to sort by."""
        capture, places = self.capture, self._places
        rows = places.rows
        arrays = room.arrays(places.kinds, piece.stop - piece.start)
        done = 0
        for low in range(piece.start, piece.stop, len(rows)):
            some = rows[: piece.stop - low]
            capture.read_into(some, low)
            if losses is not None and capture.seq_column is not None:
                losses.add(decode(some, capture.seq_column, capture.header.endian))
            kept = capture.snapshots_of(some)
            if len(kept) < len(some):
                some[: len(kept)] = kept.view(some.dtype)
            places.read(len(kept), arrays, done)
            done += len(kept)
        names = dict.fromkeys([*self.names, *self._keys])
        return {name: values[:done] for name, values in zip(names, arrays, strict=True)}

    def _sort(self, found: dict[str, npt.NDArray[Any]]) -> None:
        """Bring the rows of a connection together, each in the order of the file."""
        keys = [found[name] for name in self._keys]
        if keys and self._keys[-1] == "conn_id" and keys[-1].all():
            del keys[:-1]  # the ports tell apart only those without an id
        order = np.arange(len(next(iter(found.values()))))
        for values in keys:
            order = order[np.argsort(self._ranks(values)[order], kind="stable")]
        spare: dict[int, npt.NDArray[Any]] = {}
        for name, values in found.items():
            if not _is_constant(values):
                size = values.itemsize
                # The place of one column is the room for the next of its width.
                room = spare[size].view(values.dtype) if size in spare else np.empty_like(values)
                found[name] = np.take(values, order, out=room, mode="clip")
                spare[size] = values

    def _ranks(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Numbers in the order of the values, 16 bits wide where these suffice (fast to sort)."""
        narrow = _narrow(values)
        if narrow is not None:
            return narrow
        encoded = import_pyarrow().array(values).dictionary_encode()
        known = encoded.dictionary.to_numpy()
        if len(known) > 1 << 16:
            return values
        ranks = np.empty(len(known), np.uint16)
        ranks[np.argsort(known)] = np.arange(len(known), dtype=np.uint16)
        found: npt.NDArray[Any] = ranks[encoded.indices.to_numpy()]
        return found

    def _find_enums(self) -> dict[str, dict[int, str]]:
        """By column, the names of its values, where the file's schema enumerates them."""
        schema = self.capture.schema
        if schema is None:
            return {}
        enums = {enum.name: enum.names() for enum in schema.enums}
        types = {field.name: field.type for event in schema.events for field in event.fields}
        return {
            name: enums[key]
            for name in self.names
            for key in (types.get(name, ""), name)
            if key in enums
        }

    def texts(self, name: str) -> Callable[[Any], str] | None:
        """What tells a value of a column (an int, or bytes) as text; None for plain numbers."""
        column = self.capture.find_column(name)
        if column.is_time or (column.is_integer and name not in self._enums):
            return None
        if column.is_integer:
            names = self._enums[name]
            return lambda value: names.get(value, str(value))
        return text_of if self.capture.is_text(name) else _bytes_of

    def _array(self, name: str, values: npt.NDArray[Any]) -> Any:
        pyarrow = import_pyarrow()
        if self.capture.columns_by_name[name].is_time:
            values //= 1000
            return pyarrow.array(values, pyarrow.timestamp("us", "UTC"))
        text = self.texts(name)
        if text is None:
            return pyarrow.array(values)
        encoded = encode(values)
        texts = [text(value) for value in encoded.dictionary.to_pylist()]
        return pyarrow.DictionaryArray.from_arrays(
            encoded.indices, pyarrow.array(texts, pyarrow.string()), safe=False
        )


class _Room:
    """A place in memory that is used again and again: new pages cost more than what is done."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def arrays(self, kinds: Sequence[np.dtype[Any]], rows: int) -> list[npt.NDArray[Any]]:
        """An array of so many rows for each of these kinds; those made before are void."""
        sizes = [-(-kind.itemsize * rows // 64) * 64 for kind in kinds]
        if len(self._bytes) < sum(sizes):
            self._bytes = np.empty(sum(sizes), np.uint8)
        ends = list(itertools.accumulate(sizes, initial=0))
        return [
            self._bytes[start : start + kind.itemsize * rows].view(kind)
            for kind, start in zip(kinds, ends, strict=False)
        ]


def encode(values: npt.NDArray[Any]) -> Any:
    """Integers or raw bytes of one width as an Arrow dictionary array."""
    pyarrow = import_pyarrow()
    values = np.ascontiguousarray(values)
    starts = _find_runs(values)
    if starts is None:
        return _encode_each(values)
    encoded = _encode_each(values[starts])
    indices = np.repeat(encoded.indices.to_numpy(), np.diff(starts, append=len(values)))
    return pyarrow.DictionaryArray.from_arrays(indices, encoded.dictionary, safe=False)


def _encode_each(values: npt.NDArray[Any]) -> Any:
    pyarrow = import_pyarrow()
    if values.dtype.kind in "iu":
        return pyarrow.array(values).dictionary_encode()
    data = pyarrow.py_buffer(values.view(np.uint8))
    kind = pyarrow.binary(values.dtype.itemsize)
    whole = pyarrow.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, data])
    return whole.dictionary_encode()


def _find_runs(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Where a value differs from the one before; None where that is often, or slow to tell."""
    words = values[:, np.newaxis]
    if values.dtype.kind not in "iu":
        count, rest = divmod(values.dtype.itemsize, 8)
        if rest:
            return None
        words = values.view(np.uint64).reshape(len(values), count)
    differs = np.zeros(len(values), np.bool_)
    differs[:1] = True
    for place in range(words.shape[1]):
        differs[1:] |= words[1:, place] != words[:-1, place]
    return np.flatnonzero(differs) if 4 * np.count_nonzero(differs) < len(differs) else None


def _is_constant(values: npt.NDArray[Any]) -> bool:
    """Whether all integers are the same; False too where that takes long to tell."""
    if values.dtype.kind not in "iu" or not len(values):
        return not len(values)
    some = values[::_STRIDE]
    return bool((some == some[0]).all() and (values == some[0]).all())


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Integers less the least of them, in 16 bits; None where these do not suffice."""
    if not len(values):
        return values
    least = values.min()
    is_narrow = int(values.max()) - int(least) < 1 << 16
    return (values - least).astype(np.uint16) if is_narrow else None


def write(export: Export, form: str, out: BinaryIO) -> None:
    """Write the snapshots in one of FORMS."""
    if form == "parquet":
        from formats.export.arrow_files import write_parquet

        write_parquet(export, out)
    elif form == "arrow":
        from formats.export.arrow_files import write_arrow

        write_arrow(export, out)
    else:
        from formats.export.text_lines import write_lines

        write_lines(export, form, out)


def _bytes_of(data: bytes) -> str:
    """A column of raw bytes that is no name: an address, or whatever else as hex digits."""
    return address_of(data) if len(data) == 16 else data.hex()
