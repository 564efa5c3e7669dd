# SPDX-License-Identifier: Apache-2.0
"""Kept captures, forged by chance: scripts/fuzz --only forgeries goes on where this ends."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.full import IS_FULL
from tests.fuzz.forgeries import check

PART, PARTS = (60, 16) if IS_FULL else (20, 1)


@pytest.mark.parametrize("part", range(PARTS))
def test_what_something_contradicts_passes_nowhere(part: int, tmp_path: Path) -> None:
    for number in range(part * PART, (part + 1) * PART):
        try:
            check(struct.pack("<Q", number), tmp_path / "forged")
        except Exception as error:
            raise AssertionError(f"forgery {number}: {error!r}") from error
