# SPDX-License-Identifier: Apache-2.0
"""The command scripts/host-experiments, inside the environment."""

from __future__ import annotations

import sys

import click

from scripts.experiments.command import make_command
from scripts.host import session
from scripts.host.page import PAPER
from tcpkmon.formats.base.cli import run as run_command


def set_session(_context: click.Context, _option: click.Parameter, seconds: float | None) -> None:
    if seconds is not None:
        session.SECONDS = session.QUICK_SECONDS = seconds


command = make_command(
    PAPER,
    """Run the experiments of the event monitor of 1987 and of HP-UX's measurement system of 1988.

    On a machine that does nothing else, as root. Exits with 1 if an experiment failed to run.
    """,
    "U1 and H8",
    "in five minutes",
    click.Option(
        ["--session"], type=click.FloatRange(10, 3600), metavar="SECONDS", expose_value=False,
        callback=set_session,
        help=f"Length of the session of U2 and H10.  [default: {session.SECONDS:.0f}]",
    ),
)  # fmt: skip


def main() -> None:
    """The entry point of scripts/host-experiments."""
    sys.exit(run_command(command))
