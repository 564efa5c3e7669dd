# SPDX-License-Identifier: Apache-2.0
"""tcpkmon try: each setting of a copy, on a connection that it is for, and on one that it hurts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tcpkmon.collector.lab.copying import Copy, Ends
from tcpkmon.collector.lab.link import Link, Way
from tests.live.capturing import capturing
from tests.live.test_try_live import tried

WORSE, NOTHING = "it is worse", "it changes nothing"
PROVEN = "proven on the copy"
RTT_MS = 40.0
FAST = Way(rate_mbit=40, delay_ms=RTT_MS / 2, queue_bytes=300_000)


@dataclass(frozen=True)
class Scenario:
    """What is sent over which path, and what a setting does to it: by setting, a word of the
    judgement, and how much the main metric changes, from .. to."""

    bursts: Sequence[tuple[float, int]]
    truths: Mapping[str, tuple[str, float, float]]
    way: Way = FAST
    sndbuf: str = ""


SCENARIOS = {
    # 144 segments: 10, 20, 40 and the rest are four round trips; with 100 at first two.
    "short": Scenario([(0.0, 200_000)], {
        "initcwnd=100": (PROVEN, -0.7, -0.15), "initcwnd=2": (WORSE, 0.2, 1.5),
    }),
    # 42 segments after each pause, which halves the window at each RTO: three round trips, with a
    # window that stays one.
    "pauses": Scenario([(0.0, 60_000), (0.8, 60_000), (0.8, 60_000)], {
        "tcp_slow_start_after_idle=0": (PROVEN, -0.6, -0.12),
    }),
    "buffer": Scenario(
        [(0.0, 400_000)],
        {"tcp_wmem=2097152": (PROVEN, -0.6, -0.1)},
        sndbuf="4096 16384 16384",
    ),
    "losses": Scenario(
        [(0.0, 2_000_000)],
        {"tcp_congestion_control=bbr": (PROVEN, -0.95, -0.2)},
        replace(FAST, loss_percent=1.0),
    ),
    # 600 kB at 5 Mbit/s take a second, at 2 Mbit/s 2.4.
    "filled": Scenario(
        [(0.0, 600_000)],
        {
            "tcp_notsent_lowat=16384": (PROVEN, -0.9, -0.1),
            "tcp_congestion_control=reno": (NOTHING, -0.25, 0.25),
            "qdisc=tbf rate 2mbit burst 16kb limit 300kb": (WORSE, 0.8, 2.0),
            "qdisc=pfifo limit 1000": (NOTHING, -0.25, 0.25),
        },
        Way(rate_mbit=5, delay_ms=RTT_MS / 2, queue_bytes=60_000),
    ),
}  # fmt: skip


def captured(folder: Path, scenario: Scenario) -> Path:
    path = folder / "a.pm"
    ends = Ends({"tcp_wmem": scenario.sndbuf} if scenario.sndbuf else {}, congestion="cubic")
    with (
        Copy(Link(scenario.way, Way(delay_ms=RTT_MS / 2))) as copy,
        capturing(path, "--netns", copy.name, "--columns", "full") as run,
    ):
        copy.play(scenario.bursts, ends)
        run.stop().check_complete()
    return path


@pytest.mark.full
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_setting_does_on_the_copy_what_it_does(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = SCENARIOS[name]
    sets = [word for one in scenario.truths for word in ("--set", one)]
    rounds = "8" if name == "short" else "5"
    path = captured(tmp_path, scenario)
    code, told, errors = tried(capsys, str(path), "--rounds", rounds, *sets)
    assert code == 0, errors
    low, high = told["spans"]["rtt_ms"]
    assert low - 3 <= RTT_MS <= high + 3
    found = {one["settings"]: one for one in told["tried"]}
    for wanted, (word, least, most) in scenario.truths.items():
        one = found[wanted]
        main = next(row for row in one["metrics"] if row["metric"] == one["main"])
        assert word in one["judgement"], (wanted, one["judgement"])
        assert least < main["interval"][0] <= main["interval"][1] < most, (wanted, main)


@pytest.mark.parametrize(("wanted", "text"), [
    ("qdisc=nonesuch limit 5", "no queueing discipline nonesuch"), ("qdisc=tbf", "no queueing"),
    ("tcp_congestion_control=nonesuch", "this kernel has no congestion control nonesuch"),
])  # fmt: skip
def test_what_the_kernel_lacks_is_said_before_anything_is_played(
    wanted: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib import import_module

    from tcpkmon.formats.base import cli

    command = import_module("tcpkmon.collector.commands.try").command
    path = captured(tmp_path, SCENARIOS["filled"])
    assert cli.run(command, [str(path), "--set", wanted], "tcpkmon try") == 2
    errors = capsys.readouterr().err
    assert text in errors and "fits the copy" not in errors
