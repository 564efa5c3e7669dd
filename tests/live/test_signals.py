# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM while the rings are full: the file is finished soon, sooner at the second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.formats.base.control import Mark
from tests.live.capturing import ROOT
from tests.live.faults import (
    COUNTED,
    FULL,
    GUEST,
    TIMEOUT_S,
    Collector,
    Flood,
    Space,
    balance,
    cpus,
    verify,
    wait_until,
)

pytestmark = pytest.mark.timeout(TIMEOUT_S)

RUNS = 100 if FULL else 2
CALLS = 1_000_000 if FULL else 10_000 if GUEST else 100_000
LIMIT_S = 2.0 if FULL else 60.0 if GUEST else 10.0
HURRY_LIMIT_S = 0.5 if FULL else 60.0 if GUEST else 10.0


def start(flood: Flood, path: Path) -> Collector:
    return Collector(
        "--netns", flood.space.path, "--ports", str(flood.port), "--no-existing", *COUNTED,
        "-o", str(path),
    )  # fmt: skip


def test_a_signal_during_a_full_drain(flood: Flood, tmp_path: Path) -> None:
    times = []
    for number in range(RUNS):
        path = tmp_path / f"{number}.pm"
        with start(flood, path).ready() as collector:
            flood.begin(cpus()[-1])
            flood.advance(CALLS)
            done = collector.finish(signal.SIGINT if number % 2 else signal.SIGTERM)
        flood.halt()
        times.append(done.seconds)
        assert done.code == 0, done.stderr
        report = verify(path, 3 if "lost: none" not in done.stderr else 0)
        assert report["proven_end"]
        assert report["end_reason"] == "asked"
        row = balance(report)[cpus()[-1]]
        assert row["in_file"] + row["lost_total"] == row["attempts"] - row["filtered"] > CALLS / 2
        path.unlink()
    print(f"{RUNS} signals: finished after at most {max(times):.2f} s")
    assert max(times) < LIMIT_S


PATIENT = """
import signal, sys
from tcpkmon.collector.commands import collect
from tcpkmon.collector.session import capture
signal.signal(signal.SIGINT, signal.default_int_handler)
capture.WAIT_S = 60.0
sys.argv[0] = "collect"
collect.main()
"""


def test_a_signal_ends_the_wait_for_records(tmp_path: Path) -> None:
    """A capture that records nothing looks at the clock every 0.2 s, but not to see signals."""
    ready, told = os.pipe()
    words = ("--ready-fd", str(told), "--ports", "1", "--no-existing", "-o", str(tmp_path / "a.pm"))
    with subprocess.Popen(
        [sys.executable, "-c", PATIENT, *words], cwd=ROOT, pass_fds=(told,),
        stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        os.close(told)
        with os.fdopen(ready, "rb") as pipe:
            assert pipe.read(1)
        wait_until(lambda: "poll" in Path(f"/proc/{process.pid}/wchan").read_text(), "waits")
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    with tcpkmon.open(tmp_path / "a.pm") as capture:
        assert capture.complete
        marks = [entry for _, entry in capture.controls() if isinstance(entry, Mark)]
        assert marks == [Mark(1, "SIGUSR1")]


def test_a_second_signal(flood: Flood, tmp_path: Path) -> None:
    """It ends at once: with a finished file, or saying that the file has no end."""
    times = []
    for number in range(max(1, RUNS // 2)):
        path = tmp_path / f"{number}.pm"
        with start(flood, path).ready() as collector:
            flood.begin(cpus()[-1])
            flood.advance(CALLS)
            collector.send(signal.SIGINT)
            done = collector.finish(signal.SIGTERM)
        flood.halt()
        times.append(done.seconds)
        if done.code:
            assert (done.code, "no end record" in done.lines[-1]) == (1, True)
        report = verify(path, 3 if done.code or "lost: none" not in done.stderr else 0)
        assert report["proven_end"] == (done.code == 0)
        path.unlink()
    print(f"second signal: over after at most {max(times):.2f} s")
    assert max(times) < HURRY_LIMIT_S


def is_importing(collector: Collector) -> bool:
    """Whether Python itself is up, and this process's modules are being read."""
    return "_multiarray_umath" in Path(f"/proc/{collector.pid}/maps").read_text()


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, Collector.programs), (signal.SIGTERM, is_importing)]
)
def test_a_signal_before_the_capture_is_attached(
    number: signal.Signals, moment: Callable[[Collector], object], tmp_path: Path
) -> None:
    """No traceback, and either no file or a finished one."""
    path = tmp_path / "early.pm"
    with Space() as space, Collector("--netns", space.path, "-o", str(path)) as collector:
        wait_until(lambda: moment(collector), moment.__name__, step_s=0.001)
        done = collector.finish(number)
    if path.exists():
        verify(path, 0)
        assert done.code == 0, done.stderr
    else:
        assert done.code in {-number, 128 + number}, done.stderr
        assert done.stderr == ""
        assert not os.listdir(tmp_path)


def test_a_hangup_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "silent.pm"
    with Space() as space, Collector("--netns", space.path, "-o", str(path)).ready() as collector:
        done = collector.finish(signal.SIGHUP)
    assert done.code == 0, done.stderr
    assert verify(path, 0)["end_reason"] == "asked"


def test_nohup(tmp_path: Path) -> None:
    """Where SIGHUP is ignored, it stays so; SIGINT, which shells ignore for jobs, does not."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    path = tmp_path / "nohup.pm"
    with Space() as space, Collector(
        "--netns", space.path, "-o", str(path), preexec_fn=ignore
    ).ready() as collector:  # fmt: skip
        collector.send(signal.SIGHUP)
        size = path.stat().st_size
        wait_until(lambda: path.stat().st_size > size, "the next checkpoint")
        assert collector.process.poll() is None
        done = collector.finish(signal.SIGINT)
    assert done.code == 0, done.stderr
    assert verify(path, 0)["proven_end"]
