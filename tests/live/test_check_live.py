# SPDX-License-Identifier: Apache-2.0
"""tcpkmon check on a connection whose limit was made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.truth.why.judging import play
from tests.truth.why.scenarios import SCENARIOS


def test_assertions_on_a_small_receive_buffer(tmp_path: Path) -> None:
    (scenario,) = (one for one in SCENARIOS if one.name == "small receive buffer, cubic")
    play(scenario, tmp_path, seconds=0.8)

    def check(*texts: str) -> subprocess.CompletedProcess[str]:
        command = [Path(sys.executable).with_name("tcpkmon"), "check", tmp_path / "why.pm", *texts]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    sound = check("no_loss", "proven", 'limit_share("rwnd") > 80% where laddr == "10.77.0.1"',
                  "snd_cwnd_segs > 0 where ca_state == TCP_CA_Open")  # fmt: skip
    assert sound.returncode == 0, sound.stdout + sound.stderr
    broken = check('limit_share("rwnd") < 20% where laddr == "10.77.0.1"')
    assert broken.returncode == 6 and "FAILED" in broken.stdout
    assert "10.77.0.1:" in broken.stdout
