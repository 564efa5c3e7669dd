# SPDX-License-Identifier: Apache-2.0
"""The table of docs/requests.md: how near the rows are to the ends' own clocks and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scripts.markdown import table
from tests.truth.requests.judging import Judged


def page(found: Sequence[Judged], machine: Mapping[str, str]) -> list[str]:
    """The text, as Markdown."""
    good = [one for one in found if not one.wrong]
    heads = ("case", "requests:", "lost:", "invented:", "total:", "think:", "other parts:",
             "largest part:", "cannot tell:", "as wanted")  # fmt: skip
    rows = [
        [one.name, f"{one.made:,}", f"{one.lost:,}", f"{one.invented:,}", _share(one, "total_ns"),
         _share(one, "think_ns"), _others(one), _percent(one.largest), str(one.flagged or ""),
         "no" if one.wrong else "hidden" if one.hidden else "yes"]
        for one in found
    ]  # fmt: skip
    return [
        f"{machine['cpu']}, Linux {machine['kernel']}; {len(found)} cases, of which {len(good)} "
        f"are as wanted ({sum(one.hidden > 0 for one in good)} hidden), "
        f"{sum(one.made for one in found):,} requests.",
        "",
        *table(heads, rows),
    ]


def _percent(counts: tuple[int, int]) -> str:
    right, of = counts
    return f"{100 * right / of:.1f} %" if of else ""


def _share(one: Judged, column: str) -> str:
    """Of both sides, the worse."""
    counts = [count for name, count in one.right.items() if name.endswith(column)]
    return _percent(min(counts, key=lambda count: count[0] / count[1])) if counts else ""


def _others(one: Judged) -> str:
    """The worst of the other columns."""
    counts = {name: count for name, count in one.right.items()
              if not name.endswith(("total_ns", "think_ns"))}  # fmt: skip
    if not counts:
        return ""
    worst = min(counts, key=lambda name: counts[name][0] / counts[name][1])
    return _percent(counts[worst])
