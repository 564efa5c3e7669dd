# SPDX-License-Identifier: Apache-2.0
"""Conditions of --fail-if, such as `goodput_p50 worse 5%`: docs/conditions.md has the language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.formats.analysis.diff.metrics import BY_NAME, SHARE, Metric
from tcpkmon.formats.analysis.diff.statistics import DIFFERS, SAME, Compared, change_text
from tcpkmon.formats.base.expressions import (
    CHANGES,
    Name,
    Node,
    Number,
    Operation,
    parse_change,
    read_all,
)
from tcpkmon.formats.conditions import WRONG, Found, Scope, Value, names_in

_SIGNS = {"more": 1, "less": -1}
_BOUND = re.compile(r"\S+?%", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """It fails where it holds. metrics: those that it names, in their order."""

    text: str
    metrics: tuple[Metric, ...]
    value: Value


@dataclass(frozen=True)
class Judged:
    """failed: None where it cannot be judged. why: for people."""

    condition: Condition
    failed: bool | None
    why: str


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """ExpressionError for all mistakes of all texts."""
    return read_all(texts, _parse)


def _parse(text: str) -> Condition:
    node = parse_change(text)
    scope = _ChangeScope(text)
    value = scope.want("bool", node)
    scope.end()
    names = dict.fromkeys(one.text for one in names_in(node))
    return Condition(text, tuple(BY_NAME[name] for name in names), value)


def judge(conditions: Sequence[Condition], compared: Mapping[str, Compared]) -> list[Judged]:
    """What became of each. No data, or too few units, is no answer."""
    return [_judge(one, compared) for one in conditions]


def _judge(condition: Condition, compared: Mapping[str, Compared]) -> Judged:
    failed, is_known = condition.value.get(compared)
    found = [compared[metric.name] for metric in condition.metrics]
    told = [_why(one) for one in found]
    if len(found) > 1:
        told = [f"{one.metric.name}: {why}" for one, why in zip(found, told, strict=True)]
    return Judged(condition, bool(failed) if is_known else None, "; ".join(told))


def _why(found: Compared) -> str:
    if found.result not in (DIFFERS, SAME):
        return f"{found.result}: it cannot be judged"
    if found.result == SAME:
        return "no difference"
    return f"its {found.by} changed: {change_text(found.metric, found.change or 0.0)}"


class _ChangeScope(Scope):
    """Names are metrics; a row is what became of them all, by name."""

    what = "metric"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def name(self, node: Name) -> Value:
        if node.text not in BY_NAME:
            return self.unknown(f"metric '{node.text}'", node, BY_NAME)
        words = ", ".join(CHANGES)
        return self.add(f"say how {node.text} may not change: {words}, and a bound", node.at)

    def value(self, node: Node) -> Value:
        if isinstance(node, Operation) and node.operator in CHANGES:
            return self._change(node)
        return super().value(node)

    def _change(self, node: Operation) -> Value:
        name, bound = node.operands
        before = len(self.mistakes)
        if not isinstance(name, Name):
            self.add(f"{node.operator} takes a metric before it", name.at)
        elif name.text not in BY_NAME:
            self.name(name)
        if not isinstance(bound, Number) or not _BOUND.match(self._text, bound.at):
            self.add("expected a bound such as 5%", bound.at)
        elif isinstance(name, Name) and name.text in BY_NAME:
            metric = BY_NAME[name.text]
            sign = _SIGNS.get(node.operator) or metric.worse * (1, -1)[node.operator == "better"]
            if not sign:
                self.add(f"neither direction of {metric.name} is worse: write more or less",
                         node.at)  # fmt: skip
            elif bound.value >= 1 and (sign < 0 or metric.kind == SHARE):
                most = "100 points" if metric.kind == SHARE else "100% less"
                self.add(f"this never fails: {metric.name} changes by {most} at most", bound.at)
            else:
                return _changed(metric.name, sign, float(bound.value))
        assert len(self.mistakes) > before
        return WRONG


def _changed(name: str, sign: int, bound: float) -> Value:
    """Whether the metric differs, and by more than `bound` (0.05: five per cent)."""

    def get(compared: Any) -> Found:
        found: Compared = compared[name]
        differs = found.result == DIFFERS and sign * (found.change or 0.0) > bound
        return differs, found.result in (DIFFERS, SAME)

    return Value("bool", get, each=False)
