# SPDX-License-Identifier: Apache-2.0
"""Makes datasets of many hosts from real captures, measures them; the figures of docs/fleet.md.

    .venv/bin/python -m scripts.fleet CAPTURE... --hosts 10,100,1000 --docs

The connections of a host are drawn from those of the captures; its addresses and ports are its own,
and its bytes and times are each multiplied by a random factor, so that files do not compress
better than those of as many real connections.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow

from scripts.experiments.report import rows_of, write_part
from tcpkmon.collector.linux.machine import describe_machine
from tcpkmon.formats.dataset import QUERIES, Files, Store, add, ask, opened
from tcpkmon.formats.dataset.adding import USUAL

OF_CONNECTIONS = ("intervals", "requests")
DAYS = ("2026-11-15", "2026-11-22")
DOCS = Path(__file__).parent.parent / "docs" / "fleet.md"
_SPREAD = 0.5
"""Of the logarithm of the factors."""


class Templates:
    """The tables of real captures."""

    def __init__(self, folder: Path, captures: tuple[Path, ...]) -> None:
        store = Store(str(folder / "template"))
        wall, spent = time.perf_counter(), time.process_time()
        for path in captures:
            add(store, path)
        self.wall, self.spent = time.perf_counter() - wall, time.process_time() - spent
        self.size = sum(store.files.get_file_info(f"{store.base}/{one.key}").size
                        for one in store.parts())  # fmt: skip
        self.tables: dict[str, Any] = {}
        for name in (*USUAL, "settings"):
            if parts := store.parts(f"table={name}"):
                self.tables[name] = pyarrow.concat_tables([store.read(one) for one in parts])
                self.about = store.about(parts[0])
        self.count = self.tables["connections"].num_rows
        place = {key: at for at, key in enumerate(_keys(self.tables["connections"]))}
        self._of: dict[str, tuple[Any, Any]] = {}
        """By table of connections' rows: the first row of each connection, and their order."""
        for name in OF_CONNECTIONS:
            if name in self.tables:
                owner = np.array([place[key] for key in _keys(self.tables[name])])
                order = np.argsort(owner, kind="stable")
                self._of[name] = np.searchsorted(owner[order], np.arange(self.count + 1)), order

    def host(self, count: int, segment: str, rng: Any) -> dict[str, Any]:
        """The tables of a segment with so many connections."""
        drawn = rng.integers(0, self.count, count)
        factor, shift = rng.lognormal(0, _SPREAD, count), rng.integers(0, 86_400 * 10**9, count)
        found = {
            "connections": _varied(self.tables["connections"].take(drawn), np.arange(count) + 1,
                                   factor, shift),
            "ledger": self.tables["ledger"], "settings": self.tables["settings"].slice(0, 1),
        }  # fmt: skip
        for name, (first, order) in self._of.items():
            sizes = first[drawn + 1] - first[drawn]
            starts = np.repeat(first[drawn] - np.cumsum(sizes) + sizes, sizes)
            rows, own = order[starts + np.arange(sizes.sum())], np.repeat(np.arange(count), sizes)
            found[name] = _varied(self.tables[name].take(rows), own + 1, factor[own], shift[own])
        ends = found["connections"]
        hosts = rng.integers(0, 1 << 24, count)
        for name, values in (
            ("raddr", [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in hosts.tolist()]),
            ("lport", rng.integers(32768, 61000, count)),
        ):
            ends = _with(ends, name, pyarrow.array(values))
        found["connections"] = ends
        return {name: _with(table, "segment_id", pyarrow.repeat(segment, table.num_rows))
                for name, table in found.items()}  # fmt: skip


def _keys(table: Any) -> list[str]:
    """The connection of each row."""
    both = zip(table["segment_id"].to_pylist(), table["conn_id"].to_pylist(), strict=True)
    return [f"{segment}:{number}" for segment, number in both]


def _with(table: Any, name: str, values: Any) -> Any:
    at = table.column_names.index(name)
    return table.set_column(at, table.schema.field(at), values)


def _varied(table: Any, numbers: Any, factor: Any, shift: Any) -> Any:
    """Each connection with its own factor of bytes and times, and its own begin."""
    for field in table.schema:
        name, kind = field.name, field.type
        if name == "conn_id":
            table = _with(table, name, pyarrow.array(numbers))
        elif name in ("start_ns", "end_ns"):
            table = _with(table, name, pyarrow.array(table[name].to_numpy() + shift))
        elif name == "start":
            moved = table[name].cast(pyarrow.int64()).to_numpy() + shift // 1000
            table = _with(table, name, pyarrow.array(moved).cast(kind))
        elif name.startswith(("bytes_", "us_")) or name.endswith(("_us", "_ns", "_bytes")):
            column = table[name].combine_chunks()
            values = column.fill_null(0).to_numpy(zero_copy_only=False) * factor
            kept = column.is_null().to_numpy(zero_copy_only=False)
            values = np.rint(values) if kind == pyarrow.int64() else values
            table = _with(table, name, pyarrow.array(values, mask=kept).cast(kind))
    return table


def measure(
    captures: tuple[Path, ...], folder: Path, hosts: int, connections: int, told: Any
) -> None:
    """Make a dataset and ask it; `told` gets what was measured. A process of its own."""
    os.nice(10)
    made = Templates(folder, captures)
    place = folder / str(hosts)
    store, rng = Store(str(place)), np.random.default_rng(1)
    wall = spent = 0.0
    for number in range(hosts):
        for day in DAYS:
            segment = f"{number:08x}{day.replace('-', '')}"
            tables = made.host(connections // len(DAYS), segment, rng)
            begin, cpu = time.perf_counter(), time.process_time()
            where = f"date={day}/host=h{number:04d}"
            store.parts(f"table=settings/{where}")
            for name, table in tables.items():
                store.write(f"table={name}/{where}/{segment}.parquet", table,
                            made.about | {"segments": [segment]})  # fmt: skip
            wall += time.perf_counter() - begin
            spent += time.process_time() - cpu
    size = sum(path.stat().st_size for path in place.rglob("*.parquet"))
    found: dict[str, Any] = {
        "hosts": hosts, "bytes": size / hosts / connections, "files": len(store.parts()),
        "write_ms": 1000 * wall / hosts, "write_cpu_ms": 1000 * spent / hosts,
        "write_mb": _peak(), "queries": {},
    }  # fmt: skip
    with opened("duckdb") as engine:
        ask(store, "unproven", engine)  # what is loaded once
        for name in QUERIES:
            if name in OF_CONNECTIONS and name not in made.tables:
                continue
            files, read = Files(store, engine), _read_bytes()
            begin, cpu = time.perf_counter(), time.process_time()
            ask(store, name, engine, connection=f"00000000{DAYS[0].replace('-', '')}:7",
                that="retrans_ratio < 1e-3", files=files)  # fmt: skip
            found["queries"][name] = {
                "s": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu,
                "files": sum(len(parts) for parts in files.touched.values()),
                "mb": (_read_bytes() - read) / 1e6, "peak_mb": _peak(),
            }  # fmt: skip
    shutil.rmtree(place)
    told.put(found | {"template": {
        "connections": made.count, "bytes": made.size / made.count, "cpu_s": made.spent,
        "s": made.wall}})  # fmt: skip


def _peak() -> float:
    """Largest memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _read_bytes() -> int:
    """What this process has read of files, from the page cache too."""
    words = Path("/proc/self/io").read_text(encoding="ascii").split()
    return int(words[words.index("rchar:") + 1])


def tables(runs: list[dict[str, Any]], connections: int) -> str:
    """The figures as two tables of Markdown."""
    heads = [f"{run['hosts']:,} hosts" for run in runs]
    rows = [
        ("bytes a connection", [f"{run['bytes']:,.0f}" for run in runs]),
        ("files", [f"{run['files']:,}" for run in runs]),
        ("writing, ms a host (CPU)",
         [f"{run['write_ms']:,.0f} ({run['write_cpu_ms']:,.0f})" for run in runs]),
        ("largest memory, writing, MB", [f"{run['write_mb']:,.0f}" for run in runs]),
        ("largest memory, asking, MB",
         [f"{max(one['peak_mb'] for one in run['queries'].values()):,.0f}" for run in runs]),
    ]  # fmt: skip
    text = rows_of([f"{connections:,} connections a host", *heads],
                   [[name, *cells] for name, cells in rows])  # fmt: skip
    text += ["", "Each cell: seconds (CPU seconds); files given to the engine; MB that it read."]
    questions = []
    for name in runs[0]["queries"]:
        asked = [run["queries"][name] for run in runs]
        questions.append([name, *(
            f"{one['s']:.1f} ({one['cpu_s']:.1f}); {one['files']:,}; {one['mb']:,.1f}"
            for one in asked
        )])  # fmt: skip
    return "\n".join([*text, "", *rows_of(["question", *heads], questions)])


def machine(runs: list[dict[str, Any]]) -> str:
    """On what it was measured, and what real captures need."""
    model = describe_machine()["cpu_model"]
    real = runs[-1]["template"]
    count = real["connections"]
    return (
        f"`python -m scripts.fleet CAPTURE... --docs` measured this on {model}, {os.cpu_count()} "
        f"CPUs, Linux\n{os.uname().release}, at the lowest priority while other work kept both "
        f"CPUs busy (load {os.getloadavg()[2]:.0f}): wall times are\nseveral times too long, CPU "
        f"times are what it costs. The real capture has {count:,} connections; adding it took\n"
        f"{1e6 * real['cpu_s'] / count:,.0f} us of CPU a connection and gave "
        f"{real['bytes']:,.0f} bytes a connection.\n\n"
    )


@click.command()
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--hosts", default="10,100,1000", show_default=True, help="Numbers of hosts.")
@click.option("--connections", default=10_000, show_default=True, help="Of each host.")
@click.option("--folder", default=Path("/tmp/tcpkmon-fleet"), type=click.Path(path_type=Path),
              help="It is emptied, and needs 5 MB a host.")
@click.option("--json", "kept", type=click.Path(path_type=Path), help="Keep the values there.")
@click.option("--read", is_flag=True, help="Take the values of --json, measure nothing.")
@click.option("--docs", is_flag=True, help="Write the figures of docs/fleet.md.")
def main(
    captures: tuple[Path, ...], hosts: str, connections: int, folder: Path, kept: Path | None,
    read: bool, docs: bool,
) -> None:  # fmt: skip
    """Measure datasets that are made of the connections of CAPTURE..."""
    runs: list[dict[str, Any]] = []
    if read and kept is not None:
        runs = json.loads(kept.read_text(encoding="utf-8"))
    else:
        fresh = multiprocessing.get_context("spawn")
        for size in (int(one) for one in hosts.split(",")):
            shutil.rmtree(folder, ignore_errors=True)
            told = fresh.SimpleQueue()
            child = fresh.Process(target=measure,
                                  args=(captures, folder, size, connections, told))  # fmt: skip
            child.start()
            child.join()
            if child.exitcode:
                raise click.ClickException(f"the run of {size} hosts failed")
            runs.append(told.get())
            if kept is not None:
                kept.write_text(json.dumps(runs, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
    text = machine(runs) + tables(runs, connections)
    click.echo(text)
    if docs:
        write_part(DOCS, "fleet.py", text)


if __name__ == "__main__":
    main()
