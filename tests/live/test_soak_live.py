# SPDX-License-Identifier: Apache-2.0
"""The soak test, scripts/test --truth soak, in short."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.live.faults import run

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.live, pytest.mark.full]


def test_every_call_is_in_a_file_or_counted() -> None:
    done = run([sys.executable, "-m", "tests.truth", "soak", "--minutes", "0.7"], timeout=200)
    print(done.stdout.decode())
    assert done.code == 0, (done.stdout.decode(), done.stderr)
