# SPDX-License-Identifier: Apache-2.0
"""Set-up, demo and unit tests in clean userlands of other distributions: scripts/userlands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOURS_S = 2 * 3600

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(HOURS_S)]


@pytest.mark.parametrize("name", ["debian-13", "ubuntu-22.04", "ubuntu-24.04"])
def test_a_clean_userland(name: str) -> None:
    done = subprocess.run(
        [ROOT / "scripts/userlands", name], check=False, stdout=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0
    assert "tcpkmon-userland" not in Path("/proc/self/mountinfo").read_text()
    assert not [*Path("/var/tmp").glob("tcpkmon-userland-*")]
