# SPDX-License-Identifier: Apache-2.0
"""A run of tcpkmon bisect in a guest, as `--over kernels` makes it there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tcpkmon.collector.commands.bisect_scenario import Scenario, play
from tcpkmon.formats.analysis.diff import read_run
from tests.live.test_bisect_live import SEND, SERVE


@pytest.mark.usefixtures("default_is_proven")
@pytest.mark.parametrize("setting", ["1", "0"])
def test_a_run_is_captured_with_its_setting(setting: str, tmp_path: Path) -> None:
    for name, text in (("serve.py", SERVE), ("send.py", SEND)):
        (tmp_path / name).write_text(text)
    command = (sys.executable, str(tmp_path / "send.py"), "1000000")
    scenario = Scenario(command, f"{sys.executable} {tmp_path / 'serve.py'}", {"delay_ms": 10},
                        str(tmp_path), 200)  # fmt: skip
    play(scenario, {"net.ipv4.tcp_window_scaling": setting}, tmp_path / "run.pm")
    run = read_run(tmp_path / "run.pm")
    assert run.proven and run.connections is not None and len(run.connections["conn_id"]) == 1
    assert run.settings["net.ipv4.tcp_window_scaling"] == setting
    assert (run.connections["snd_wnd_max"][0] > 65_535) == (setting == "1")
