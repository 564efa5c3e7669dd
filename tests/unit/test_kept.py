# SPDX-License-Identifier: Apache-2.0
"""Captures of an earlier version are read, verified and explained as they were then.

They are in tests/kept, with what was said of them; tests/kept/make.py made both. A change that is
meant is a change of the answers, by `python -m tests.kept.make --answers`: its diff shows it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kept.make import HERE, answers, names, unpack


@pytest.mark.parametrize("name", names())
def test_it_is_read_as_before(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    assert answers(name, tmp_path) == (HERE / f"{name}.txt").read_text()
