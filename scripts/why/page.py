# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/why.md: how often each limit that was made was found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from scripts.why.judging import Judged
from tcpkmon.formats.analysis.why import LIMITS, RECEIVING

WANTED = 0.95
_NAMES = (*LIMITS, "cpu", *RECEIVING, "rx_none")


def page(found: Sequence[Judged], machine: Mapping[str, str]) -> list[str]:
    """The text, as Markdown. found: some rounds of some scenarios."""
    by_name: dict[str, list[Judged]] = defaultdict(list)
    for one in found:
        by_name[one.name].append(one)
    rounds = [len(rows) for rows in by_name.values()]
    kinds = (
        ("tuned by", False, False), ("kept out of tuning (*)", True, False),
        ("over a test link, truths written first, tuned by since", False, True),
        ("over a test link, truths written first (*)", True, True),
    )  # fmt: skip
    sorts = [(name, [one for one in found if (one.held_out, bool(one.family)) == (held, linked)])
             for name, held, linked in kinds]  # fmt: skip
    unseen = [one for one in found if one.family]
    many = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
    lines = [
        f"{machine['cpu']}, Linux {machine['kernel']}; {len(by_name)} scenarios, {many} rounds of "
        f"each, {sum(one.lost for one in found)} records lost.",
        "",
        "| | scenarios | in a true limit | worst scenario | worst round | with four columns "
        "more | older files |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_summary(name, rows) for name, rows in sorts if rows),
        "",
        *_families(unseen),
        *_worst(by_name),
        "",
        "| scenario | true | right, mean | worst | found, mean | the kernel noted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name, rows in by_name.items():
        mark = " *" if rows[0].held_out else ""
        lines.append(
            f"| {name}{mark} | {', '.join(rows[0].truth)} | {_percent(one.right for one in rows)} "
            f"| {100 * min(one.right for one in rows):.1f} % "
            f"| {_listed([one.shares for one in rows], 0.001)} "
            f"| {_listed([one.kernel for one in rows], 0.05)} |"
        )
    return [*lines, "", *_matrix(found)]


def _summary(name: str, rows: Sequence[Judged]) -> str:
    by_name: dict[str, list[float]] = defaultdict(list)
    for one in rows:
        by_name[one.name].append(one.right)
    worst = min(mean(values) for values in by_name.values())
    return (
        f"| {name} | {len(by_name)} | {_of_all(rows, 'right')} | {100 * worst:.1f} % "
        f"| {100 * min(one.right for one in rows):.1f} % "
        f"| {_of_all(rows, 'right_with_more')} | {_of_all(rows, 'right_in_older')} |"
    )


def _of_all(rows: Sequence[Judged], name: str) -> str:
    """The mean over the scenarios, each with the mean of its rounds, which may be more or less."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for one in rows:
        by_name[one.name].append(getattr(one, name))
    return _percent(mean(values) for values in by_name.values())


def _families(unseen: Sequence[Judged]) -> list[str]:
    """By family: how many, how often right, and how many verdicts point to the wrong place."""
    if not unseen:
        return []
    lines = [
        "| over a test link | scenarios | in a true limit | worst round | verdicts that mislead |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(one.family for one in unseen):
        rows = [one for one in unseen if one.family == name]
        worst, wrong = min(one.right for one in rows), sum(bool(one.wrong) for one in rows)
        lines.append(
            f"| {name} | {len({one.name for one in rows})} | {_of_all(rows, 'right')} "
            f"| {100 * worst:.1f} % | {wrong} of {len(rows)} |"
        )
    return [*lines, ""]


def _worst(by_name: Mapping[str, Sequence[Judged]]) -> list[str]:
    low = {name: mean(one.right for one in rows) for name, rows in by_name.items()}
    missed = sorted((share, name) for name, share in low.items() if share < WANTED)
    if not missed:
        return [f"No scenario is below {100 * WANTED:.0f} %."]
    told = "; ".join(f"{name} ({100 * share:.1f} %)" for share, name in missed)
    return [f"Below {100 * WANTED:.0f} %: {told}."]


def _listed(rows: Sequence[Mapping[str, float]], least: float) -> str:
    names = dict.fromkeys(name for row in rows for name in row)
    shares = {name: mean(row.get(name, 0.0) for row in rows) for name in names}
    most = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {100 * share:.1f}" for name, share in most if share >= least)


def _matrix(found: Sequence[Judged]) -> list[str]:
    """Rows: what was true. Columns: what was found, in % of the time; bold: what was not true."""
    times: dict[Sequence[str], list[tuple[float, Mapping[str, float]]]] = defaultdict(list)
    for one in found:
        for truth, share, shares in one.parts or [(one.truth, 1.0, one.shares)]:
            times[tuple(truth)].append((share, shares))
    columns = [name for name in _NAMES if any(
        name in shares for rows in times.values() for _, shares in rows)]  # fmt: skip
    lines = [
        "Confusion: a row is what was true, a column what was found, in % of the time. What was "
        "not true is bold.",
        "",
        f"| true | {' | '.join(columns)} |",
        f"| --- |{' --- |' * len(columns)}",
    ]
    for truth, rows in sorted(times.items(), key=lambda item: _NAMES.index(item[0][0])):
        total = sum(share for share, _ in rows) or 1.0
        cells = []
        for name in columns:
            held = 100 * sum(share * shares.get(name, 0.0) for share, shares in rows) / total
            text = f"{held:.1f}" if held >= 0.05 else ""
            cells.append(f"**{text}**" if text and name not in truth else text)
        lines.append(f"| {', '.join(truth)} | {' | '.join(cells)} |")
    return lines


def _percent(values: Iterable[float]) -> str:
    listed = list(values)
    return f"{100 * mean(listed):.1f} %" if listed else "n/a"
