# SPDX-License-Identifier: Apache-2.0
"""The tests of docs/ci.md, on this kernel: as it comes, and with the setting that one fails by."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.ci_example import EXAMPLE, SETTING

pytest_plugins = ["pytester"]


@pytest.mark.usefixtures("machine_of_its_own", "default_is_proven")
def test_the_example_passes_and_fails(pytester: pytest.Pytester) -> None:
    """In this process: imports take an emulated CPU long."""
    setting = Path("/proc/sys", SETTING.replace(".", "/"))
    words = ("-p", "no:cacheprovider", "--tcpkmon-require", "-c", EXAMPLE / "pytest.ini", EXAMPLE)
    before = setting.read_text()
    try:
        setting.write_text("1")
        pytester.runpytest_inprocess(*words).assert_outcomes(passed=2)
        setting.write_text("0")
        wrong = pytester.runpytest_inprocess(*words, "-k", "pause")
    finally:
        setting.write_text(before)
    wrong.assert_outcomes(failed=1, deselected=1)
    wrong.stdout.fnmatch_lines(["*FAILED snd_cwnd_segs <= 10 where *: 1 of 1 records break it"])
