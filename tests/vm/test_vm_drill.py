# SPDX-License-Identifier: Apache-2.0
"""A script of `tcpkmon packetdrill` passes on the kernel that was captured, and fails on one that
behaves otherwise.

The difference is known: since Linux 6.5 the first SYNs are sent again each second, and no longer
after 1, 2 and 4 s (tcp_syn_linear_timeouts). tests/vm/syns has scripts that this test made in
guests, named by their kernels."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from scripts.vm.kernels import version_key
from tcpkmon.formats.export.packetdrill import Options
from tests.truth.drill.transfers import SYNS, record, script_of, try_play

TOLERANCE_US = 400_000
"""An emulated CPU is slow; the kernels differ by a second."""
LINEAR = (6, 5)
TRIES = 3
SCRIPTS = sorted((Path(__file__).parent / "syns").glob("*.pkt"))


def is_linear(release: str) -> bool:
    return version_key(release)[:2] >= LINEAR


def play(text: str, passes: bool) -> str:
    """Why it does not pass, "" if it does; a machine that is busy delays packets, so that a script
    which is to pass has several tries."""
    why = ""
    for _ in range(TRIES if passes else 1):
        passed, why = try_play(text, {}, 1)
        if passed:
            return ""
    return why


def test_a_script_made_here_passes_here(tmp_path: Path) -> None:
    path = tmp_path / "syns.pm"
    ports = record(path, SYNS)
    text = script_of(path, ports, Options(tolerance_us=TOLERANCE_US))
    text = text.replace(f"{tmp_path}/", "")
    assert text.count(" > S 0:0(0) <...>") == 4
    why = play(text, passes=True)
    assert not why


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.stem))
def test_a_script_of_another_kernel_tells_them_apart(script: Path) -> None:
    alike = is_linear(script.stem) == is_linear(platform.release())
    why = play(script.read_text(), passes=alike)
    if alike:
        assert not why
    else:
        # Its SYNs come at other times, and nothing else is told.
        assert "S 0:0(0)" in why and ("the kernel sent it at" in why or "did not send" in why), why
