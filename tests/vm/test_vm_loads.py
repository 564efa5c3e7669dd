# SPDX-License-Identifier: Apache-2.0
"""This kernel takes the programs of every shipped schema; what it lacks is said by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.collector.plan.schema_sources import shipped_names
from tests.live.schema_logs import logging

NET = ("magnet", "network")


@pytest.mark.parametrize("name", [*NET, "others"])
def test_a_schema_loads(tmp_path: Path, name: str) -> None:
    """Others: in one capture, as an emulated CPU takes long to start each."""
    others = sorted(set(shipped_names()) - {"base", "tcp", *NET})
    with logging(tmp_path / "log", *(others if name == "others" else [name])) as running:
        log = running.finish()
    assert log.ways
    assert all(log.missing.values())
