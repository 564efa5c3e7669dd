# SPDX-License-Identifier: Apache-2.0
"""tcpkmon requests beside redis's own log; all cases of scripts/request-truths with --full."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from scripts.requests_truth import redis
from scripts.requests_truth.cases import CASES, Case
from scripts.requests_truth.judging import play

BY_NAME = {case.name: case for case in CASES}


def check(case: Case, folder: Path) -> None:
    if not shutil.which(case.program, path="/usr/bin:/usr/sbin:/bin"):
        pytest.skip(f"{case.program} is missing")
    judged = play(case, folder / "case")
    assert judged.made
    assert judged.wrong == []


@pytest.mark.parametrize("name", ["redis: DEBUG SLEEP", "redis: DEBUG SLEEP, default locations"])
def test_redis_slept_and_that_is_said(tmp_path: Path, name: str) -> None:
    check(replace(BY_NAME[name], play=partial(redis.sleeps, count=15)), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_all_cases(tmp_path: Path, name: str) -> None:
    check(BY_NAME[name], tmp_path)
