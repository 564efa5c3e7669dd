# SPDX-License-Identifier: Apache-2.0
"""The packages of arm64, which are made on this machine: unpacked and used in an emulated guest."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from scripts.vm import arm64, guests, kernels, tools

KERNEL = "arm64-newest"
LIMIT_S = 2400.0

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(3600)]


def test_a_capture_by_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the guests are for x86_64")
    out, results = tmp_path / "out", tmp_path / "results"
    command = ["scripts/package", "--arch", "arm64", "--out", str(out)]
    subprocess.run(command, cwd=tools.ROOT, check=True)
    (wheel,) = out.glob("tcpkmon-*-linux_aarch64.whl")
    compiled = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert len(compiled) == 2
    assert all(name.endswith("-aarch64-linux-gnu.so") for name in compiled)
    assert list(out.glob("tcpkmon-analysis_*_arm64.deb"))
    (package,) = out.glob("tcpkmon_*_arm64.deb")
    results.mkdir()
    shutil.copy(package, results)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # get_tools() adds to it
    with tools.alone():
        tools.get_tools({"arm64"})
        arm64.get_userland()
        release, folder = kernels.get_kernel(KERNEL)
    until = time.monotonic() + LIMIT_S
    broken = guests.boot(release, folder, (), results, until, "tests.vm.package_guest")
    assert not broken, (results / "guest.log").read_text(errors="replace")
