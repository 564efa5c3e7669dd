# SPDX-License-Identifier: Apache-2.0
"""The demo: transfers through a bottleneck, a capture of them, and a picture.

record() makes the lab, the traffic and the capture; demo_report prints; draw() makes the picture.
`collect` and `pmgraph` run as processes, as a user runs them.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tcpkmon.collector.capturing import launch
from tcpkmon.collector.commands.demo_report import Recording, read_flows
from tcpkmon.collector.lab import traffic
from tcpkmon.collector.lab.endpoint import can_use_congestion
from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.traffic import Workload
from tcpkmon.collector.linux import isolated
from tcpkmon.collector.linux.machine import read_sudo
from tcpkmon.collector.linux.privileges import check_root
from tcpkmon.formats.base.errors import TcpkmonError

FIRST_PORT = 5001
BOTTLENECK = Bottleneck(rate_mbit=20, queue_bytes=120_000, loss_percent=0.04, delay_ms=10)
ALGORITHMS = ("reno", "cubic", "bbr")
START_S = 300.0
"""A slow machine needs minutes to compile."""
STOP_S = 120.0
CAPTURE, PICTURE = "demo.pm", "demo.png"


@contextmanager
def prepare_folder(folder: Path) -> Iterator[None]:
    """Make the folder, and remove an old picture from it.

    Under sudo, the caller owns the new files at the end of the `with`.
    Errors: PrivilegeError without root, OSError when the folder cannot be made.
    """
    check_root("the demo")
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PICTURE).unlink(missing_ok=True)
    try:
        yield
    finally:
        _give_to_caller(*new, folder / CAPTURE, folder / PICTURE)


def record(folder: Path, seconds: float, console: Console) -> Recording:
    """Capture transfers of so many seconds into `folder`; the console shows the progress.

    The namespaces are removed at the end, also after an error.
    TcpkmonError when the lab, the traffic or `collect` fails.
    """
    capture = folder / CAPTURE
    with ExitStack() as stack:
        with _stage(console, "two network namespaces and a bottleneck"):
            lab = stack.enter_context(Lab(BOTTLENECK))
        flows = _choose_flows(lab, seconds)
        ports = f"{min(flows)}-{max(flows)}"
        options = ["--ports", ports, "--netns", lab.a.name, "-o", str(capture), "--force", "-q"]
        options += ["--columns", "default,bytes_acked"]
        with _stage(console, "collect: compiling and attaching"):
            running = stack.enter_context(launch(options, capture, within_s=START_S))
        _transfer(lab, flows, console, seconds)
        with _stage(console, "collect: finishing the file"):
            running.stop(STOP_S)
        dropped = lab.dropped()
    names = {port: workload.congestion for port, workload in flows.items()}
    return Recording(capture, folder / PICTURE, read_flows(capture, names), dropped)


def draw(recording: Recording, console: Console) -> None:
    """Draw the congestion windows with `pmgraph`. TcpkmonError when that fails."""
    chosen = [word for ports in recording.ports for word in ("-p", ports)]
    words = [str(recording.capture), "-P", *chosen, "-c", "-o", str(recording.picture)]
    with _stage(console, "pmgraph: drawing"):
        done = subprocess.run(
            isolated.command("tcpkmon.formats.commands.pmgraph", *words),
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    if done.returncode:
        raise TcpkmonError(f"the picture could not be drawn: {done.stderr.strip()}")


@contextmanager
def _stage(console: Console, text: str, seconds: float | None = None) -> Iterator[Progress]:
    """Show a stage on the console; with `seconds`, with a bar of its progress."""
    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    if seconds is not None:
        columns.insert(2, BarColumn(bar_width=30))
    if not console.is_terminal:
        console.print(f"{text} ...")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        progress.add_task(text, total=seconds)
        yield progress
        for task in progress.tasks:
            progress.update(task.id, total=1.0, completed=1.0)


def _choose_flows(lab: Lab, seconds: float) -> dict[int, Workload]:
    """The transfers by port: one for each congestion control that the kernel has."""
    names = [name for name in ALGORITHMS if lab.a.run(partial(can_use_congestion, name))]
    flows = {}
    for port, name in enumerate(names or [""], start=FIRST_PORT):
        # One transfer is over IPv6.
        server = lab.b.address6 if name == "cubic" else lab.b.address4
        flows[port] = Workload(server, port=port, duration_s=seconds, congestion=name)
    return flows


def _transfer(lab: Lab, flows: dict[int, Workload], console: Console, seconds: float) -> None:
    with ExitStack() as stack:
        exchanges = []
        for workload in flows.values():
            exchange = traffic.Exchange(workload, lab.a.namespace.fd, lab.b.namespace.fd)
            stack.callback(exchange.stop)
            exchanges.append(exchange)
        text = f"{len(flows)} transfers through {BOTTLENECK.rate_mbit:g} Mbit/s"
        with _stage(console, text, seconds) as progress:
            start = time.monotonic()
            for exchange in exchanges:
                exchange.go()
            spent_s = 0.0
            while spent_s < seconds + traffic.TIMEOUT_S and any(e.is_running for e in exchanges):
                time.sleep(0.1)
                spent_s = time.monotonic() - start
                progress.update(progress.task_ids[0], completed=min(spent_s, seconds))
        for exchange in exchanges:
            exchange.finish()


def _give_to_caller(*paths: Path) -> None:
    """Under sudo, give these files to the user who called it."""
    with suppress(ValueError):
        if (caller := read_sudo()) is not None:
            uid, gid = caller
            for path in paths:
                with suppress(FileNotFoundError):
                    os.chown(path, uid, -1 if gid is None else gid, follow_symlinks=False)
