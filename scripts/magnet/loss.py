# SPDX-License-Identifier: Apache-2.0
"""M2: what is lost at full speed, and whether each loss is counted where rings are too small."""

from __future__ import annotations

import csv
from pathlib import Path

from scripts.experiments.context import Context, tell
from scripts.experiments.figure import Figure
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.experiments.tools import Tool
from scripts.magnet.wire import FAST, PACKETS, SLOW, TRANSFERS, Wire, magnet, wired
from tcpkmon.formats.registry import format_of

NAME = "M2"
TITLE = "M2: loss"
SECONDS, QUICK_SECONDS = 60.0, 1.0
FLOOD_SECONDS, QUICK_FLOOD_SECONDS = 5.0, 0.5
TRIPS = "ping-pong of 64 connections"
SATURATED = (SLOW, FAST)
OVERFLOW = "pingpong 64 {}"
FLOODS = {TRIPS: OVERFLOW, PACKETS: "bulk {}"}
TINY_MB = "0.008"
TINY = {form: f"rings of 8 KiB, --format {form}" for form in ("magnet", "klogger")}
RECORDS, RATE, LOST, MISSING, PROOF = (
    "records", "events/s", "lost, by the ledger", "missing in the file", "verify's exit code",
)  # fmt: skip
SUBJECTS = (RECORDS, RATE, LOST, MISSING, PROOF)
LOST_EVENT = "MAGNET_LOST"


def measure(context: Context) -> None:
    """A saturated link at both rates; all that this machine can do; and with tiny rings."""
    with wired(context) as wire:
        for subject in SATURATED:
            link = TRANSFERS[subject].link
            seconds = context.pick(SECONDS, QUICK_SECONDS)
            context.say(f"{NAME}: {seconds:.0f} s at {subject}")
            wire.set(link)
            order = f"transfer {int(link.rate_mbit * 1e6 / 8 * seconds)}"
            _record(context, wire, magnet(wire.lab, subject, "ab"), order)
        seconds = context.pick(FLOOD_SECONDS, QUICK_FLOOD_SECONDS)
        wire.set(TRANSFERS[PACKETS].link)
        for subject, order in FLOODS.items():
            context.say(f"{NAME}: {subject}")
            _record(context, wire, magnet(wire.lab, subject, "ab"), order.format(seconds))
        for form, subject in TINY.items():
            context.say(f"{NAME}: {subject}")
            tool = magnet(wire.lab, subject, "ab", "--buffer-size", TINY_MB, form=form)
            _record(context, wire, tool, OVERFLOW.format(seconds))


def _record(context: Context, wire: Wire, tool: Tool, order: str) -> None:
    with tool.running(context.folder, wire.warm) as it:
        done = wire.load.run(order)
        outcome = it.end()
        reports = format_of(str(it.file)).verify(str(it.file))
        lost = sum(report.totals.lost_total for report in reports)
        missing = sum(report.seq_lost for report in reports)
        if lost and it.file.is_file():
            missing = lost_records(it.file)
        code = max(report.exit_code for report in reports)
    found = (outcome.records, outcome.records / done.seconds, lost, missing, code)
    for subject, value in zip(SUBJECTS, found, strict=True):
        context.results.add(NAME, subject, tool.name, value)


def lost_records(file: Path) -> int:
    """The sum of the counts of a MAGNeT file's LOST records, as its table has them."""
    table = tell("magnet-parse", file).splitlines()
    rows = csv.DictReader(table, delimiter="\t")
    return sum(int(row["size"]) for row in rows if row["event"] == LOST_EVENT)


def figures(results: Results) -> list[Figure]:
    found = []
    for case in (SLOW, FAST):
        records, lost = (results.median(NAME, subject, case) for subject in (RECORDS, LOST))
        if records is not None and lost is not None:
            found.append(Figure(
                f"{NAME}: lost of a saturated {case}", "under 1 %" if case == SLOW else "-",
                f"{number(lost, 0)} of {number(records + lost, 0)}", "0",
                not lost and results.median(NAME, PROOF, case) == 0,
            ))  # fmt: skip
    for case in FLOODS:
        rate, lost = (results.median(NAME, subject, case) for subject in (RATE, LOST))
        if rate is not None and lost is not None:
            found.append(Figure(
                f"{NAME}: as fast as this machine can, {case}", "-",
                f"{number(rate, 0)} events/s, {number(lost, 0)} lost", "-", None,
            ))  # fmt: skip
    for case in TINY.values():
        lost, missing = (results.median(NAME, subject, case) for subject in (LOST, MISSING))
        if lost is not None and missing is not None:
            found.append(Figure(
                f"{NAME}: {case}: ledger = missing", "-",
                f"{number(lost, 0)} = {number(missing, 0)}" if lost == missing else
                f"{number(lost, 0)} and {number(missing, 0)}",
                "equal, and more than 0", 0 < lost == missing,
            ))  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    cases = [case for case in (SLOW, FAST, *FLOODS, *TINY.values())
             if results.all(NAME, RECORDS, case)]  # fmt: skip
    rows = [
        [case, *(number(results.median(NAME, subject, case) or 0, 0) for subject in SUBJECTS)]
        for case in cases
    ]
    return [
        Table(
            "Both ends recorded", ("", *SUBJECTS), rows,
            f"Missing: the sum of the file's {LOST_EVENT} records; in Klogger logs, missing "
            "serials. 0 of verify: proven that nothing was lost, 3: all losses are accounted for.",
        )
    ]  # fmt: skip
