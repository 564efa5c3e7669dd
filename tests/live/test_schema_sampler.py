# SPDX-License-Identifier: Apache-2.0
"""The schema sampler: shares as /proc/stat has them, samples at their period, stacks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tcpkmon.collector.commands import sampler_period
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.formats.analysis import collapse_stacks, count_samples, open_log
from tests.live.cpu_workload import READ, SPIN, cpu_time_ns, machine_times, running
from tests.live.schema_logs import Log, Scenario, logging, play

PERIOD_NS = 10_000_000


@pytest.fixture(scope="module", autouse=True)
def _has_perf() -> None:
    if why := Probing(Btf.from_kernel()).why_not("perf", "cpu_clock:10ms"):
        pytest.skip(why)


def shares_are_those_of_the_kernel(folder: Path) -> Scenario:
    """User, nice, system and idle time as /proc/stat counts it, within 3 sigma and its own ticks.

    A CPU that sleeps is not looked at on some machines: those looks are idle ones.
    """
    first, last = online_cpus()[0], online_cpus()[-1]
    work = [(SPIN, first, 0), (SPIN, first, 5), (READ, last, 0)]
    with running(*work):
        begun_ns, before = time.monotonic_ns(), machine_times()
        time.sleep(3)
        ended_ns, after = time.monotonic_ns(), machine_times()
    yield
    with open_log(folder) as log:
        counted = count_samples(log.choose(since=begun_ns, until=ended_ns))
    ticks = {state: after[state] - before[state] for state in before}
    looks = sum(counted.states.values())
    for state, theirs in ticks.items():
        expected = theirs / sum(ticks.values())
        found = counted.shares.get(state, 0.0)
        found += counted.shares.get("SKIPPED", 0.0) if state == "IDLE" else 0.0
        sigma = (expected * (1 - expected) / looks) ** 0.5
        assert found == pytest.approx(expected, abs=3 * sigma + 0.03), (counted, ticks)
    assert counted.states["SYSTEM"] > 0.1 * looks


def by_process(log: Log, pid: int, begun_ns: int, ended_ns: int) -> int:
    samples = log.of("SAMPLE", pid=pid)
    return sum(begun_ns < one["time_ns"] < ended_ns for one in samples)


def samples_are_time_over_period_and_half_the_period_doubles() -> Scenario:
    """For a process: its CPU time, whatever else runs. The period changes while it runs."""
    cpu = online_cpus()[-1]
    spans = []
    with running((SPIN, cpu, 0)) as (pid,):
        for period in ("10ms", "5ms", "1ms"):
            assert ask(period) == ""
            assert ask() == f"{period}\n"
            begun_ns, before = time.monotonic_ns(), cpu_time_ns(pid)
            time.sleep(0.8)
            ended_ns, after = time.monotonic_ns(), cpu_time_ns(pid)
            spans.append((int(period[:-2]) * 10**6, after - before, begun_ns, ended_ns))
        assert "too short" in ask("99us")
        assert "not a period" in ask("10 ticks")
    log = yield
    for period_ns, used_ns, begun_ns, ended_ns in spans:
        found = by_process(log, pid, begun_ns, ended_ns)
        looks, share = (ended_ns - begun_ns) / period_ns, used_ns / (ended_ns - begun_ns)
        sigma = (looks * share * max(0.0, 1 - share)) ** 0.5
        assert found == pytest.approx(looks * share, abs=3 * sigma + 0.03 * looks + 2)
        inside = [one for one in log.of("SAMPLE") if begun_ns < one["time_ns"] < ended_ns]
        assert {one["period"] for one in inside} == {period_ns}
    mine = log.of("SAMPLE", pid=pid)
    assert {one["state"] for one in mine} >= {"USER"}
    assert {one["tgid"] for one in mine} == {pid}
    assert all(one["state"] == "IDLE" for one in log.of("SAMPLE", pid=-1))
    assert {one["tid"] for one in log.of("SAMPLE", pid=-1)} <= {0}


def ask(*words: str) -> str:
    """What `tcpkmon sampler-period` prints; its error where it refuses."""
    result = CliRunner().invoke(sampler_period.command, words)
    return str(result.exception) if result.exception else result.output


def test_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(0o755)
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path / "run"))
    scenarios = [
        shares_are_those_of_the_kernel(tmp_path / "log"),
        samples_are_time_over_period_and_half_the_period_doubles(),
    ]
    play(tmp_path / "log", "sampler", scenarios=scenarios)


def test_stacks_name_the_kernels_functions(tmp_path: Path) -> None:
    """A process that reads /dev/zero is found there; collapsed stacks end where it was."""
    options = ["--using", "stacks"]
    with logging(tmp_path / "log", "sampler", more=options) as capture:
        with running((READ, online_cpus()[0], 0)) as (pid,):
            time.sleep(1)
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
        log = capture.finish()
    reading = [one for one in log.of("SAMPLE", pid=pid) if one["state"] == "SYSTEM"]
    assert len(reading) > 10
    with open_log(tmp_path / "log") as stacks:
        found = collapse_stacks(stacks)
        assert collapse_stacks(stacks, idle=True).total() == len(log.of("SAMPLE"))
    ours = [stack for stack in found if stack.startswith(f"{comm};") and "vfs_read_[k]" in stack]
    assert len(ours) >= 1
    names = ours[0].split(";")
    assert names.index("vfs_read_[k]") < len(names) - 1, "the innermost is the last"
    assert found.total() == sum(one["state"] != "IDLE" for one in log.of("SAMPLE"))
