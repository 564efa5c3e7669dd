# SPDX-License-Identifier: Apache-2.0
"""The command scripts/test --truth soak."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import click

from tcpkmon.collector.linux.syscalls import call_libc
from tests.truth.soak.soak import Soak

CLONE_NEWNS = 0x20000


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=click.FloatRange(0.5), default=30.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the choices by chance.")
def command(minutes: float, seed: int) -> int:
    """Run the daemon under changing load, reload it, kill it and fill its disk; then add up.

    Exit code 1 if a call is neither in a file nor counted as lost, or something leaks.
    """
    os.umask(0o077)
    call_libc("unshare", CLONE_NEWNS)  # the disk that it fills is nobody else's
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    with tempfile.TemporaryDirectory(prefix="tcpkmon-soak-") as folder:
        problems = Soak(Path(folder), minutes * 60, seed, say=click.echo).run()
    return 1 if problems else 0
