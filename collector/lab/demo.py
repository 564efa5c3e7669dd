# SPDX-License-Identifier: Apache-2.0
"""scripts/demo: captures transfers of its own through a bottleneck and shows them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from collector.lab import traffic
from collector.lab.demo_report import print_next, print_plot, print_table, read_flows
from collector.lab.endpoint import can_use_congestion
from collector.lab.lab import Bottleneck, Lab
from collector.lab.traffic import Workload
from formats.base import cli
from formats.base.errors import TcpkmonError

FIRST_PORT = 5001
BOTTLENECK = Bottleneck(rate_mbit=20, queue_bytes=120_000, loss_percent=0.04, delay_ms=10)
ALGORITHMS = ("reno", "cubic", "bbr")
START_S = 300.0  # compiling takes long on a slow machine
STOP_S = 120.0
_BIN = Path(sys.executable).parent


class Recorder:
    """`collect` as a user would run it, around the demo's traffic."""

    def __init__(self, options: Sequence[str], log: IO[str]) -> None:
        self._log = log
        self._ready, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [str(_BIN / "collect"), *options, "-q", "--ready-fd", str(theirs)],
                pass_fds=(theirs,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        finally:
            os.close(theirs)

    def await_attached(self) -> None:
        """Returns when every probe is attached."""
        readable, _, _ = select.select([self._ready], [], [], START_S)
        if not readable or not os.read(self._ready, 1):
            self._complain("did not start")

    def finish(self) -> None:
        """Lets it drain its buffers and close the file."""
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._complain("did not finish")
        if code:
            self._complain(f"ended with {code}")

    def close(self) -> None:
        """Ends it, if something went wrong before finish()."""
        os.close(self._ready)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _complain(self, what: str) -> None:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        raise TcpkmonError(f"collect {what}: {lines[-1] if lines else 'it said nothing'}")


@contextmanager
def _stage(console: Console, text: str, seconds: float | None = None) -> Iterator[Progress]:
    """Shows that something goes on; with `seconds`, how far it is."""
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
    """For each port what goes there: one transfer for each algorithm that the kernel has."""
    names = [name for name in ALGORITHMS if lab.a.run(partial(can_use_congestion, name))]
    flows = {}
    for port, name in enumerate(names or [""], start=FIRST_PORT):
        # One of them over IPv6, because there it is no different.
        server = lab.b.address6 if name == "cubic" else lab.b.address4
        flows[port] = Workload(server, port=port, duration_s=seconds, congestion=name)
    return flows


def _transfer(lab: Lab, flows: dict[int, Workload], console: Console, seconds: float) -> None:
    with ExitStack() as stack:
        exchanges = []
        for workload in flows.values():
            exchange = traffic.start(workload, lab.a.namespace.fd, lab.b.namespace.fd)
            stack.callback(exchange.stop)
            exchanges.append(exchange)
        text = f"{len(flows)} transfers through {BOTTLENECK.rate_mbit:g} Mbit/s"
        with _stage(console, text, seconds) as progress:
            start = time.monotonic()
            for exchange in exchanges:
                exchange.go()
            # The wait is for the clients; the bar is only painted meanwhile.
            while any(exchange.client.poll() is None for exchange in exchanges):
                spent = time.monotonic() - start
                progress.update(progress.task_ids[0], completed=min(spent, seconds))
                if spent > seconds + traffic.TIMEOUT_S:
                    break
                _pause(exchanges[0], 0.1)
        for exchange in exchanges:
            exchange.finish()


def _pause(exchange: traffic.Exchange, most_s: float) -> None:
    try:
        exchange.client.wait(most_s)
    except subprocess.TimeoutExpired:
        return
    time.sleep(most_s)  # that one is done; the others soon are


def _draw(capture: Path, connections: Sequence[str], picture: Path) -> None:
    """pmgraph as a user would run it."""
    chosen = [word for connection in connections for word in ("-p", connection)]
    picture.unlink(missing_ok=True)
    done = subprocess.run(
        [str(_BIN / "pmgraph"), str(capture), "-P", *chosen, "-c", "-o", str(picture)],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise TcpkmonError(f"pmgraph failed: {done.stderr.strip()}")


def _give_to_caller(*paths: Path) -> None:
    """Under sudo, what was made belongs to who called it."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid.isdecimal() and gid.isdecimal():
        for path in paths:
            os.chown(path, int(uid), int(gid), follow_symlinks=False)


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tcpkmon-demo"),
    show_default=True,
    help="The folder for the capture and the picture.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 600),
    default=6.0,
    show_default=True,
    help="How long the transfers take.",
)
def demo(output: Path, seconds: float) -> int:
    """Captures TCP transfers between two network namespaces and shows them.

    Everything happens in namespaces that are removed at the end, also on Ctrl-C.
    """
    console = Console(stderr=True, highlight=False)
    output.mkdir(exist_ok=True, parents=True)
    capture, picture = output / "demo.pm", output / "demo.png"
    with ExitStack() as stack:
        with _stage(console, "two network namespaces and a bottleneck"):
            lab = stack.enter_context(Lab(BOTTLENECK))
        flows = _choose_flows(lab, seconds)
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        wanted = f"{min(flows)}-{max(flows)}"
        options = ["--ports", wanted, "--netns", lab.a.name, "-o", str(capture), "--force"]
        with _stage(console, "collect: compiling and attaching"):
            recorder = Recorder(options, log)
            stack.callback(recorder.close)
            recorder.await_attached()
        _transfer(lab, flows, console, seconds)
        with _stage(console, "collect: finishing the file"):
            recorder.finish()
        dropped = lab.dropped()
    names = {port: workload.congestion for port, workload in flows.items()}
    with _stage(console, "pmgraph: drawing"):
        found = read_flows(capture, names)
        ports = [flow.ports for flow in found]
        _draw(capture, ports, picture)
    _give_to_caller(output, capture, picture)
    told = Console(highlight=False)
    print_table(told, capture, found, dropped)
    print_plot(told, capture, ports)
    print_next(told, capture, picture, found, _BIN)
    return 0


def main() -> None:
    """The entry point of `python -m collector.lab.demo`."""
    sys.exit(cli.run(demo, prog="demo"))


if __name__ == "__main__":
    main()
