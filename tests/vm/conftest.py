# SPDX-License-Identifier: Apache-2.0
"""What the tests on other kernels share: who may run them, and a note of what they saw.

scripts/vmtest runs them in guests, and (`scripts/vmtest host`) on this kernel. What was seen goes
into $TCPKMON_RESULTS/seen.json, from which scripts/kernels makes docs/kernels.md.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.btf import Btf
from collector.lab import Lab
from collector.plan import absent_columns, find_probes, read_text
from collector.probing import Probing
from tests.live.capturing import Outcome

GUEST = os.environ.get("TCPKMON_GUEST")
HERE = Path(__file__).parent
RESULTS = os.environ.get("TCPKMON_RESULTS")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.timeout(1000 if GUEST else 600))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two namespaces, a and b, joined by a plain veth pair."""
    with Lab() as made:
        yield made


@pytest.fixture(scope="session")
def probing() -> Probing:
    """What this kernel offers."""
    return Probing(Btf.from_kernel())


@pytest.fixture(scope="session")
def recorded() -> Iterator[dict[str, dict[str, int]]]:
    """Location -> way to attach -> records that a test saw; written down at the end."""
    found: dict[str, dict[str, int]] = {}
    yield found
    if RESULTS and found:
        Path(RESULTS).mkdir(parents=True, exist_ok=True)
        (Path(RESULTS) / "seen.json").write_text(json.dumps(_describe(found), indent=1) + "\n")


@pytest.fixture
def saw(recorded: dict[str, dict[str, int]]) -> Callable[[Outcome], Outcome]:
    """Call it with a capture's outcome, to have it noted; gives it back."""

    def note(outcome: Outcome) -> Outcome:
        ways = outcome.capture.settings["locations"]
        for location, count in outcome.records.counts().items():
            way = "iter:tcp" if location == "EXISTING" else ways.get(location)
            if way is not None:
                row = recorded.setdefault(location, {})
                row[way] = row.get(way, 0) + int(count)
        return outcome

    return note


def _describe(found: dict[str, dict[str, int]]) -> dict[str, Any]:
    btf = Btf.from_kernel()
    probing = Probing(btf)
    text = read_text()
    locations: dict[str, Any] = {}
    for probe in find_probes(text):
        ways = {f"{kind}:{name}": probing.why_not(kind, name) for kind, name in probe.alternatives}
        for location in probe.locations:
            locations[location] = {"ways": ways, "recorded": found.get(location, {})}
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "guest": GUEST is not None,
        "locations": locations,
        "absent_columns": list(absent_columns(text, btf)),
    }
