# SPDX-License-Identifier: Apache-2.0
"""U2: a session of 12 users at terminals, condensed; each cell of the report is computed again."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.experiments.context import Context, tell
from scripts.experiments.figure import Figure
from scripts.experiments.report import NONE, Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.host import everything
from scripts.host.mix import Mix
from scripts.host.monitor import look, monitoring
from scripts.host.reference import CLASSES, Reference, compare
from scripts.host.users import KINDS, User, hold_session, make_homes
from tcpkmon.formats.analysis import open_log

NAME = "U2"
TITLE = "U2: a session of 12 users"
SECONDS, QUICK_SECONDS = 600.0, 20.0
CELLS, WRONG = "cells of the report", "cells that differ"
DID = "what the users did"
EVENTS, LOST, ELAPSED = "events", "lost", "elapsed, s"
EDGE_S = 0.5
TIMES = {
    "Response time (s)": ("response", 1.0), "Think time (s)": ("think", 1.0),
    "True CPU (ms)": ("cpu", 1e3), "True I/O (ms)": ("io", 1e3),
    "Login (s)": ("login", 1.0), "Logout (s)": ("logout", 1.0),
}  # fmt: skip
COUNTS = {
    "Physical page faults": "physical_faults", "Virtual page faults": "virtual_faults",
    "Processes": "processes",
}  # fmt: skip
SHARES = {
    "CPU utilization (percent)": ("cpu", 100.0), "Disk utilization (percent)": ("disk", 100.0),
    "Page fault rate (1/s)": ("faults_per_s", 1.0),
}  # fmt: skip
THEN = {
    "Response time (s)": ("2.748", "6.946", "6.870", "3.312"),
    "Think time (s)": ("9.393", "76.050", "28.517", "13.871"),
    "True CPU (ms)": ("1.318", "36.927", "8017.077", "3440.912"),
    "True I/O (ms)": ("6411.319", "6681.434", "9972.275", "9080.095"),
    "Physical page faults": ("0", "0", "2", "2"),
    "Virtual page faults": ("198", "130", "301", "629"),
    "Login (s)": (NONE, NONE, NONE, "10.4142"), "Logout (s)": (NONE, NONE, NONE, "131.6857"),
    "CPU utilization (percent)": ("43.4539", "0.0002", "43.4541"),
    "Disk utilization (percent)": ("57.9837", "0.0000", "57.9837"),
    "Page fault rate (1/s)": ("0.0001", "0.0281", "0.0282"),
}  # fmt: skip
"""Tables 5.1 and 5.2."""


def measure(context: Context) -> None:
    """The session, with everything else on beside the monitor (that is H10), once."""
    results = context.results
    if results.all(NAME, CELLS, "report"):
        return
    seconds = context.pick(SECONDS, QUICK_SECONDS)
    context.say(f"{NAME}, {everything.NAME}: {len(KINDS)} users for {seconds:.0f} s")
    homes = make_homes(context.folder / "users", _files(context.folder))
    with ExitStack() as stack:
        stack.enter_context(everything.on(context))
        capture = stack.enter_context(monitoring(context.folder, keep=True))
        time.sleep(EDGE_S)
        users = hold_session(homes, seconds, lambda: context.say(f"{NAME}: a minute more"))
        time.sleep(EDGE_S)
        results.add(NAME, LOST, "monitor", look(capture).lost)
    log = context.folder / "monitor.out"
    context.say(f"{NAME}: the report, and each cell again")
    told = json.loads(tell("condense", log, "--json"))
    _keep(results, told, users)
    check(results, log, told)


def _files(folder: Path) -> Path:
    made = folder / "mix"
    return made if made.exists() else Mix(folder).folder


def check(results: Results, log: Path, told: dict[str, Any]) -> None:
    """Every cell of what the condenser told, by plain loops over the events."""
    reference = Reference()
    with open_log(log) as events:
        for event in events:
            reference.add(event)
    cells, wrong = compare(told, reference.report())
    results.add(NAME, CELLS, "report", cells)
    results.add(NAME, WRONG, "report", len(wrong))
    for text in wrong[:10]:
        results.note(NAME, f"Differs: {text}")


def _keep(results: Results, told: dict[str, Any], users: list[User]) -> None:
    """Both tables, and what the users did."""
    for row, (field, unit) in TIMES.items():
        for group in told["classes"]:
            if group[field] is not None:
                for part in ("mean", "p95"):
                    results.add(NAME, f"{row}, {part}", group["name"], unit * group[field][part])
    for row, field in COUNTS.items():
        for group in told["classes"]:
            results.add(NAME, row, group["name"], group[field] or 0)
    for row, (field, unit) in SHARES.items():
        for part, share in (told[field] or {}).items():
            results.add(NAME, row, part, unit * share)
    for kind in dict.fromkeys(user.kind for user in users):
        some = [user for user in users if user.kind == kind]
        results.add(NAME, DID, f"{kind} users", len(some))
        results.add(NAME, DID, f"{kind} users' lines", sum(user.lines for user in some))
        results.add(NAME, DID, f"{kind} users' logins", sum(user.logins for user in some))
    results.add(NAME, EVENTS, "monitor", told["head"]["events"])
    results.add(NAME, ELAPSED, "monitor", told["head"]["elapsed_s"])


def value(results: Results, subject: str, case: str = "monitor") -> float:
    return results.median(NAME, subject, case) or 0.0


def figures(results: Results) -> list[Figure]:
    cells = results.median(NAME, CELLS, "report")
    if cells is None:
        return []
    wrong, elapsed = value(results, WRONG, "report"), value(results, ELAPSED)
    return [
        Figure(
            f"{NAME}: cells of the report that are the same when computed again", "-",
            f"{number(cells - wrong, 0)} of {number(cells, 0)}", "all", wrong == 0,
        ),
        Figure(
            f"{NAME}: the session", "22,378 s, 12 users, 9.3 events/s",
            f"{number(elapsed, 0)} s, {len(KINDS)} users, "
            f"{number(value(results, EVENTS) / max(1.0, elapsed), 0)} events/s, "
            f"{number(value(results, LOST), 0)} lost", "-", None,
        ),
    ]  # fmt: skip


def tables(results: Results) -> list[Table]:
    def cell(row: str, case: str, digits: int) -> str:
        found = results.median(NAME, row, case)
        return NONE if found is None else number(found, digits)

    first = [
        [row, *THEN.get(row, [NONE] * 4),
         *(" / ".join(cell(f"{row}, {part}", name, 3) for part in ("mean", "p95"))
           if results.all(NAME, f"{row}, mean", name) else NONE for name in CLASSES)]
        for row in TIMES
    ]  # fmt: skip
    first += [
        [row, *THEN.get(row, [NONE] * 4), *(cell(row, name, 0) for name in CLASSES)]
        for row in COUNTS
    ]
    second = [
        [row, *THEN[row], *(cell(row, part, 4) for part in ("true", "virtual", "total"))]
        for row in SHARES
    ]
    did = results.values.get(NAME, {}).get(DID, {})
    return [
        Table(
            "Table 5.1: by class of process",
            ("", *(f"1987: {name}" for name in CLASSES), *CLASSES), first,
            "Here: mean / 95th percentile. Classes by CPU time of the process: 10 ms, 1 s.",
        ),
        Table(
            "Table 5.2: the machine",
            ("", "1987: true", "1987: virtual", "1987: total", "true", "virtual", "total"), second,
        ),
        Table(
            "What the users did", ("", "number"),
            [[name, number(values[0], 0)] for name, values in did.items()],
        ),
    ]  # fmt: skip
