# SPDX-License-Identifier: Apache-2.0
"""The copy of uPlot is the one that npm has under this version, with its licence."""

import hashlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# npm pack uplot@1.6.32: dist/uPlot.iife.min.js and dist/uPlot.min.css of the tarball, whose
# sha256 is 4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d.
SUMS = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@pytest.mark.parametrize("name", SUMS)
def test_uplot_is_unchanged(name: str) -> None:
    content = (ROOT / "formats/report/uplot" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == SUMS[name]


def test_its_licence_is_beside_ours() -> None:
    assert "The MIT License" in (ROOT / "LICENSES/MIT-uPlot.txt").read_text(encoding="utf-8")
