# SPDX-License-Identifier: Apache-2.0
"""A kernel that cannot number records is refused in one line; all others are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tcpkmon.collector.loader.attach_trials import check_atomics
from tcpkmon.formats.base.errors import KernelError
from tests.live.faults import COLLECT, TCPKMON, run

OLDEST = (5, 12)


def test_a_kernel_that_is_too_old(tmp_path: Path) -> None:
    release = os.uname().release
    major, minor = release.split(".")[:2]
    if (int(major), int(minor)) >= OLDEST:
        check_atomics()
        return
    with pytest.raises(KernelError):
        check_atomics()
    done = run([COLLECT, "-o", str(tmp_path / "a.pm"), "--duration", "1s"])
    assert done.code == 4
    (line,) = done.stderr.splitlines()
    assert f"Linux {release} is too old: its BPF programs have no atomic" in line
    assert "5.12 or later" in line
    assert not list(tmp_path.iterdir())
    asked = run([TCPKMON, "doctor"])
    assert asked.code == 4
    assert "no atomic instructions" in " ".join(asked.stdout.decode().split())
