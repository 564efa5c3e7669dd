# SPDX-License-Identifier: Apache-2.0
"""Keeps a dataset: fewer and larger files, what is missing in it, what is too old."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import Any
from urllib.parse import quote

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.dataset.store import Part, Store, twice


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
