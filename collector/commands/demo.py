# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon demo: makes transfers, captures them and shows them."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console


@click.command("demo")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    default=Path("tcpkmon-demo"),
    show_default=True,
    help="The folder for the capture and the picture.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 600),
    metavar="N",
    default=6.0,
    show_default=True,
    help="How long the transfers take.",
)
def command(output: Path, seconds: float) -> None:
    """Make TCP transfers, capture them and show them; needs root.

    It makes two network namespaces with a bottleneck between them, captures one transfer for each
    congestion control (reno, cubic, bbr), prints a table and a plot, and draws a picture. The
    namespaces are removed at the end, also after Ctrl-C.
    """
    from tcpkmon.collector.commands.demo_record import draw, prepare_folder, record
    from tcpkmon.collector.commands.demo_report import print_next, print_summary

    progress, out = Console(stderr=True, highlight=False), Console(highlight=False)
    with prepare_folder(output):
        recording = record(output, seconds, progress)
        print_summary(out, recording)
        draw(recording, progress)
        print_next(out, recording, Path(sys.executable).parent)
