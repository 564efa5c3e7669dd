# SPDX-License-Identifier: Apache-2.0
"""What an experiment counted beside what another observer did, in the results."""

from __future__ import annotations

from collections.abc import Callable

from scripts.experiments.figure import Figure
from scripts.experiments.report import NONE, Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.plan.probes import find_unseen

OURS, ORACLE, ALLOWED, LEAST, MOST = "ours", "oracle", "allowed", "least", "most"


def agree(
    results: Results, name: str, what: str, ours: float, oracle: float, allowed: float = 0.0
) -> None:
    """Both count the same; allowed: by how much they may differ."""
    for case, value in ((OURS, ours), (ORACLE, oracle), (ALLOWED, allowed)):
        results.add(name, what, case, float(value))


def bound(
    results: Results, name: str, what: str, ours: float,
    least: float | None = None, most: float | None = None,
) -> None:  # fmt: skip
    """It lies within bounds."""
    for case, value in ((OURS, ours), (LEAST, least), (MOST, most)):
        if value is not None:
            results.add(name, what, case, float(value))


def note_unseen(results: Results, name: str) -> None:
    """Says what this kernel shows no program, if so: then a count may be too low."""
    if unseen := find_unseen(Btf.from_kernel()):
        results.note(name, f"A count may be too low here: {unseen}.")


def rows(results: Results, name: str) -> list[tuple[str, str, str, str, bool]]:
    """What, ours, the oracle's, what was wanted, and whether it is so."""
    found = []
    for what in results.values.get(name, {}):
        ours, oracle, allowed, least, most = (
            results.median(name, what, case) for case in (OURS, ORACLE, ALLOWED, LEAST, MOST)
        )
        if ours is None:
            continue
        if oracle is not None:
            good = abs(ours - oracle) <= (allowed or 0)
            wanted = f"within {_text(allowed)}" if allowed else "equal"
        else:
            good = (least is None or ours >= least) and (most is None or ours <= most)
            words = [f"at least {_text(least)}"] * (least is not None)
            wanted = " and ".join(words + [f"at most {_text(most)}"] * (most is not None))
        theirs = NONE if oracle is None else _text(oracle)
        found.append((what, _text(ours), theirs, wanted, good))
    return found


def _text(value: float | None) -> str:
    if value is None:
        return NONE
    return number(value, 0 if value == int(value) else 3)


def figures_of(name: str, then: str = NONE) -> Callable[[Results], list[Figure]]:
    """One for each that is not as wanted, and one for all others; then: the figure of then."""

    def figures(results: Results) -> list[Figure]:
        every = rows(results, name)
        good = [one for one in every if one[-1]]
        found = [
            Figure(f"{name}: {what}", then, f"{ours} against {theirs}", wanted, False)
            for what, ours, theirs, wanted, is_good in every
            if not is_good
        ]
        if good:
            text = f"{len(good)} of {len(every)} as wanted"
            found.insert(0, Figure(f"{name}: figures against oracles", then, text, "all",
                                   len(good) == len(every)))  # fmt: skip
        return found

    return figures


def tables_of(name: str, note: str = "") -> Callable[[Results], list[Table]]:
    def tables(results: Results) -> list[Table]:
        words = {True: "yes", False: "**no**"}
        return [
            Table(
                "Figures and oracles", ("", "tcpkmon", "oracle", "wanted", "agrees"),
                [(*one[:4], words[one[4]]) for one in rows(results, name)], note,
            )
        ]  # fmt: skip

    return tables
