# SPDX-License-Identifier: Apache-2.0
"""Keeps a dataset: fewer and larger files, what is missing in it, what is too old."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import date

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.dataset.store import Part, Store


def compact(store: Store) -> int:
    """Merge the files of each table, day and host into one; returns how many were merged.

    The new file names those that it replaces, so that a reader of ours counts no row twice, and the
    next run deletes what a killed one left. Other readers must wait until it is over.
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
        tables = [store.read(part) for part in parts]
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
    """What is missing or damaged, a sentence each. Reads all footers, and the table settings."""
    told: dict[str, set[str]] = {}
    numbers: dict[tuple[str, str], list[int]] = {}
    parts, bad = store.parts(check=False), set[Part]()
    for part in parts:
        try:
            store.about(part)
            if part.table != "settings":
                continue
            rows = store.read(part).to_pylist()
        except TcpkmonError as error:
            bad.add(part)
            yield error.message
            continue
        for row in rows:
            key = f"{part.folder.partition('/')[2]}/{row['segment_id']}"
            told[key] = {name for name, count in json.loads(row["rows"]).items()}
            if row["number"] is not None:
                host = part.folder.rpartition("/host=")[2]
                numbers.setdefault((host, row["capture_id"]), []).append(row["number"])
            if not row["proven"]:
                yield f"{row['file']} of {part.folder.partition('/')[2]}: {row['verdict']}"
    there: dict[str, set[str]] = {}
    for part in parts:
        if part.table == "settings" or part in bad:
            continue
        folder = part.folder.partition("/")[2]
        for name in store.about(part)["segments"]:
            there.setdefault(f"{folder}/{name}", set()).add(part.table)
    for key in sorted(there.keys() - told.keys()):
        yield f"{key} was not added to its end: add it again"
    for key, tables in sorted(told.items()):
        for lost in sorted(tables - there.get(key, set())):
            yield f"{key} lacks its file of the table {lost}"
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
