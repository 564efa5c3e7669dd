# SPDX-License-Identifier: Apache-2.0
"""scripts/fuzz finds what is planted, and each input that it found before stays mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.collector.control import server
from tests.full import first
from tests.fuzz import targets
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

SLOW = {"picture", "forgeries"}


@pytest.fixture(autouse=True)
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCPKMON_FUZZ_TMP", str(tmp_path))
    monkeypatch.setattr(server, "ROUND_S", 0.0)  # the target sets it, for its whole process
    targets._folder.cache_clear()
    yield
    targets._folder.cache_clear()


QUICK = [name for name in TARGETS if name not in SLOW]


@pytest.mark.parametrize("name", first(12, (name for at in range(3) for name in QUICK[at::3])))
def test_what_fuzzing_starts_from_is_read(name: str) -> None:
    for data in seeds(TARGETS[name].kind).values():
        TARGETS[name].run(data)
