# SPDX-License-Identifier: Apache-2.0
"""Puts the tables of a capture into a dataset: a file for each, all of them once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.files import read_head
from tcpkmon.formats.dataset.store import Part, Store, twice
from tcpkmon.formats.psc.header import KIND_KERNEL
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.tables import Opened, schema_of, views_of

TABLES = (
    "connections", "intervals", "requests", "snapshots", "latency", "ledger", "settings",
)  # fmt: skip
USUAL = ("connections", "intervals", "requests", "latency", "ledger")
"""The tables that travel; snapshots are as large as the capture, and stay on its host."""
_ORDER = ("conn_id", "start_ns", "time_ns", "seq_lo", "location", "cpu")
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Added:
    """rows: by table; empty where the segment was there before."""

    segment: str
    rows: dict[str, int]


def add(
    store: Store, path: str | Path, tables: Sequence[str] = USUAL, name: str = ""
) -> Added:
    """Add a capture, or a segment of one. The row in `settings` is written last: without it the
    others are written anew. name: that of the file, if it is not the path's. UsageError, FileError,
    DamagedError, StoreError."""
    path = Path(path)
    opened = Opened.of((path,))
    with opened.reader:
        about = _about(opened, path, name or path.name)
        where = f"date={about['date']}/host={quote(about['host'], safe='')}"
        key = f"{where}/{about['segment_id']}.parquet"
        if any(part.name == about["segment_id"] or (
                part.is_merged and about["segment_id"] in store.about(part)["segments"])
               for part in store.parts(f"table=settings/{where}")):
            return Added(about["segment_id"], {})
        views, rows = views_of(opened), {}
        facts = {one: about[one] for one in ("kernel", "system", "mono_ns", "real_ns")}
        facts |= {"segments": [about["segment_id"]], "host": about["host"], "date": about["date"]}
        for table in tables:
            if table not in views:
                continue
            again = Opened.of((path,))
            with again.reader:
                pieces = list(views[table].tables(again))
            found = _fit(pieces, views[table].columns, about["segment_id"], name)
            rows[table] = found.num_rows
            store.write(f"table={table}/{key}", found, facts)
        proof = next(row for one in views["proof"].tables(opened) for row in one.to_pylist())
        store.write(f"table=settings/{key}", _settings(about, proof, rows), facts)
        return Added(about["segment_id"], rows)


def _about(opened: Opened, path: Path, name: str) -> dict[str, Any]:
    """What is known of a segment without its records."""
    reader: Any = opened.reader
    try:
        with Source(opened.reader) as source:
            told = source.about()
            settings = source.settings()
    except UsageError:
        told, settings = {}, {}
    clock = reader.clock if isinstance(reader, Capture) else getattr(
        getattr(reader, "format", None), "clock", None)  # fmt: skip
    if clock is None or not 0 <= clock[1] < 1 << 62:
        raise UsageError(f"{name} does not say at which time of day it was made",
                         "only captures of tcpkmon can be added")  # fmt: skip
    first = path if path.is_file() else min(one for one in path.rglob("*") if one.is_file())
    digest = hashlib.sha256(read_head(first, _HEAD_BYTES)).hexdigest()[:16]
    capture, number = told.get("capture_id"), told.get("segment")
    is_part = isinstance(capture, str) and capture.isalnum() and isinstance(number, int)
    system = settings.get("system") if isinstance(settings.get("system"), dict) else {}
    host = told.get("host") or "unknown"
    return {
        "segment_id": f"{capture}-{number:06d}" if is_part else digest,
        "date": f"{datetime.fromtimestamp(clock[1] / 1e9, timezone.utc):%Y-%m-%d}",
        "host": host if host.isprintable() and len(host) <= 255 else "unknown",
        "boot_id": told.get("boot_id"), "capture_id": capture, "number": number,
        "file": name, "kernel": _kernel(reader),
        "mono_ns": clock[0], "real_ns": clock[1],
        "clock_bound_ns": clock[2] if len(clock) > 2 else None,
        "true_time_bound_ns": true_time_bound_ns(system.get("clock")),
        "system": json.dumps(system, sort_keys=True),
    }  # fmt: skip


def true_time_bound_ns(clock: Any) -> int | None:
    """How far the host's time of day was from true time at most; None: nobody kept it, or knows."""
    if not isinstance(clock, dict) or clock.get("is_synchronised") is not True:
        return None
    most = clock.get("max_error_us")
    return most * 1000 if isinstance(most, int) and 0 <= most < 1 << 40 else None


def _kernel(reader: Any) -> str | None:
    if isinstance(reader, Capture):
        return reader.header.text(KIND_KERNEL) or None
    return str(reader.format.header.get("kernel", "")) or None


def _fit(pieces: list[Any], columns: Sequence[Any], segment: str, name: str) -> Any:
    """One table, sorted by connection and time, in types that all engines have: no uint64, and
    without the column host, which is a partition. name: instead of the file's path, if any."""
    pyarrow = import_pyarrow()
    table = pyarrow.concat_tables([schema_of(columns).empty_table(), *pieces])
    for at, field in enumerate(table.schema):
        if field.type == pyarrow.uint64():  # an address of the kernel: the same 64 bits
            arrays = [chunk.view(pyarrow.int64()) for chunk in table[field.name].chunks]
            told = pyarrow.chunked_array(arrays, pyarrow.int64())
            table = table.set_column(at, field.with_type(pyarrow.int64()), told)
    # The number of a segment is in settings.
    table = table.drop_columns([one for one in ("host", "segment") if one in table.column_names])
    if name and "path" in table.column_names:
        told = pyarrow.repeat(pyarrow.scalar(name), table.num_rows)
        table = table.set_column(table.column_names.index("path"), "path", told)
    ids = pyarrow.repeat(pyarrow.scalar(segment), table.num_rows)
    table = table.add_column(0, "segment_id", ids)
    keys = [(name, "ascending") for name in _ORDER if name in table.column_names]
    return table.sort_by(keys) if keys and table.num_rows else table


def _settings(about: dict[str, Any], proof: dict[str, Any], rows: dict[str, int]) -> Any:
    pyarrow = import_pyarrow()
    text, whole, flag = pyarrow.string(), pyarrow.int64(), pyarrow.bool_()
    fields = [
        *((name, text) for name in ("segment_id", "boot_id", "capture_id", "file", "kernel")),
        *((name, whole) for name in ("number", "mono_ns", "real_ns", "clock_bound_ns",
                                  "true_time_bound_ns")),
        ("system", text), ("rows", text), ("verdict", text), ("proven", flag),
        ("end_reason", text),
        *((name, whole) for name in ("exit_code", "entries", "lost", "size_bytes")),
    ]  # fmt: skip
    row = {**proof, **about, "rows": json.dumps(rows, sort_keys=True)}
    return pyarrow.table({name: pyarrow.array([row[name]], kind) for name, kind in fields})


# Keeps a dataset: fewer and larger files, what is missing in it, what is too old.

def compact(store: Store) -> int:
    """Merge the files of each table, day and host into one; returns how many were merged.

    The new file names those that it replaces, so that a reader of ours counts no row twice, and the
    next run deletes what a killed one left. Other readers must wait until it is over. DamagedError:
    a file is not as it was written, or a segment is there twice; nothing of it is merged.
    """
    pyarrow = import_pyarrow()
    folders: dict[str, list[Part]] = {}
    for part in store.parts():
        folders.setdefault(part.folder, []).append(part)
    count = 0
    for folder, parts in folders.items():
        for part in parts:
            if part.is_merged:  # what a killed run left behind
                for name in store.about(part).get("replaces", []):
                    store.delete(Part(f"{folder}/{name}"))
        if len(parts) == 1:
            continue
        store.schemas(parts)  # no segment twice
        tables = [table for part in parts for table in store.row_groups(part)]
        table = pyarrow.concat_tables(tables, promote_options="default")
        keys = [(name, "ascending") for name in ("segment_id", "conn_id", "start_ns")
                if name in table.column_names]  # fmt: skip
        names = [part.key.rpartition("/")[2] for part in parts]
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        abouts = [store.about(part) for part in parts]
        segments = sorted({one for about in abouts for one in about["segments"]})
        about = abouts[0] | {"replaces": names, "segments": segments}
        store.write(f"{folder}/merged-{digest}.parquet", table.sort_by(keys), about)
        for part in parts:
            store.delete(part)
        count += len(parts)
    return count


def check(store: Store) -> Iterator[str]:
    """What is missing, damaged or there twice, a sentence each. It reads all files."""
    rows: dict[tuple[str, str, str], int] = {}
    numbers: dict[tuple[str, str], list[int]] = {}
    known: list[tuple[Part, dict[str, Any]]] = []
    there: Counter[tuple[str, str, str]] = Counter()
    for part in store.parts(check=False):
        day_and_host = part.folder.partition("/")[2]
        try:
            about = store.about(part)
            known.append((part, about))
            there.update({(day_and_host, part.table, name): 0 for name in about["segments"]})
            for table in store.row_groups(part):
                counted = table["segment_id"].value_counts().to_pylist()
                there.update({(day_and_host, part.table, one["values"]): one["counts"]
                              for one in counted})  # fmt: skip
                for row in table.to_pylist() if part.table == "settings" else ():
                    told = {"settings": 1, **json.loads(row["rows"])}
                    rows |= {(day_and_host, name, row["segment_id"]): count
                             for name, count in told.items()}  # fmt: skip
                    if row["number"] is not None:
                        host = part.folder.rpartition("/host=")[2]
                        numbers.setdefault((host, row["capture_id"]), []).append(row["number"])
                    if not row["proven"]:
                        yield f"{row['file']} of {day_and_host}: {row['verdict']}"
        except TcpkmonError as error:
            yield error.message
            continue
        written = f"date={about.get('date')}/host={quote(about.get('host') or '', safe='')}"
        if "host" in about and written != day_and_host:
            yield f"{part.key} is in another place than it was written for: {written}"
    yield from twice(known)
    added = {(place, segment) for place, table, segment in rows if table == "settings"}
    for place, segment in sorted({(place, one) for place, _, one in there} - added):
        yield f"{place}/{segment} was not added to its end: add it again"
    for key, count in sorted(rows.items()):
        place, name, segment = key
        if key not in there:
            yield f"{place}/{segment} lacks its file of the table {name}"
        elif there[key] != count:
            yield (f"{place}/{segment} has {there[key]:,} rows in the table {name}; "
                   f"{count:,} were added")  # fmt: skip
    for (host, capture), some in sorted(numbers.items()):
        for gap in sorted(set(range(min(some), max(some))) - set(some)):
            yield f"host {host}: segment {gap} of capture {capture} is missing"


def drop(store: Store, before: str) -> int:
    """Delete the days before a date; returns how many files. Settings go first. UsageError."""
    try:
        date.fromisoformat(before)
    except ValueError as error:
        raise UsageError(f"{before} is no date", "give one as 2026-11-22") from error
    old = [part for part in store.parts() if part.date < before]
    for part in sorted(old, key=lambda part: part.table != "settings"):
        store.delete(part)
    return len(old)
