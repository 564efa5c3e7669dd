# SPDX-License-Identifier: Apache-2.0
"""This kernel takes the programs of every shipped schema; what it lacks is said by name."""

from __future__ import annotations

from pathlib import Path

from collector.plan.schema_sources import shipped_names
from tests.live.schema_logs import logging


def test_every_schema_loads(tmp_path: Path) -> None:
    """All in one capture, as an emulated CPU takes long to start each; other tests use them."""
    schemata = sorted(set(shipped_names()) - {"base", "tcp"})
    with logging(tmp_path / "log", *schemata) as running:
        log = running.finish()
    assert log.ways
    assert all(log.missing.values())
