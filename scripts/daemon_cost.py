# SPDX-License-Identifier: Apache-2.0
"""What `tcpkmon daemon` with one capture costs at rest and at paced rates of records.

    load: this many short messages a second over loopback, by 8 connections
    daemon -> a process for the capture, and its helpers      CPU time and memory by /proc
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scripts.experiments.report import write_part
from scripts.experiments.tools import cpu_seconds
from scripts.markdown_table import table
from tcpkmon.collector.linux.machine import describe_machine
from tcpkmon.collector.loader.prepare import check_privilege

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "daemon.md"
RATES = (0, 1_000, 100_000)
SETTLE_S, TICK_S, LATE_S = 4.0, 0.002, 0.05
"""LATE_S: what the load is late it makes good, up to this time."""
PARTS = ("capture", "supervisor", "helpers")
CONNECTIONS = 8
CONFIG = """
[capture.cost]
ports = [{port}]
output = "{folder}/out"
[capture.cost.rotation]
size = "64M"
keep_files = 2
"""
BUSY = 0.3
"""A load average from which on other work is told."""


@dataclass(frozen=True)
class Row:
    """What was measured at one rate, over some seconds."""

    wanted: int
    records: float
    lost: int
    cpu: dict[str, float]
    """By part: CPU time in % of one CPU."""
    memory_mib: dict[str, tuple[float, float]]
    """By part: resident memory (RSS), and with each process's share of what several use (PSS)."""


def load(rate: Any, port: Any) -> None:
    """Send `rate` messages of a byte a second, evenly; until it is killed."""
    pairs = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port.value = listener.getsockname()[1]
        for _ in range(CONNECTIONS):
            client = socket.create_connection(listener.getsockname())
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pairs.append((client, listener.accept()[0]))
    due, before_s = 0.0, time.monotonic()
    while True:
        time.sleep(TICK_S)
        now_s = time.monotonic()
        due += rate.value * min(now_s - before_s, LATE_S)
        before_s, count = now_s, int(due)
        due -= count
        for number, (client, server) in enumerate(pairs):
            mine = count // CONNECTIONS + (number < count % CONNECTIONS)
            for _ in range(mine):
                client.send(b"x")
            while mine:
                mine -= len(server.recv(mine))


def descendants(pid: int) -> Iterator[int]:
    """This process and all that it started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from descendants(int(child))


def part_of(pid: int, daemon: int, capture: int) -> str:
    return {daemon: "supervisor", capture: "capture"}.get(pid, "helpers")


def memory_mib(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.M))
    return int(found["Rss"]) / 1024, int(found["Pss"]) / 1024


@contextmanager
def running(folder: Path, port: int) -> Iterator[tuple[int, dict[str, str]]]:
    """The daemon with a capture of this port; its process, and the environment of its commands."""
    config = folder / "tcpkmon.toml"
    config.write_text(CONFIG.format(port=port, folder=folder))
    environment = {**os.environ, "TCPKMON_RUN": str(folder / "run")}
    notify = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(os.fspath(notify))
        told.settimeout(120)
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("tcpkmon")), "daemon", "--config", str(config)],
            env={**environment, "NOTIFY_SOCKET": str(notify)}, cwd=ROOT,
        )  # fmt: skip
        try:
            while b"READY=1" not in told.recv(4096):
                pass
            told.close()
            yield process.pid, environment
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def status(environment: dict[str, str]) -> dict[str, Any]:
    """That of the capture."""
    command = [str(Path(sys.executable).with_name("tcpkmon")), "status", "--json"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(
    wanted: int, rate: Any, daemon: int, environment: dict[str, str], seconds: float
) -> Row:
    """Pace the load so that this many records a second come, and measure."""
    rate.value = wanted / 1.5
    for _ in range(3 if wanted else 1):  # a message makes 1 to 2 records
        before, at_s = status(environment), time.monotonic()
        time.sleep(SETTLE_S / 2)
        after = status(environment)
        came = (after["records"] - before["records"]) / (time.monotonic() - at_s)
        if wanted and came:
            rate.value *= min(2.0, wanted / came)
    time.sleep(SETTLE_S / 2)
    capture = int(status(environment)["pid"])
    before, at_s = status(environment), time.monotonic()
    spent = {pid: cpu_seconds(pid) for pid in descendants(daemon)}
    time.sleep(seconds)
    parts = {pid: part_of(pid, daemon, capture) for pid in descendants(daemon)}
    now = {pid: cpu_seconds(pid) for pid in parts}
    took_s = time.monotonic() - at_s
    after = status(environment)
    cpu, memory = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, (0.0, 0.0))
    for pid, part in parts.items():
        cpu[part] += 100 * (now[pid] - spent.get(pid, 0.0)) / took_s
        resident, share = memory_mib(pid)
        memory[part] = memory[part][0] + resident, memory[part][1] + share
    lost = sum(after["lost"].values()) - sum(before["lost"].values())
    return Row(wanted, (after["records"] - before["records"]) / took_s, lost, cpu, memory)


def as_text(rows: Sequence[Row], seconds: float, load_before: float) -> str:
    """The part of the page."""
    model = describe_machine()["cpu_model"]
    shared = ""
    if load_before > BUSY:
        shared = f" The machine did other work meanwhile (load average {load_before:.1f} before)."
    lines = [
        f"`sudo scripts/daemon-cost --docs` measured this on {model}, {os.cpu_count()} CPUs, Linux "
        f"{platform.release()}: a capture with",
        "the default columns into segments of 64 MiB on the disk, "
        f"{seconds:.0f} s a row, paced short messages over loopback.{shared}",
        "What the programs take in the kernel is time of the traffic's own processes "
        "([benchmark.md](benchmark.md)).",
        "CPU time is in % of one CPU; memory is what is resident, and with the process's share of "
        "what several use (RSS / PSS).", "",
        *table(("records/s", "lost", "CPU: capture", *PARTS[1:], "memory: capture", *PARTS[1:]), [
            [f"{row.records:,.0f}", f"{row.lost:,}",
             *(f"{row.cpu[part]:.1f} %" for part in PARTS),
             *("{:.0f} / {:.0f} MiB".format(*row.memory_mib[part]) for part in PARTS)]
            for row in rows
        ]),
    ]  # fmt: skip
    return "\n".join(lines)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--docs", is_flag=True, help="Write the table of docs/daemon.md.")
@click.option("--seconds", default=12.0, show_default=True, help="Of each row.")
def command(docs: bool, seconds: float) -> None:
    """Measure CPU time and memory of the daemon at several rates of records, in 90 seconds."""
    check_privilege()
    load_before = os.getloadavg()[0]
    rate, port = multiprocessing.Value("d", 0.0), multiprocessing.Value("i", 0)
    sender = multiprocessing.Process(target=load, args=(rate, port), daemon=True)
    sender.start()
    while not port.value:
        time.sleep(0.01)
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="tcpkmon-cost-", dir="/var/tmp") as made,
        running(Path(made), port.value) as (daemon, environment),
    ):
        for wanted in RATES:
            rows.append(measure(wanted, rate, daemon, environment, seconds))
            print(rows[-1], file=sys.stderr)
    sender.terminate()
    text = as_text(rows, seconds, load_before)
    print(text)
    if docs:
        write_part(PAGE, "daemon-cost", text)
