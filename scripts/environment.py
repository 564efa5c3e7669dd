#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one of SCRIPTS: that whose name the link has by which this file is called.

    sudo scripts/bench --help

It runs scripts/setup, then itself with the Python of .venv, and there the module's command.
"""

import importlib
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
SCRIPTS = {
    # What tcpkmon costs beside perf, bpftrace and tcpdump; which of two trees is slower.
    "bench": "scripts.benchmark.main",
    # docs/gallery.md and its pictures, from transfers that it captures.
    "gallery": "scripts.gallery_page",
}


def enter(name: str) -> None:
    """Runs scripts/setup, then this script again with the Python of .venv; returns there.

    Without root it ends with a message, except for --help and --read.
    """
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV):
        return
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
    os.execv(PYTHON, [PYTHON, "-I", os.path.abspath(sys.argv[0]), *sys.argv[1:]])


if __name__ == "__main__":
    called = os.path.basename(sys.argv[0])
    if called not in SCRIPTS:
        sys.exit(f"environment.py: call it by one of these links: {', '.join(SCRIPTS)}")
    enter(called)
    sys.path.insert(0, ROOT)
    from tcpkmon.formats.base.cli import run

    sys.exit(run(importlib.import_module(SCRIPTS[called]).command, prog=called))
