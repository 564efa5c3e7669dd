# SPDX-License-Identifier: Apache-2.0
"""The analysis of a sampler's log, on logs of known samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.formats.analysis import collapse_stacks, count_samples, open_log
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.condense import command as condense
from tcpkmon.formats.commands.flamegraph import command
from tests.unit.log_builder import LogBuilder

CONF = """
enum cpu_state { USER, NICE, SYSTEM, IDLE }
enum stack_part { KERNEL, PROGRAM }
event SAMPLE { int pid; string16 comm; ulonglong pc; string40 symbol; cpu_state state; uint ticks;
               ulonglong period }
event SAMPLE_FRAME { stack_part part; uint depth; ulonglong address; string40 symbol }
event OTHER { int x }
"""
USER, NICE, SYSTEM, IDLE = range(4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two CPUs' logs; on CPU 0 stacks are recorded."""
    # The builder begins each log with states of these two.
    schema = f"{CONF} event SCHEDIN {{ int x }} event SCHEDOUT {{ int x }}"
    (tmp_path / "log").mkdir()
    first, second = (LogBuilder(cpu, schema=schema) for cpu in (0, 1))

    def sample(to: LogBuilder, at: int, **values: object) -> None:
        plain = {"pid": 1, "comm": "a b;c", "pc": 16, "symbol": "", "state": USER, "ticks": 1,
                 "period": 1000}  # fmt: skip
        to.log("SAMPLE", at, **{**plain, **values})

    for at in (1000, 5000):
        sample(first, at, state=SYSTEM, pc=1 << 63, symbol="inner")
        for part, depth, address, symbol in (
            (0, 0, 1 << 63, "inner"), (0, 1, (1 << 63) + 8, ""), (1, 0, 32, ""), (1, 1, 48, ""),
        ):  # fmt: skip
            first.log("SAMPLE_FRAME", at + 1, part=part, depth=depth, address=address,
                      symbol=symbol)  # fmt: skip
    sample(second, 1000, symbol="entry", state=NICE)
    sample(second, 1001, ticks=4)
    sample(second, 5001, state=IDLE, pid=-1, comm="swapper/1", period=2000)
    for cpu, build in enumerate((first, second)):
        build.end_dump().finish()
        build.write(tmp_path / "log" / f"kernlog.dump.cpu{cpu}")
    return tmp_path / "log"


def test_stacks_of_cpus_are_kept_apart(folder: Path) -> None:
    with open_log(folder) as log:
        assert collapse_stacks(log) == {
            "a_b_c;0x30;0x20;0x8000000000000008_[k];inner_[k]": 2,
            "a_b_c;entry_[k]": 1,
            "a_b_c;0x10": 1,
        }
        assert collapse_stacks(log, idle=True)["idle;0x10"] == 1


def test_time_is_counted_by_state(folder: Path) -> None:
    with open_log(folder) as log:
        found = count_samples(log)
    assert found.states == {"SYSTEM": 2, "NICE": 1, "USER": 1, "SKIPPED": 3, "IDLE": 1}
    assert found.time_ns["IDLE"] == 2000
    assert found.shares["SKIPPED"] == 3000 / 9000


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, [str(folder)], "tcpkmon") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a_b_c;entry_[k] 1"
    assert run(command, [str(folder), "--shares"], "tcpkmon") == 0
    assert "skipped\t33.33%\t3" in capsys.readouterr().out.splitlines()


def test_a_cut_log_is_unknown_and_a_damaged_one_damaged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = folder / "kernlog.dump.cpu0"
    data = log.read_bytes()
    log.write_bytes(data[: data.rindex(b"KLOGDUMP")])
    assert run(command, [str(folder)], "tcpkmon") == 3
    told = capsys.readouterr()
    assert run(condense, [str(folder)], "tcpkmon") == 3
    at = data.index(b"KLOGDUMP") + 80
    log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert run(command, [str(folder)], "tcpkmon") == 5
    assert run(condense, [str(folder)], "tcpkmon") == 5
    assert "tail unknown" in told.err


def test_a_log_without_samples(tmp_path: Path) -> None:
    build = LogBuilder()
    build.end_dump().finish()
    build.write(tmp_path / "kernlog.dump.cpu0")
    with open_log(tmp_path / "kernlog.dump.cpu0") as log, pytest.raises(UsageError, match="no sam"):
        collapse_stacks(log)
