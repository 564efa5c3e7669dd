# SPDX-License-Identifier: Apache-2.0
"""How a package that is missing is installed, here: in a Debian package, a clone or a wheel."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcpkmon.formats.base.errors import UsageError


@functools.cache
def own_version() -> str:
    """tcpkmon's version."""
    from importlib.metadata import version  # slow to import

    return version("tcpkmon")


_DEBIAN = "/usr/lib/tcpkmon"
"""The environment of the Debian package: see scripts/debian."""
_ANALYSIS = ("duckdb", "matplotlib", "perfetto", "pyarrow", "scipy")
"""What the second Debian package has."""


def how_to_install(package: str) -> str:
    """A hint for people. package: its name on PyPI."""
    if sys.prefix == _DEBIAN:  # it sees the system's packages
        name = "tcpkmon-analysis" if package in _ANALYSIS else f"python3-{package}"
        name = package if package == "tcpkmon" else name
        return f"sudo apt install {name}"
    if (Path(__file__).resolve().parents[2] / "scripts/setup").is_file():
        return "sudo scripts/setup installs it"
    return f"{sys.prefix}/bin/pip install {package}"


@contextmanager
def needed(what: str, package: str) -> Iterator[None]:
    """Of an import that fails in the `with` it says in a UsageError: `what` is not installed."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{what} is not installed", how_to_install(package)) from error
