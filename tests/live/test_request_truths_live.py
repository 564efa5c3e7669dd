# SPDX-License-Identifier: Apache-2.0
"""tcpkmon requests beside redis's own log; scripts/test --truth requests has all cases."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.truth.requests import redis
from tests.truth.requests.cases import CASES, Case
from tests.truth.requests.judging import play

BY_NAME = {case.name: case for case in CASES}


def check(case: Case) -> None:
    if not shutil.which(case.program, path="/usr/bin:/usr/sbin:/bin"):
        pytest.skip(f"{case.program} is missing")
    with TemporaryDirectory() as folder:
        judged = play(case, Path(folder) / "case")
    assert judged.made
    assert judged.wrong == []


@pytest.mark.parametrize("name", [
    "redis: DEBUG SLEEP",
    pytest.param("redis: DEBUG SLEEP, default locations", marks=pytest.mark.full),
])  # fmt: skip
def test_redis_slept_and_that_is_said(name: str) -> None:
    check(replace(BY_NAME[name], play=partial(redis.sleeps, count=15)))
