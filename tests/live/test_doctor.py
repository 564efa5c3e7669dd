# SPDX-License-Identifier: Apache-2.0
"""tcpkmon doctor on this kernel: what it says is so, and it leaves the program ready to start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tcpkmon.collector.commands.doctor import command
from tcpkmon.collector.loader.compiler import SUFFIX
from tcpkmon.collector.loader.prepare import prepare
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request
from tests.live.faults import as_nobody, run
from tests.live.test_drops_live import reasons


def test_it_can_capture_and_the_program_is_in_the_cache_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("TCPKMON_CACHE", str(tmp_path))
    asked = CliRunner().invoke(command, ["--json"], standalone_mode=False)
    assert asked.return_value == 0
    report = json.loads(asked.output)
    assert report["able"] is True
    good = {check["name"]: check["good"] for check in report["checks"]}
    assert good["compiler"] is True
    assert good["drop reasons"] == bool(reasons())
    assert report["locations"]["SEGMENT_RECEIVED"] in {"btf:tcp_probe", "raw:tcp_probe"}
    kept = list(tmp_path.glob(f"*{SUFFIX}"))
    assert len(kept) == 1
    made = kept[0].stat().st_ino
    prepare(Request(Filters(), "-"))
    assert [file.stat().st_ino for file in tmp_path.glob(f"*{SUFFIX}")] == [made]


def test_without_root_it_says_what_to_run() -> None:
    for name, said in (("doctor", "run: sudo tcpkmon doctor"), ("reload", "run it with sudo")):
        done = run(as_nobody("tcpkmon", name), cwd="/")
        assert done.code == 1 and said in done.stdout.decode() + done.stderr, done


def test_a_program_that_does_not_compile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "child.py"
    broken.write_text("raise SystemExit('no compiler here')\n")
    monkeypatch.setattr("tcpkmon.collector.loader.compiler.CHILD", broken)
    monkeypatch.setenv("TCPKMON_CACHE", str(tmp_path))
    asked = CliRunner().invoke(command, [], standalone_mode=False)
    assert asked.return_value == 4
    assert "no compiler here" in asked.output and "cannot capture here" in asked.output
