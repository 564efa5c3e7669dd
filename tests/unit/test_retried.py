# SPDX-License-Identifier: Apache-2.0
"""A test that passes only when it is tried again is listed and counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pathlib, pytest

def fails(name, number):
    file = pathlib.Path(__file__).with_name(f"tries-{name}")
    tries = len(file.read_text()) if file.exists() else 0
    file.write_text("x" * (tries + 1))
    assert tries >= number

def test_sound(): fails("sound", 0)

@pytest.mark.flaky(reruns=1)
def test_race(): fails("race", 1)

def test_beside_others(): fails("beside", 1)

def test_broken(): fails("broken", 9)
"""


def test_what_passes_when_tried_again_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    retried = tmp_path / "retried"
    monkeypatch.setenv("TCPKMON_RETRIED", str(retried))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = ["-p", "pytest_rerunfailures", "-p", "tests.retried"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "test_it.py"]

    def run(*more: str) -> str:
        return subprocess.run(
            [*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False
        ).stdout

    assert "tried again ===" in (shown := run()) and "\ntest_it.py::test_race\n" in shown
    assert retried.read_text() == "test_it.py::test_race\n"
    run("--last-failed")
    assert retried.read_text() == "test_it.py::test_race\ntest_it.py::test_beside_others\n"
