# SPDX-License-Identifier: Apache-2.0
"""Reads the configuration in a process of its own: it imports much, and may hold anything."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tcpkmon.collector.daemon.requests import Refused
from tcpkmon.collector.linux import isolated

READ_S = 60.0


def read_plan(config: Path) -> dict[str, Any]:
    """The configuration; see collector/daemon/checking.py. Refused with its mistakes."""
    try:
        done = subprocess.run(
            isolated.command("tcpkmon.collector.daemon.checking", os.fspath(config)),
            check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=READ_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Refused([f"the configuration could not be read within {READ_S:g} s"], 1) from error
    except OSError as error:
        raise Refused([f"the configuration could not be read: {error.strerror}"], 1) from error
    if done.returncode:
        lines = [line.removeprefix("tcpkmon daemon: ") for line in done.stderr.splitlines()]
        raise Refused(lines or ["the configuration could not be read"], done.returncode)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan
