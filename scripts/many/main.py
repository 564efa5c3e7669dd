# SPDX-License-Identifier: Apache-2.0
"""The command scripts/many-connections: measures, prints, and writes docs/many.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from scripts.experiments import running
from scripts.experiments.context import BIN, ROOT
from scripts.experiments.report import rows_of, write_whole
from scripts.experiments.results import Results
from scripts.many import live
from scripts.many.simulated import EACH, TICK_S, Figures, Simulation
from tcpkmon.collector.loader.prepare import check_privilege

PAGE = ROOT / "docs" / "many.md"
ROTATE_S = 5.0
READERS = {
    "tcpkmon verify": ("verify",), "tcpkmon why": ("why",), "tcpkmon why --json": ("why", "--json"),
    "tcpkmon connections -o x.parquet": ("connections",),
}  # fmt: skip
_TEXT = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `sudo scripts/many-connections --docs`: change scripts/many, not this page. -->
# Many connections

`collect --connections N` says how many connections have an identity at a time: 131,072 without
it. Records of further ones are lost, and counted as "table full". Above the default the collector's
own tables grow with it: what `top`, metrics and `--reconcile` know, and what a new file of a
rotation repeats. Memory a connection:

{memory}

Measured {date} on {cpu}, {cpus} CPUs, Linux {kernel}. Load average {load} when it began:
above 0.3, other work was there.

## Real connections

{ends:,} sockets, the two ends of {pairs:,} connections, in two namespaces of this machine, opened
within {opened:.0f} s. The capture: `--connections {table} --reconcile --metrics
--rotate-every 15s --buffer-size 64`.

{real}

{notes}

## Simulated: {opened_sim:,} open, {new:,} new ones a second

Two CPUs cannot open so many a second: here records of such connections go through all that
`collect` does behind the rings (order, count, tables, rotation, file), and the file through the
commands. {new:,} come and as many end each second, with {each} records each: {rate:,} records a
second for {seconds:.0f} s.

{simulated}

{readers}

Seconds of the reading thread are seconds in which the rings are not drained: a ring of 4 MiB holds
19,000 records of the default columns. So with a million connections take `--buffer-size 64`, and
rotate seldom.
"""


@click.command("many-connections", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--real", default=1_000_000, show_default=True, help="Sockets to open; 0: none.")
@click.option("--open", "opened", default=1_000_000, show_default=True,
              help="Connections that are open in the simulation.")
@click.option("--new", default=50_000, show_default=True, help="New ones a second.")
@click.option("--seconds", default=10.0, show_default=True, help="Simulated.")
@click.option("--docs", is_flag=True, help="Write docs/many.md.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False),
              help="Where files go.  [default: /var/tmp]")
def command(
    real: int, opened: int, new: int, seconds: float, docs: bool, folder: str | None
) -> int:
    """Open, simulate, measure. As root."""
    check_privilege()
    load = os.getloadavg()[0]
    results = Results(rounds=1)
    with running.context_of(results, folder, ["cc"]) as context:
        found = live.measure(context, real) if real else None
        path = context.folder / "simulated"
        figures = _simulate(path, opened, new, seconds)
        context.say("many: simulated")
        size = sum(one.stat().st_size for one in path.iterdir())
        first = str(sorted(path.glob("*.pm"))[0])
        readers = {name: timed([*words, first]) for name, words in READERS.items()}
    told = {"real": asdict(found) if found else None, "simulated": asdict(figures),
            "readers": readers, "bytes": size}  # fmt: skip
    print(json.dumps(told, indent=1))
    if docs and found is not None:
        write_whole(PAGE, _page(results, load, found, figures, readers, opened, new))
        print(f"many-connections: written: {PAGE}", file=sys.stderr)
    return 0


def _simulate(path: Path, opened: int, new: int, seconds: float) -> Figures:
    simulation = Simulation(path, opened, 1 << (opened + opened // 20).bit_length())
    simulation.open()
    simulation.run(seconds, new, ROTATE_S)
    simulation.ask()
    return simulation.close()


_MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""A small process of its own: a child's ru_maxrss begins with what its parent has."""


def timed(words: list[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak MiB of a command of tcpkmon."""
    argv = [str(BIN / "tcpkmon"), *words]
    if words[0] == "connections":
        argv += ["-o", str(Path(words[-1]).with_suffix(".parquet")), "--force"]
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _MEASURE, *argv],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)  # fmt: skip
    code, cpu_s, peak_kib = map(float, done.stdout.split())
    if code:
        raise RuntimeError(f"{' '.join(argv)} failed")
    return time.monotonic() - begun, cpu_s, peak_kib / 1024


def _page(
    results: Results, load: float, real: live.Live, sim: Figures,
    readers: dict[str, tuple[float, float, float]], opened: int, new: int,
) -> str:  # fmt: skip
    machine = results.machine
    table = 1 << (real.ends + real.ends // 20).bit_length()
    memory = [
        ("the kernel's table of identities, allocated at the start", "",
         f"{real.table_bytes / table:.0f} bytes"),
        ("the collector: top, metrics, reconcile, repeated states, as connections come", "",
         f"{sim.grown_mib * 2**20 / opened:.0f} bytes"),
        ("the whole process that captured the real sockets below, at most", "",
         f"{real.resident_mib * 2**20 / real.ends:.0f} bytes"),
    ]  # fmt: skip
    rows = [
        ("first record to ready", f"{real.ready_s:.1f} s"),
        ("round trips a second without, with", f"{real.trips[0]:,.0f}, {real.trips[1]:,.0f}"),
        ("one question of top; of metrics", f"{real.top_s:.2f} s; {real.metrics_s:.2f} s"),
        ("connections that metrics knows", f"{real.counted:,}"),
        ("memory of the capture's process at most", f"{real.resident_mib:,.0f} MiB"),
        ("files; records lost; proven", f"{real.segments}; {real.lost:,}; "
         + ("yes" if real.proven else "**no**")),
    ]  # fmt: skip
    simulated = [
        ("reading thread, CPU a second of records", f"{sim.cpu_s / sim.seconds:.2f} s"),
        ("... a record", f"{1e6 * sim.cpu_s / (sim.records - opened):.2f} us"),
        (f"... at most for {TICK_S} s of records", f"{sim.longest_tick_s:.3f} s"),
        ("... a rotation", ", ".join(f"{one:.2f}" for one in sim.rotation_s) + " s"),
        *((f"... top, {name}", f"{took:.2f} s") for name, took in sim.top_s.items()),
        ("... metrics", f"{sim.metrics_s:.3f} s"),
    ]  # fmt: skip
    return _TEXT.format(
        memory="\n".join(rows_of(("what", "", "a connection"), memory)), date=machine["date"],
        cpu=machine["CPU model"], cpus=os.cpu_count(), kernel=os.uname().release,
        load=f"{load:.2f}", ends=real.ends, pairs=real.ends // 2, opened=real.opened_s,
        table=table, real="\n".join(rows_of(("", "measured"), rows)),
        notes="\n".join(f"- {note}" for note in (*real.repeated, *real.reconciled)),
        opened_sim=opened, new=new, each=EACH, rate=new * EACH, seconds=sim.seconds,
        simulated="\n".join(rows_of(("", "measured"), simulated)),
        readers="\n".join(rows_of(
            (f"first file, {opened + round(new * ROTATE_S):,} connections", "seconds", "of CPU",
             "MiB at most"),
            [(name, *(f"{one:.1f}" for one in took[:2]), f"{took[2]:,.0f}")
             for name, took in readers.items()],
        )),
    )  # fmt: skip
