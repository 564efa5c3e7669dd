# SPDX-License-Identifier: Apache-2.0
"""Makes datasets of many hosts from real captures, and measures them: docs/fleet.md has it.

    .venv/bin/python scripts/fleet.py CAPTURE... --hosts 10,100 --connections 10000
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from tcpkmon.formats.dataset import QUERIES, Store, add, ask
from tcpkmon.formats.dataset.adding import USUAL

DAYS = ("2026-11-15", "2026-11-22")


def templates(folder: Path, captures: list[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables of real captures, and what their files say."""
    store = Store(str(folder / "template"))
    for path in captures:
        add(store, path)
    tables: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for name in (*USUAL, "settings"):
        parts = store.parts(f"table={name}")
        if parts:
            tables[name] = pyarrow.concat_tables([store.read(one) for one in parts])
            about = store.about(parts[0])
    return tables, about


def host_tables(tables: dict[str, Any], count: int, segment: str, rng: Any) -> dict[str, Any]:
    """The tables of one host with so many connections, drawn from the real ones."""
    real = tables["connections"]
    drawn = rng.integers(0, real.num_rows, count)
    place, new = real.column_names.index("conn_id"), pyarrow.array(np.arange(count) + 1)
    found = {"connections": real.take(drawn).set_column(place, "conn_id", new)}
    key = real["segment_id"].to_numpy(zero_copy_only=False).astype(str)
    ids = real["conn_id"].to_numpy()
    of = tables["intervals"]
    owner = of["segment_id"].to_numpy(zero_copy_only=False).astype(str)
    numbers = of["conn_id"].to_numpy()
    rows = {(seg, num): np.flatnonzero((owner == seg) & (numbers == num))
            for seg, num in set(zip(key.tolist(), ids.tolist(), strict=True))}  # fmt: skip
    taken = [rows[key[at], int(ids[at])] for at in drawn]
    new = pyarrow.array(np.repeat(np.arange(count) + 1, [len(some) for some in taken]))
    place = of.column_names.index("conn_id")
    found["intervals"] = of.take(np.concatenate(taken)).set_column(place, "conn_id", new)
    found["ledger"] = tables["ledger"]
    found["settings"] = tables["settings"].slice(0, 1)
    for name, table in found.items():
        told = pyarrow.repeat(pyarrow.scalar(segment), table.num_rows)
        at = table.column_names.index("segment_id")
        found[name] = table.set_column(at, "segment_id", told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", nargs="+", type=Path)
    parser.add_argument("--hosts", default="10,100")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/fleet"))
    words = parser.parse_args()
    shutil.rmtree(words.folder, ignore_errors=True)
    tables, about = templates(words.folder, words.captures)
    sizes = [int(one) for one in words.hosts.split(",")]
    columns: dict[str, list[str]] = {}
    for hosts in sizes:
        place = words.folder / str(hosts)
        store, rng = Store(str(place)), np.random.default_rng(1)
        spent = 0.0
        for number in range(hosts):
            for day in DAYS:
                segment = f"{number:08x}{day.replace('-', '')}"
                made = host_tables(tables, words.connections // len(DAYS), segment, rng)
                begin = time.perf_counter()
                for name, table in made.items():
                    store.write(f"table={name}/date={day}/host=h{number:04d}/{segment}.parquet",
                                table, about | {"segments": [segment]})  # fmt: skip
                spent += time.perf_counter() - begin
        size = sum(path.stat().st_size for path in place.rglob("*.parquet"))
        note = columns.setdefault
        note("bytes a connection", []).append(f"{size / hosts / words.connections:,.0f}")
        note("writing, ms a host", []).append(f"{1000 * spent / hosts:,.0f}")
        for name in QUERIES:
            begin = time.perf_counter()
            ask(store, name, connection=f"00000000{DAYS[0].replace('-', '')}:7")
            note(name + ", s", []).append(f"{time.perf_counter() - begin:.2f}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        note("largest memory so far, MB", []).append(f"{peak:,.0f}")
        shutil.rmtree(place)
    print(f"| {words.connections:,} connections a host | "
          + " | ".join(f"{one:,} hosts" for one in sizes) + " |")  # fmt: skip
    print("| --- |" + " --: |" * len(sizes))
    for name, cells in columns.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
