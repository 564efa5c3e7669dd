# SPDX-License-Identifier: Apache-2.0
"""The command scripts/magnet-experiments, inside the environment."""

from __future__ import annotations

import sys

from scripts.experiments.command import make_command
from scripts.magnet.page import PAPER
from tcpkmon.formats.base.cli import run as run_command

command = make_command(
    PAPER,
    """Run the experiments of MAGNeT's paper of 2001, on a machine that does nothing else.

    Two network namespaces are both ends; as root. Exits with 1 if an experiment failed to run.
    """,
    "M1, M3 and M4",
    "in two minutes",
)


def main() -> None:
    """The entry point of scripts/magnet-experiments."""
    sys.exit(run_command(command))
