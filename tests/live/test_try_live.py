# SPDX-License-Identifier: Apache-2.0
"""tcpkmon try: a larger window is proven on a copy of the path, and a copy that is not alike judges
nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.lab.copying import Copy, Ends
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.formats.base import cli
from tests.live.capturing import capturing

TRY = "tcpkmon.collector.commands.try"
SIZE, RTT_MS = 500_000, 40
SMALL = {"tcp_rmem": "4096 65536 65536"}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transfer of SIZE bytes that its receiver's window limits."""
    path = tmp_path_factory.mktemp("try") / "a.pm"
    way = Way(rate_mbit=40, delay_ms=RTT_MS / 2, queue_bytes=300_000)
    with (
        Copy(Link(way, Way(delay_ms=RTT_MS / 2))) as copy,
        capturing(path, "--netns", copy.name, "--columns", "full") as run,
    ):
        copy.play([(0.0, SIZE)], Ends(receiver=SMALL, congestion="cubic"))
        run.stop().check_complete()
    return path


def tried(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """The exit code, what it says as JSON, and its messages."""
    from importlib import import_module

    code = cli.run(import_module(TRY).command, [*words, "--json"], "tcpkmon try")
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def settings() -> dict[str, str]:
    """Of the host's own namespace."""
    found = {}
    for path in Path("/proc/sys/net/ipv4").glob("tcp_*"):
        try:
            found[path.name] = path.read_text()
        except OSError:
            continue
    return found


def test_a_larger_window_is_proven_and_what_changes_nothing_is_not(
    capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = settings()
    code, told, _ = tried(
        capsys, str(capture), "--rounds", "6", "--set", "tcp_rmem=2097152",
        "--set", "tcp_wmem=4194304",
    )  # fmt: skip
    assert code == 0 and all(one["is_alike"] for one in told["likeness"])
    assert told["path"]["rtt_ms"] == pytest.approx(RTT_MS, abs=2)
    larger, same = told["tried"]
    durations = {one["settings"]: next(row for row in one["metrics"]
                                       if row["metric"] == "duration_us")
                 for one in (larger, same)}  # fmt: skip
    assert larger["proven"] and not same["proven"]
    assert durations["tcp_rmem=2097152"]["interval"][1] < -0.2
    assert "tcp_rmem='4096 131072 2097152'" in larger["write"][0]
    low, high = durations["tcp_wmem=4194304"]["interval"]
    assert -0.1 < low <= high < 0.1
    assert settings() == before


@pytest.mark.full
def test_a_copy_that_is_not_alike_judges_nothing(
    capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The window is not what limits a path of 3 Mbit/s."""
    code, told, errors = tried(capsys, str(capture), "--rate", "3", "--set", "tcp_rmem=2097152")
    assert code == 1 and "the copy is not like the capture" in errors
    assert "tried" not in told and not all(one["is_alike"] for one in told["likeness"])
