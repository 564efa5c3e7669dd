# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/why-accuracy.md: how often each limit that was made was found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from scripts.markdown import table
from tcpkmon.formats.analysis.why import LIMITS, RECEIVING
from tests.truth.why.judging import Judged

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
    return [
        f"{machine['cpu']}, Linux {machine['kernel']}; {len(by_name)} scenarios, {many} rounds of "
        f"each, {sum(one.lost for one in found)} records lost.",
        "",
        *table(("", "scenarios", "in a true limit", "worst scenario", "worst round",
                "with four columns more", "older files"),
               [_summary(name, rows) for name, rows in sorts if rows]),
        "",
        *_families(unseen),
        *_worst(by_name),
        "",
        *table(("scenario", "true", "right, mean", "worst", "found, mean", "the kernel noted"),
               [_scenario(name, rows) for name, rows in by_name.items()]),
        "",
        *_matrix(found),
    ]  # fmt: skip


def _scenario(name: str, rows: Sequence[Judged]) -> list[str]:
    return [
        name + (" *" if rows[0].held_out else ""), ", ".join(rows[0].truth),
        _percent(one.right for one in rows), _percent([min(one.right for one in rows)]),
        _listed([one.shares for one in rows], 0.001), _listed([one.kernel for one in rows], 0.05),
    ]  # fmt: skip


def _summary(name: str, rows: Sequence[Judged]) -> list[str]:
    means = _means(rows, "right")
    return [
        name, str(len(means)), _percent(means), _percent([min(means)]),
        _percent([min(one.right for one in rows)]),
        *(_percent(_means(rows, one)) for one in ("right_with_more", "right_in_older")),
    ]  # fmt: skip


def _means(rows: Sequence[Judged], name: str) -> list[float]:
    """Of each scenario the mean of its rounds, which may be more or less."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for one in rows:
        by_name[one.name].append(getattr(one, name))
    return [mean(values) for values in by_name.values()]


def _families(unseen: Sequence[Judged]) -> list[str]:
    """By family: how many, how often right, and how many verdicts point to the wrong place."""
    if not unseen:
        return []
    lines = []
    for name in dict.fromkeys(one.family for one in unseen):
        rows = [one for one in unseen if one.family == name]
        means, wrong = _means(rows, "right"), sum(bool(one.wrong) for one in rows)
        worst = _percent([min(one.right for one in rows)])
        lines.append([name, str(len(means)), _percent(means), worst, f"{wrong} of {len(rows)}"])
    heads = ("over a test link", "scenarios", "in a true limit", "worst round",
             "verdicts that mislead")  # fmt: skip
    return [*table(heads, lines), ""]


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
    lines = []
    for truth, rows in sorted(times.items(), key=lambda item: _NAMES.index(item[0][0])):
        total = sum(share for share, _ in rows) or 1.0
        cells = [", ".join(truth)]
        for name in columns:
            held = 100 * sum(share * shares.get(name, 0.0) for share, shares in rows) / total
            text = f"{held:.1f}" if held >= 0.05 else ""
            cells.append(f"**{text}**" if text and name not in truth else text)
        lines.append(cells)
    return [
        "Confusion: a row is what was true, a column what was found, in % of the time. What was "
        "not true is bold.",
        "",
        *table(["true", *columns], lines),
    ]


def _percent(values: Iterable[float]) -> str:
    listed = list(values)
    return f"{100 * mean(listed):.1f} %" if listed else "n/a"
