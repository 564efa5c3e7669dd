# SPDX-License-Identifier: Apache-2.0
"""The hint for a package that is missing fits how tcpkmon was installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tcpkmon.formats.base import installing


def test_in_a_clone() -> None:
    assert installing.how_to_install("scipy") == "sudo scripts/setup installs it"


@pytest.mark.parametrize(
    ("package", "debian"),
    [("scipy", "tcpkmon-analysis"), ("pandas", "python3-pandas"), ("tcpkmon", "tcpkmon")],
)
def test_in_a_debian_package(package: str, debian: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/usr/lib/tcpkmon")
    assert installing.how_to_install(package) == f"sudo apt install {debian}"


def test_in_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/opt/env")
    monkeypatch.setattr(installing, "__file__", str(tmp_path / "a/formats/base/installing.py"))
    assert installing.how_to_install("scipy") == "/opt/env/bin/pip install scipy"
