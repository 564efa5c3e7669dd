# SPDX-License-Identifier: Apache-2.0
"""Puts the tables of a capture into a dataset: a file for each, all of them once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.files import read_head
from tcpkmon.formats.dataset.store import Store
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
