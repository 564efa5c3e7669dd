# SPDX-License-Identifier: Apache-2.0
"""How a package that is missing is installed, here: in a Debian package, a clone or a wheel."""

from __future__ import annotations

import sys
from pathlib import Path

_DEBIAN = "/usr/lib/tcpkmon"
"""The environment of the Debian package: see scripts/debian."""
_ANALYSIS = ("duckdb", "matplotlib", "perfetto", "pyarrow", "scipy")
"""What the second Debian package has."""


def how_to_install(package: str) -> str:
    """A hint for people. package: its name on PyPI."""
    if sys.prefix == _DEBIAN and package.startswith("opentelemetry"):
        return "Debian has no package of it: install tcpkmon as a wheel (docs/installing.md)"
    if sys.prefix == _DEBIAN:  # it sees the system's packages
        name = "tcpkmon-analysis" if package in _ANALYSIS else f"python3-{package}"
        return f"sudo apt install {name}"
    if (Path(__file__).resolve().parents[2] / "scripts/setup").is_file():
        return "sudo scripts/setup installs it"
    return f"{sys.prefix}/bin/pip install {package}"
