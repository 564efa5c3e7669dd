# SPDX-License-Identifier: Apache-2.0
"""Brings a script that measures into the environment .venv; runs with any Python."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")


def enter(script: str) -> None:
    """Runs scripts/setup, then the script again with the Python of .venv; returns there.

    Without root it ends with a message, except for --help and --read.
    """
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV):
        return
    name = os.path.basename(script)
    helping = {"-h", "--help"} & set(sys.argv[1:])
    if not helping and os.geteuid() != 0 and "--read" not in sys.argv[1:]:
        sys.exit(f"{name}: measuring needs root; run: sudo scripts/{name}")
    if not (helping and os.path.exists(PYTHON)):
        setup = subprocess.run(
            ["bash", os.path.join(ROOT, "scripts", "setup")], stdin=subprocess.DEVNULL, check=False
        )
        if setup.returncode:
            sys.exit(setup.returncode)
    # -I: no module may come from the current folder.
    os.execv(PYTHON, [PYTHON, "-I", os.path.realpath(script), *sys.argv[1:]])
