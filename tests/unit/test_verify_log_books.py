# SPDX-License-Identifier: Apache-2.0
"""Verify of Klogger logs: the ledger against itself and the file; each disagreement is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.formats.base.causes import KILLED
from tcpkmon.formats.verify import verify_log
from tcpkmon.formats.verify.report import COLLECTOR_CAUSES, KERNEL_CAUSES, Report
from tests.full import first
from tests.unit.log_files import (
    COLLECTOR,
    FIELDS,
    KERNEL,
    LOST_EACH,
    SILENT,
    LogBuilder,
    Tamper,
    clean_log,
    lossy_log,
)


def check(build: LogBuilder, tmp_path: Path) -> Report:
    return verify_log(build.write(tmp_path / "kernlog.dump.cpu0"))


def problems(report: Report) -> str:
    return "\n".join(problem.what for problem in report.problems)


def change(name: str, key: str, by: int, nth: int = -1) -> Tamper:
    """Adds to a field of the final ledger of an event (all of them, or the nth)."""
    seen = 0

    def tamper(event: str, values: dict[str, Any]) -> dict[str, Any]:
        nonlocal seen
        if event == name and values["final"]:
            seen += 1
            if nth in (-1, seen - 1):
                return values | {key: max(0, values[key] + by)}
        return values

    return tamper


def test_nothing_lost_is_proven(tmp_path: Path) -> None:
    report = check(clean_log().finish(), tmp_path)
    assert (report.exit_code, problems(report)) == (0, "")
    assert report.verdict == "adds up: nothing lost"
    assert (report.end_reason, report.proven_end, report.tail_unknown) == ("asked", True, False)
    assert (report.lost_total, report.seq_lost, report.after_checkpoint) == (0, 0, 0)
    rows = {row.name: row for row in report.rows}
    assert {name: row.in_file for name, row in rows.items()} == {
        "A": 3, "B": 3, "SCHEDIN": 3, "SCHEDOUT": 3, "EVENT_START": 1, "EVENT_STOP": 1,
    }  # fmt: skip
    assert (rows["A"].location, rows["A"].cpu, rows["A"].attempts) == (1, 0, 3)
    assert report.checkpoints == 3
    assert report.entries == 52


def test_losses_of_every_cause_add_up(tmp_path: Path) -> None:
    report = check(lossy_log().finish(1), tmp_path)
    assert (report.exit_code, problems(report)) == (3, "")
    told = f"adds up: {2 * LOST_EACH} lost, all accounted for; {2 * 14} shed by the budget"
    assert report.verdict == told
    assert report.end_reason == "duration"
    rows = {row.name: row for row in report.rows}
    causes = (*KERNEL_CAUSES, *COLLECTOR_CAUSES, KILLED)
    for name in ("SCHEDOUT", "B"):
        assert rows[name].lost == {cause: n for n, cause in enumerate(causes, 1)}
        row = rows[name]
        assert (row.filtered, row.unchanged, row.limited, row.shed) == (11, 12, 13, 14)
        assert row.attempts == row.in_file + LOST_EACH + 50
        assert row.pending == 0
    # Those that took a serial: all but table full and no slot.
    assert report.seq_lost == 2 * (LOST_EACH - 4 - 5)
    assert report.lost_total == 2 * LOST_EACH
    assert (report.ring_lost, report.notes) == (2, [])


@pytest.mark.parametrize("by", first(1, [1, -1, 1000]))
@pytest.mark.parametrize("key", FIELDS)
def test_any_counter_of_the_final_ledger_that_is_off_is_found(
    tmp_path: Path, key: str, by: int
) -> None:
    report = check(lossy_log(tamper=change("LEDGER", key, by, 3)).finish(), tmp_path)
    assert report.exit_code == 5
    assert report.problems[0].entry > 0
    assert report.problems[0].offset > 0


@pytest.mark.parametrize("by", first(1, [1, -1, 1000]))
@pytest.mark.parametrize("key", ["serials", "read", "damaged", "late"])
def test_any_counter_of_the_cpu_that_is_off_is_found(tmp_path: Path, key: str, by: int) -> None:
    report = check(lossy_log(tamper=change("CPU_LEDGER", key, by)).finish(), tmp_path)
    assert report.exit_code == 5, report


def final(name: str, **by: int) -> Tamper:
    """Adds to fields of the last final ledger of an event (of location B, for LEDGER)."""

    def tamper(event: str, values: dict[str, Any]) -> dict[str, Any]:
        if event != name or not values["final"] or values.get("number", 9) != 9:
            return values
        return values | {key: values[key] + number for key, number in by.items()}

    return tamper


@pytest.mark.parametrize(
    ("tamper", "what"),
    [
        (final("LEDGER", attempts=1), "B: 4 attempts, but what became of them adds up to 3"),
        (
            final("LEDGER", written=-1, filtered=1),
            "B: 2 written into the ring, but 3 came out",
        ),
        (
            final("CPU_LEDGER", damaged=1),
            "0 records left the ring and are nowhere, 1 were damaged",
        ),
        (
            final("CPU_LEDGER", serials=1),
            "the kernel gave out 15 serials, its ledger accounts for 14",
        ),
        (final("CPU_LEDGER", serials=1), "1 serials are missing, the ledger counts 0 of them lost"),
        (final("CPU_LEDGER", read=1), "15 records read and 0 damaged of 14 written"),
        (final("CPU_LEDGER", late=1), "1 records late on the CPU, 0 by event"),
        (
            final("LEDGER", in_file=1),
            "B: 3 records in the file before a ledger that counts 4",
        ),
    ],
)
def test_each_check_of_the_final_ledger_has_its_words(
    tmp_path: Path, tamper: Tamper, what: str
) -> None:
    report = check(clean_log(tamper=tamper).finish(), tmp_path)
    assert report.exit_code == 5
    assert what in problems(report)


def test_an_earlier_ledger_is_judged_with_some_slack(tmp_path: Path) -> None:
    """64 events may be under way; what was read or lost is never more than what there was."""

    def early(name: str, **by: int) -> str:
        def tamper(event: str, values: dict[str, Any]) -> dict[str, Any]:
            if event != name or values["final"] or values.get("number", 9) != 9:
                return values
            return values | {key: values[key] + number for key, number in by.items()}

        return problems(check(clean_log(tamper=tamper).finish(), tmp_path))

    assert "adds up to" not in early("LEDGER", attempts=64)
    assert "B: 68 attempts, but what became of them" in early("LEDGER", attempts=65)
    assert "records read and" not in early("CPU_LEDGER", read=64)
    assert "records read and" in early("CPU_LEDGER", read=65)
    assert "records late on the CPU" in early("CPU_LEDGER", late=1)
    lost = early("LEDGER", attempts=65, ring_full=65)
    assert "0 serials are missing so far, fewer than the 65 lost" in lost


@pytest.mark.parametrize("key", [*KERNEL, *SILENT, *COLLECTOR[:-1], "filtered", "limited"])
def test_a_loss_that_is_called_another_kind_of_loss_is_told_as_such(
    tmp_path: Path, key: str
) -> None:
    """Causes can only be told apart by the ledger; their sum is checked."""
    build = clean_log()
    build.lose(key, 3).log("SCHEDIN", pid=2).end_dump().finish()
    report = check(build, tmp_path)
    assert problems(report) == ""
    assert report.totals.limited == 3 * (key == "limited")
    assert report.exit_code == (0 if key in ("filtered", "limited") else 3)


def forget(build: LogBuilder) -> LogBuilder:
    """A program that counts less than before."""
    build.programs["one"] = (3, 4)
    build.ledger()
    build.programs["one"] = (2, 4)
    return build.finish()


def unseen(event: str, **values: Any) -> Callable[[LogBuilder], LogBuilder]:
    """A record that no ledger counts."""

    def add(build: LogBuilder) -> LogBuilder:
        build.maker.add(event, values).end_dump()
        return build.finish()

    return add


CPU = {"serials": 14, "read": 14, "damaged": 0, "late": 0, "ring_lost": 0, "final": 0}
EVENT = {"number": 1, "final": 0, "attempts": 3, "written": 3, "in_file": 3}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda log: log.base("CPU_LEDGER", **CPU).ledger(), "2 CPU_LEDGERs in one dump"),
        (lambda log: log.base("LEDGER", **EVENT).ledger(), "two ledgers of event 1 in one dump"),
        (lambda log: log.ledger(final=True).finish(), "a ledger follows the final one"),
        (lambda log: log.log("SCHEDIN", pid=1).finish(), "holds records of the kernel too"),
        (unseen("SNAPSHOT", location=300), "no location 300"),
        (unseen("SCHEDOUT", pid=3), "4 records in the file before a ledger that counts 3"),
        (forget, "one fell from 3 to 2"),
    ],
)
def test_what_contradicts_the_ledgers_is_found(
    tmp_path: Path, change: Callable[[LogBuilder], LogBuilder], what: str
) -> None:
    report = check(change(clean_log()), tmp_path)
    assert report.exit_code == 5
    assert what in problems(report)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda name, old: None if name == "LEDGER" and old["number"] == 9 else old,
         "B: 3 records in the file before a ledger that counts 0"),
        (lambda name, old: old | {"attempts": old["attempts"] + 40}
         if name == "LEDGER" and not old["final"] and old["attempts"] else old,
         "attempts fell from 43 to 3"),
    ],
)  # fmt: skip
def test_ledgers_that_lack_or_fall_are_found(tmp_path: Path, change: Tamper, what: str) -> None:
    report = check(clean_log(tamper=change).finish(), tmp_path)
    assert report.exit_code == 5
    assert what in problems(report)


@pytest.mark.parametrize("lost", [1, 20])
def test_serials_that_nobody_counts_are_found(tmp_path: Path, lost: int) -> None:
    build = clean_log()
    build.gap = lost
    report = check(build.log("SCHEDIN", pid=2).end_dump().finish(), tmp_path)
    assert report.exit_code == 5
    given = build.serials
    assert f"serial {given + lost} of the kernel in the file, but only {given} given out" in (
        problems(report)
    )


def test_a_loss_after_the_last_record_is_known(tmp_path: Path) -> None:
    build = clean_log().lose("ring_full", 4)  # no gap tells of it
    report = check(build.finish(), tmp_path)
    assert (report.exit_code, report.problems_total) == (3, 0)
    assert report.verdict == "adds up: 4 lost, all accounted for"


def test_what_the_ring_itself_counts_is_compared_and_not_judged(tmp_path: Path) -> None:
    build = clean_log(tamper=change("CPU_LEDGER", "ring_lost", 3)).lose("ring_full", 4)
    report = check(build.finish(), tmp_path)
    assert (report.exit_code, report.problems_total, report.ring_lost) == (3, 0, 7)
    assert report.notes == ["the ring itself counts 7 that found no room, the ledger 4"]


def test_what_is_under_way_is_no_disagreement(tmp_path: Path) -> None:
    """A ledger that is read while the kernel counts may be some events ahead, or behind."""

    def tamper(name: str, values: dict[str, Any]) -> dict[str, Any]:
        if name == "LEDGER" and not values["final"]:
            return values | {"attempts": values["attempts"] + 2}
        return values

    build = clean_log(tamper=tamper)
    build.log("EVENT_START", id=1).log("SCHEDIN", pid=5).log("SCHEDOUT", pid=5)
    for name in ("SCHEDIN", "SCHEDOUT", "EVENT_START", "EVENT_STOP"):
        build.lose("filtered", 5, name)
    for location in (1, 9):
        build.lose("filtered", 5, "SNAPSHOT", location=location)
    assert check(build.end_dump().finish(), tmp_path).exit_code == 0


def test_programs_that_missed_events_are_losses(tmp_path: Path) -> None:
    build = clean_log()
    build.programs["one"] = (3, 4)
    report = check(build.finish(), tmp_path)
    assert (report.exit_code, report.missed_total, report.lost_total) == (3, 7, 7)
    assert report.missed[0].name == "one"


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("LEDGER", {"number": 200}, "a ledger of event 200, which the log does not know"),
        ("LEDGER", {"final": 0}, "some ledgers of this dump are final, some are not"),
        ("LEDGER", {"attempts": 2**63}, "a counter of the ledger is beyond all measure"),
        ("CPU_LEDGER", {"serials": 2**64 - 1}, "a counter of the ledger is beyond all measure"),
        ("CPU_LEDGER", None, "ledgers without a CPU_LEDGER"),
        ("CLOCK", {"mono_ns": 5}, "the monotonic clock of this pair runs back"),
        ("CLOCK", {"realtime_ns": 5}, "clock pair says a step of 0 ns"),
        ("CLOCK", {"step_ns": 5_000_000}, "clock pair says a step of 5000000 ns"),
        ("KLOGGER_START", None, "the log does not begin with KLOGGER_START"),
    ],
)
def test_base_events_that_make_no_sense_are_found(
    tmp_path: Path, name: str, values: dict[str, Any] | None, what: str
) -> None:
    count = 0

    def tamper(event: str, told: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal count
        if event != name or (name == "LEDGER" and not told["final"]):
            return told
        count += 1
        # The first CLOCK has nothing before it; of LEDGERs one is enough.
        if count != (2 if name == "CLOCK" else 1) and values is not None:
            return told
        return None if values is None else told | values

    report = check(clean_log(tamper=tamper).finish(), tmp_path)
    assert report.exit_code == 5
    assert what in problems(report)


def test_a_clock_step_that_is_told_is_right(tmp_path: Path) -> None:
    build = clean_log()
    build.pair(3_600_000_000_000)
    report = check(build.end_dump().finish(), tmp_path)
    assert (report.exit_code, report.clock_pairs, report.clock_steps) == (0, 3, 1)


def test_time_that_runs_back_is_found(tmp_path: Path) -> None:
    build = clean_log().log("SCHEDIN", at=9_000_000_000).log("SCHEDOUT", at=8_500_000_000)
    assert check(build.end_dump().finish(), tmp_path).exit_code == 0
    build = clean_log().log("SCHEDIN", at=9_000_000_000).log("SCHEDOUT", at=7_500_000_000)
    report = check(build.end_dump().finish(), tmp_path)
    assert "time runs back by 1500000000 ns" in problems(report)
