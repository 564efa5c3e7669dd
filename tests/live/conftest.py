# SPDX-License-Identifier: Apache-2.0
"""For all live tests: they need root, and run once more when they fail.

scripts/test runs three at once, but those of ALONE. A test that fails beside others runs again
alone. What passes then is listed: tests/retried.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.ring.rings import TRANSPORTS
from tests.live.faults import Flood, Space

if TYPE_CHECKING:
    from tests.live.daemons import Daemon

HERE = Path(__file__).parent
GUEST = "TCPKMON_GUEST" in os.environ
PROMISED = os.environ.get("TCPKMON_LIVE") == "1"
ALONE = {
    "what it costs": "bench benchmark_live",
    "delays that a test makes, and measures": "latency_live link packetdrill_live schema_tty",
    "CPUs and what waits for them": "cpu_affinity oracle_perf sched_sleeps",
    "counters of the machine": "host_oracles_live schema_disk schema_paging schema_syscall",
}
"""By what would go wrong beside other tests: the files test_..."""
_ALONE = {f"test_{name}" for names in ALONE.values() for name in names.split()}


@pytest.fixture(params=TRANSPORTS)
def rings(request: pytest.FixtureRequest) -> str:
    """What --rings takes, for tests of what depends on the rings."""
    return str(request.param)


@pytest.fixture
def space() -> Iterator[Space]:
    """A network namespace of the test's own."""
    with Space() as made:
        yield made


@pytest.fixture
def flood() -> Iterator[Flood]:
    """Counted calls in a namespace of their own."""
    with Space() as space, Flood(space) as made:
        yield made


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that the test configures and starts."""
    from tests.live.daemons import Daemon

    with Daemon(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def btf() -> Btf:
    """This kernel's types."""
    return Btf.from_kernel()


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Debian packages of the committed tree, in two revisions, 1 and 2."""
    folder, inside = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("inside")
    subprocess.run(["scripts/package", "--out", str(folder)], cwd=HERE.parents[1], check=True)
    for package in sorted(folder.glob("*-1_*.deb")):  # the same again, as an upgrade
        root, second = inside / package.name, folder / package.name.replace("-1_", "-2_")
        subprocess.run(["dpkg-deb", "-R", package, root], check=True)
        control = root / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)(^Version: |\(= )(\S+)-1(?=\)|$)", r"\1\2-2",
                                  control.read_text()))  # fmt: skip
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "-b", root, second],
                       check=True)  # fmt: skip
        shutil.rmtree(root)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in Path(item.path).parents:
            continue
        item.add_marker(pytest.mark.live)
        if "PYTEST_XDIST_WORKER" not in os.environ:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))
        if Path(item.path).stem in _ALONE:
            item.add_marker(pytest.mark.alone)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.geteuid() != 0:
        if PROMISED:
            pytest.fail("TCPKMON_LIVE=1 was promised, but this is not root", pytrace=False)
        pytest.skip("needs root")
