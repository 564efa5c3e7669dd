# SPDX-License-Identifier: Apache-2.0
"""For all tests: a lab, and Hypothesis without deadlines, as the machines are slow and shared.

In CI the examples are always the same, so that a run says something about the change it tests.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.full import IS_FULL, examples

if TYPE_CHECKING:
    from tcpkmon.collector.lab.lab import Lab

settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None,
    max_examples=examples(100),
)
settings.register_profile("ci", settings.get_profile("shared-machine"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "shared-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full") is not None and not IS_FULL:
            item.add_marker(pytest.mark.skip(reason="long; scripts/test --full runs it"))


def pytest_collection_finish() -> None:
    gc.freeze()  # a collection passes over all modules, in half a second


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two namespaces, a and b, joined by a plain veth pair."""
    from tcpkmon.collector.lab.lab import Lab  # the unit tests do without it

    with Lab() as made:
        yield made


@pytest.fixture(autouse=True)
def _unchanged_environment() -> Iterator[None]:
    """A test that leaves a variable behind changes what those after it find."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    for variables in (before, after):
        variables.pop("PYTEST_CURRENT_TEST", None)
    if after != before:
        os.environ.clear()
        os.environ.update(before)
        changed = sorted({name for name, _ in after.items() ^ before.items()})
        pytest.fail(f"the test changed the environment: {', '.join(changed)}")
