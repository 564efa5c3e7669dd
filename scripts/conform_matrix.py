# SPDX-License-Identifier: Apache-2.0
"""Which rules of `tcpkmon conform` this kernel's congestion controls keep: docs/conformance.md."""

from __future__ import annotations

import platform
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import numpy as np

from scripts.experiments.report import write_part
from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.pair import Pair, join, listening
from tcpkmon.collector.linux.machine import describe_machine
from tcpkmon.formats.analysis.conform import RULES, Verdicts, conform, why_unsure
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.registry import format_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "conformance.md"
SERVER = "10.77.0.2"
_BACK = Way(delay_ms=10)
Play = Callable[[Lab, Pair], None]


def bulk(lab: Lab, pair: Pair, seconds: float = 1.5) -> None:
    """As much as goes through in this time."""
    pair.client.settimeout(0.2)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(OSError):
            pair.client.send(bytes(1 << 16))


def outage(lab: Lab, pair: Pair) -> None:
    """For a second nothing arrives: the timer sends again and backs off."""
    bulk(lab, pair, 0.5)
    assert lab.wire is not None and lab.link is not None
    lab.wire.change(0, Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000, down=True))
    bulk(lab, pair, 1.2)
    lab.wire.change(0, lab.link.there)
    bulk(lab, pair, 1.5)


def pause(lab: Lab, pair: Pair) -> None:
    """Two bursts with a pause of many timeouts between them."""
    for _ in range(2):
        pair.client.sendall(bytes(400_000))
        time.sleep(1.5)


PATHS: dict[str, tuple[Way, Play]] = {
    "queue": (Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000), bulk),
    "loss": (Way(rate_mbit=20, delay_ms=10, loss_percent=2), bulk),
    "reordering": (Way(rate_mbit=20, delay_ms=10, reorder_percent=3, reorder_ms=5), bulk),
    "bursts of loss": (Way(rate_mbit=20, delay_ms=10, burst_percent=1, burst_packets=8), bulk),
    "outage": (Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000), outage),
    "pause": (Way(rate_mbit=100, delay_ms=10), pause),
}


def play(path: Path, name: str, algorithm: str, settings: dict[str, str] | None = None) -> Verdicts:
    """One transfer over the path of this name, captured into a file, and judged.

    settings: of net.ipv4, in the sender's namespace.
    """
    way, act = PATHS[name]
    with Lab(link=Link(way, _BACK)) as lab:
        for key, value in (settings or {}).items():
            lab.a.run(lambda key=key, value=value: Path("/proc/sys/net/ipv4", key)
                      .write_text(value))  # type: ignore[misc]  # fmt: skip
        options = ["--netns", lab.a.name, "--quiet", "--columns", "all", "--format", "psc"]
        with start(["tcp"], path, force=True, options=options, buffer_mb=32):
            with listening(lab.b, SERVER) as listener:
                chosen = (socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
                pair = join(lab.a, listener, SERVER, [chosen])  # type: ignore[list-item]
            reading = threading.Thread(target=_drain, args=(pair.server,), daemon=True)
            reading.start()
            with suppress(OSError):
                act(lab, pair)
            pair.close()
            reading.join(5)
    with Source(path) as source:
        return conform(source, why_unsure(format_of(path).verify(path)))


def _drain(server: socket.socket) -> None:
    with suppress(OSError):
        while server.recv(1 << 16):
            pass


def rules_table() -> str:
    """The rules, with their sentences and what Linux does otherwise, for the page."""
    rows = (
        f"| `{rule.name}` | {rule.rfc} | {rule.quote} | {rule.deviations} |" for rule in RULES
    )
    head = "| rule | of | sentence | Linux |\n| --- | --- | --- | --- |"
    return "\n".join((head, *(row.replace("<-", "\\<-") for row in rows)))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--docs", is_flag=True, help="Write the matrix into docs/conformance.md.")
@click.option("--only", default="", metavar="NAME", help="This congestion control alone.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Keep the captures here.")
def command(docs: bool, only: str, keep: Path | None) -> int:
    """Play transfers with each congestion control, and count which rules they keep."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    counts = {}
    with tempfile.TemporaryDirectory() as made:
        folder = keep or Path(made)
        folder.mkdir(exist_ok=True)
        for algorithm in (one for one in sorted(known) if only in one):
            tally = np.zeros((len(RULES), 3), np.int64)
            for name in PATHS:
                file = folder / f"{algorithm}-{name.replace(' ', '-')}.pm"
                found = play(file, name, algorithm)
                tally += sum(found.counts.values())
                untellable = found.untellable
                for one in found.breaks:
                    click.echo(f"{algorithm}, {name}: {one.rule.name}: {one}")
            counts[algorithm] = tally
    machine = f"{platform.release()}, {describe_machine()['cpu_model']}"
    lines = [f"Kernel {machine}; kept / broken / cannot tell:", "",
             f"| rule | {' | '.join(counts)} |", f"| --- |{' ---: |' * len(counts)}"]  # fmt: skip
    for at, rule in enumerate(RULES):
        cells = [" / ".join(f"{n:,}" for n in tally[at].tolist()) for tally in counts.values()]
        if rule.name in untellable:
            cells = [untellable[rule.name]] * len(counts)
        lines.append(f"| `{rule.name}` | {' | '.join(cells)} |")
    text = "\n".join(lines)
    if docs:
        write_part(PAGE, "conform-rules", rules_table())
        write_part(PAGE, "conform-matrix", text)
    click.echo(text)
    return 0


def main() -> None:
    """The entry point of the script."""
    sys.exit(run(command, prog="conform"))
