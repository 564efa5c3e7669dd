# SPDX-License-Identifier: Apache-2.0
"""Runs a script with experiments, in small sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts.experiments.paper import Experiment
from tests.live.capturing import ROOT


def run_script(name: str, folder: Path, experiments: Mapping[str, Experiment]) -> None:
    """scripts/NAME --quick ends well, prints each experiment, and keeps its results."""
    saved = folder / "results.json"
    words = [str(ROOT / "scripts" / name), "--quick", "--json", str(saved)]
    done = subprocess.run(
        [sys.executable, "-I", *words, "--folder", str(folder)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(saved.read_text())["quick"] is True
    for one in experiments.values():
        assert one.title in done.stdout
