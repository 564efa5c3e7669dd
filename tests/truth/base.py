# SPDX-License-Identifier: Apache-2.0
"""What all of these share: tcpkmon's answers, and the machine in words."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from tcpkmon.collector.linux.machine import describe_machine
from tcpkmon.formats.base.errors import LossError, TcpkmonError

TCPKMON = Path(sys.executable).with_name("tcpkmon")
DOCS = Path(__file__).resolve().parents[2] / "docs"


def tell(*words: object) -> str:
    """What a command of tcpkmon prints, of a capture with losses too. TcpkmonError: it fails."""
    command = [str(TCPKMON), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, LossError.exit_code):
        raise TcpkmonError(f"tcpkmon {words[0]} ends with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def here() -> dict[str, str]:
    """Its cpu and kernel."""
    return {"cpu": describe_machine()["cpu_model"], "kernel": platform.release()}
