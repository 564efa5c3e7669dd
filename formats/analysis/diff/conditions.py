# SPDX-License-Identifier: Apache-2.0
"""Conditions of --fail-if, such as `goodput_p50 worse 5%`: read, and judged.

    condition = metric ("worse" | "better" | "more" | "less") number "%"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tcpkmon.formats.analysis.diff.metrics import BY_NAME, SHARE, Metric
from tcpkmon.formats.analysis.diff.statistics import DIFFERS, SAME, Compared, change_text
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.expressions import ExpressionError, Mistake
from tcpkmon.formats.base.limits import MOST_TRIGGER_CHARACTERS
from tcpkmon.formats.schema import suggest

_WORDS = {"worse": 0, "better": 0, "more": 1, "less": -1}
_BOUND = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)%", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """It fails where the metric differs, and by more than `bound` (0.05: five per cent).

    sign: 1 if it is about more of the metric, -1: about less.
    """

    text: str
    metric: Metric
    sign: int
    bound: float


@dataclass(frozen=True)
class Judged:
    """failed: None where it cannot be judged. why: for people."""

    condition: Condition
    failed: bool | None
    why: str


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """ExpressionError for all mistakes of all texts."""
    found: list[Condition] = []
    mistakes: list[tuple[str, Mistake]] = []
    for text in texts:
        wrong = list(_mistakes(text))
        mistakes += [(text, mistake) for mistake in wrong]
        if wrong:
            continue
        name, word, bound = text.split()
        metric = BY_NAME[name]
        sign = _WORDS[word] or (metric.worse if word == "worse" else -metric.worse)
        found.append(Condition(text, metric, sign, float(bound[:-1]) / 100))
        if found[-1].bound >= 1 and (sign < 0 or metric.kind == SHARE):
            most = "100 points" if metric.kind == SHARE else "100% less"
            told = f"this never fails: {name} changes by {most} at most"
            mistakes.append((text, Mistake(told, text.rindex(bound))))
    if mistakes:
        raise ExpressionError(mistakes)
    return found


def _mistakes(text: str) -> list[Mistake]:
    if len(text) > MOST_TRIGGER_CHARACTERS:
        return [Mistake(f"a condition has at most {MOST_TRIGGER_CHARACTERS} characters", 0)]
    words = [(match.group(), match.start()) for match in re.finditer(r"\S+", text)]
    found = []
    name = words[0][0] if words else ""
    if words and name not in BY_NAME:
        found.append(Mistake(f"no metric '{for_terminal(name)}'{suggest(name, list(BY_NAME))}",
                             words[0][1]))  # fmt: skip
    if len(words) > 1:
        word, at = words[1]
        if word not in _WORDS:
            found.append(Mistake(f"expected worse, better, more or less, found "
                                 f"'{for_terminal(word)}'", at))  # fmt: skip
        elif not _WORDS[word] and name in BY_NAME and not BY_NAME[name].worse:
            found.append(Mistake(f"neither direction of {name} is worse: write more or less", at))
    if len(words) > 2 and not _BOUND.fullmatch(words[2][0]):
        found.append(Mistake("expected a bound such as 5%", words[2][1]))
    if len(words) > 3:
        found.append(Mistake("expected the end", words[3][1]))
    if len(words) < 3:
        wanted = ("a metric", "worse, better, more or less", "a bound such as 5%")[len(words)]
        found.append(Mistake(f"expected {wanted}, but the condition ends here", len(text)))
    return found


def judge(conditions: Sequence[Condition], compared: Mapping[str, Compared]) -> list[Judged]:
    """What became of each. No data, or too few units, is no answer."""
    return [_judge(one, compared[one.metric.name]) for one in conditions]


def _judge(condition: Condition, found: Compared) -> Judged:
    if found.result not in (DIFFERS, SAME):
        return Judged(condition, None, f"{found.result}: it cannot be judged")
    if found.result == SAME:
        return Judged(condition, False, "no difference")
    change = found.change or 0.0
    told = f"its {found.by} changed: {change_text(condition.metric, change)}"
    return Judged(condition, condition.sign * change > condition.bound, told)
