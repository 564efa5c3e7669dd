# SPDX-License-Identifier: Apache-2.0
"""The command scripts/host-experiments, inside the environment."""

from __future__ import annotations

import sys

from formats.base.cli import run as run_command
from scripts.experiments.command import make_command
from scripts.host.page import PAPER

command = make_command(
    PAPER,
    """Run the experiments of the event monitor of 1987 and of HP-UX's measurement system of 1988.

    On a machine that does nothing else, as root. Exits with 1 if an experiment failed to run.
    """,
    "U1 and H8",
    "in two minutes",
)


def main() -> None:
    """The entry point of scripts/host-experiments."""
    sys.exit(run_command(command))
