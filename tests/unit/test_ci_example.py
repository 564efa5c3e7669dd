# SPDX-License-Identifier: Apache-2.0
"""docs/examples/ci/matrix and the workflow of docs/ci.md, with guests that are made up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.psc_files import write_runs

ROOT = Path(__file__).resolve().parents[2]
MATRIX = ROOT / "docs/examples/ci/matrix"
SETTING = "net.ipv4.tcp_slow_start_after_idle"
GUEST = """#!/bin/bash
for word in "$@"; do case $word in sysctl.*) found=-${word##*=} ;; esac; done
name=$(basename "$2")
name=${name#vmlinuz-}
[ "$name" != dead ] || { echo no KVM; exit 1; }
script=${!#}
folder=$(dirname "${script//[\\'\\"]/}")
folder=${folder#bash }
cp -r "$MADE/$name${found:-}" "$folder/tests"
echo "=== 2 passed in 1.00s ===" >"$folder/output"
echo 0 >"$folder/exit"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vng that puts captures in place: of two kernels, and one again with another setting."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "vng").write_text(GUEST)
    (programs / "vng").chmod(0o755)
    for name, kernel, value in (("6.1", "6.1", 1), ("7.3", "7.3", 1), ("7.3-0", "7.3", 0)):
        for test, capture in (("begins0", "pause"), ("grows0", "grows")):
            folder = tmp_path / "made" / name / test
            folder.mkdir(parents=True)
            system = {"sysctl": {SETTING: str(value), "net.ipv4.tcp_rmem": kernel}}
            write_runs(folder / f"{capture}.pm", [(1e6, 500)], {"system": system})
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("MADE", str(tmp_path / "made"))
    monkeypatch.setenv("PYTHON", sys.executable)
    return tmp_path


def matrix(out: Path, *kernels: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MATRIX, out, *kernels], capture_output=True, text=True, check=False)


def shell(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-ec", words], cwd=folder, capture_output=True, text=True,
                          check=False)  # fmt: skip


def test_a_guest_is_compared_with_the_first_one_on_its_kernel(path: Path) -> None:
    done = matrix(path / "out", "/x/6.1", "/x/vmlinuz-7.3", f"/x/vmlinuz-7.3,{SETTING}=0")
    assert done.returncode == 0 and not done.stderr, done
    told, first, second = re.split(r"Settings that differ *\n", done.stdout)
    assert told.splitlines()[:3] == [
        "6.1: 2 passed in 1.00s (exit 0)", "7.3: 2 passed in 1.00s (exit 0)",
        f"7.3,{SETTING}=0: 2 passed in 1.00s (exit 0)",
    ]  # fmt: skip
    rows = [[line.split() for line in text.splitlines() if line.startswith("net.")]
            for text in (first, second)]  # fmt: skip
    assert rows == [[["net.ipv4.tcp_rmem", "6.1", "7.3"]], [[SETTING, "1", "0"]]]


def test_the_workflow_checks_what_the_matrix_leaves(path: Path) -> None:
    """Its step, as a shell runs it."""
    assert matrix(path / "out", "/x/6.1").returncode == 0
    (workflow,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
    assert workflow.startswith("on: ") and "\njobs:\n" in workflow
    (step,) = re.findall(r"run: >\n(.*?)\n      - ", workflow, re.DOTALL)
    tcpkmon = str(Path(sys.executable).with_name("tcpkmon"))
    words = " ".join(step.split()).replace(".venv/bin/tcpkmon", tcpkmon)
    done = shell(words, path)
    # The made capture lacks the column `delivered`: only that is said.
    assert done.returncode == 2 and "no column 'delivered'" in done.stderr, done
    words = words.replace("10 + delivered", "10").replace(" == 5310", " == 80")
    done = shell(words, path)
    assert done.returncode == 0 and (path / "out/check.xml").exists(), done
