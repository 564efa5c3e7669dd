# SPDX-License-Identifier: Apache-2.0
"""Runs one of COMMANDS: sudo scripts/test --truth why --help."""

from __future__ import annotations

import importlib
import sys

from tcpkmon.formats.base.cli import run

COMMANDS = {
    # Transfers with each congestion control over a test link, and which rules they keep.
    "conform": "tests.truth.conform.matrix",
    # tcpkmon requests beside what redis and clients log themselves.
    "requests": "tests.truth.requests.main",
    # The daemon under changing load while it is reloaded, killed and short of disk.
    "soak": "tests.truth.soak.main",
    # How often tcpkmon why finds the limit of connections whose limit was made.
    "why": "tests.truth.why.main",
}

if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        sys.exit(f"scripts/test: --truth takes one of {', '.join(COMMANDS)}")
    command = importlib.import_module(COMMANDS[name]).command
    sys.exit(run(command, sys.argv[2:], prog=f"scripts/test --truth {name}"))
