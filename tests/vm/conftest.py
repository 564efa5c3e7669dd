# SPDX-License-Identifier: Apache-2.0
"""For the tests on other kernels: they need root, and run again when they fail.

scripts/vmtest runs them in guests, and (`scripts/vmtest host`) on this kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.loader.attach_trials import Probing
from tests.vm.compile_far import HERE

FOLDER = Path(__file__).parent
LIMIT_S = float(os.environ.get("TCPKMON_GUEST_LIMIT", "420"))
"""For a test; guest.sh knows more of its machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in Path(item.path).parents:
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.timeout(LIMIT_S))
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def machine_of_its_own() -> None:
    """For tests that change the whole machine: they never run on the host."""
    line = Path("/proc/cmdline").read_text()
    if "TCPKMON_GUEST" not in os.environ or "tcpkmon-guest" not in line:
        pytest.skip("needs a guest: the host's CPUs and its clock are not ours to change")


@pytest.fixture
def compiled_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither a cache nor the host's compiler is used."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("TCPKMON_CACHE", str(cache))
    if HERE.parent.is_dir():
        HERE.touch()
    yield
    HERE.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def probing() -> Probing:
    """What this kernel offers."""
    return Probing(Btf.from_kernel())
