# SPDX-License-Identifier: Apache-2.0
"""Whether the values of two sides differ: Mann-Whitney's test, and how much their medians do.

scipy does the statistics; it is imported when the first metric is compared.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, isfinite
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.latency.stages import PARTS
from tcpkmon.formats.analysis.why.limits import FAMILY, LIMITS
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.expressions import (
    CHANGES,
    Name,
    Node,
    Number,
    Operation,
    parse_change,
    read_all,
)
from tcpkmon.formats.base.installing import how_to_install
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.conditions import WRONG, Found, Scope, Value, names_in

# What is compared: the metrics, and which direction of each is worse.

RATE, TIME, RATIO, SHARE = "rate", "time", "ratio", "share"


@dataclass(frozen=True)
class Metric:
    """kind: RATE [bytes/s], TIME [us], RATIO or SHARE (numbers from 0, shown in %). The change of a
    SHARE is a difference in points, that of the others is relative.

    worse: 1 if more is worse, -1 if less is, 0: neither. of_sender: null for the end that receives.
    """

    name: str
    kind: str
    worse: int
    text: str
    of_sender: bool = False


SHARED = tuple(name for name in LIMITS if name not in FAMILY and name != "closing")
"""The limits whose shares are compared, with their parts."""
METRICS = (
    Metric("goodput_mean", RATE, -1, "bytes of data by the connection's time"),
    Metric("goodput_p50", RATE, -1, "of its times of 100 ms the middle one"),
    Metric("duration_us", TIME, 1, "from its first record to its last"),
    Metric("handshake_us", TIME, 1, "from SYN_SENT to ESTABLISHED"),
    Metric("min_rtt_us", TIME, 1, "least round-trip time"),
    Metric("srtt_p50_us", TIME, 1, "smoothed round-trip time, the middle of its records", True),
    Metric("srtt_p95_us", TIME, 1, "and their 95 %", True),
    Metric("queue_p95_us", TIME, 1, "of round trips, what is beyond the least, 95 %", True),
    Metric("retrans_ratio", RATIO, 1, "bytes sent again by bytes sent", True),
    *(
        Metric(f"share_{name}", SHARE, int(name in ("recovery", "rto_wait")),
               f"of its time, in which the limit was {name}", True)
        for name in SHARED
    ),
    *(
        Metric(f"latency_{part}_us", TIME, 1, f"of a byte's time, in {part} (mean)")
        for part in PARTS
    ),
    Metric("latency_whole_us", TIME, 1, "a byte's time from write to read, or to ACK (mean)"),
    Metric("latency_whole_p95_us", TIME, 1, "and the 95 % of its bytes"),
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in METRICS}


def parse_metrics(text: str | None) -> list[str]:
    """The names of NAME,... UsageError for an unknown one."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    unknown = [f"{name}{suggest(name, BY_NAME)}" for name in names if name not in BY_NAME]
    if unknown:
        hint = "tcpkmon diff --metrics help lists them"
        raise UsageError(f"no metric {', '.join(unknown)}", hint)
    return names


DIFFERS, SAME, NO_DATA, TOO_FEW = "differs", "same", "no data", "too few"
MEDIAN, MEAN = "median", "mean"
ALPHA = 0.01
"""Twenty comparisons of equal captures then give a false alarm in one case of five."""
LEAST_SHARE = 0.01
"""A share that no unit reaches is not tested."""
_FEW = 50
"""Units for which p is exact, if no two are equal; with equal ones up to two times eight."""
_MOST_ORDERS = 20_000
_RESAMPLES, _MOST_RESAMPLED = 2000, 20_000_000
_CONFIDENCE = 0.95
_FACTOR = 4
"""A larger change is shown as a factor."""
_MIDDLE: dict[str, Callable[..., Any]] = {MEDIAN: np.median, MEAN: np.mean}


@dataclass(frozen=True)
class Spread:
    """n values of a side. median, low and high: quartiles."""

    n: int
    median: float
    low: float
    high: float
    mean: float


@dataclass(frozen=True)
class Compared:
    """What became of a metric.

    result: DIFFERS, SAME, NO_DATA on a side, or TOO_FEW units to tell. change: of the medians (see
    `by`), from a to b: relative (0.1: ten per cent more; infinite from 0), of a share the
    difference. interval: of the change, 95 %, None where it has none. p: corrected for the number
    of tests. larger: in which share of all pairs of units that of b is the larger one; equal ones
    count half. by: of what the change is: MEDIAN, or MEAN where both medians are equal.
    """

    metric: Metric
    result: str
    a: Spread | None = None
    b: Spread | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    larger: float | None = None
    by: str = MEDIAN

    @property
    def is_worse(self) -> bool | None:
        """Whether b is worse; None where it does not differ, or neither direction is worse."""
        if self.result != DIFFERS or not self.metric.worse or self.larger is None:
            return None
        return (self.larger > 0.5) == (self.metric.worse > 0)


@dataclass(frozen=True)
class Family:
    """Tests that are corrected for together. tests: how many. needed: units that each side must
    have, at least, so that a difference can be seen."""

    names: tuple[str, ...]
    tests: int
    needed: int


def compare(
    a: Mapping[str, Array], b: Mapping[str, Array], named: Collection[str] = (),
    alpha: float = ALPHA, metrics: Collection[str] = (), confidence: float = _CONFIDENCE,
) -> tuple[list[Compared], list[Family]]:
    """Each metric that a side has, and the families of tests.

    a, b: (units,) finite values by metric. named: metrics that were named before the data was
    seen, a family of their own. metrics: only these. confidence: of the intervals; 0: none are
    made. UsageError without scipy.
    """  # fmt: skip
    some = [one for one in METRICS if not metrics or one.name in metrics]
    known = [one for one in some if len(a.get(one.name, ())) or len(b.get(one.name, ()))]
    asked = [one for one in some if one in known or one.name in {*named, *metrics}]
    found: dict[str, Compared] = {}
    families = []
    none = np.zeros(0)
    for group in (True, False):
        mine = [one for one in asked if (one.name in named) == group]
        if not mine:
            continue
        tested = [
            _test(one, a.get(one.name, none), b.get(one.name, none), confidence) for one in mine
        ]
        corrected = _correct(tested, alpha)
        found |= {one.metric.name: one for one in corrected}
        tests = sum(one.p is not None for one in tested)
        families.append(Family(tuple(one.name for one in mine), tests, _needed(tests, alpha)))
    return [found[one.name] for one in asked], families


def _test(metric: Metric, a: Array, b: Array, confidence: float) -> Compared:
    """With the p of the test alone. Values that are all the same, and shares of limits that hardly
    ever held, need none; this looks at both sides together, so it favours no answer."""
    sides = _spread(a), _spread(b)
    if not len(a) or not len(b):
        return Compared(metric, NO_DATA, *sides)
    both = np.concatenate((a, b))
    if (both == both[0]).all() or (metric.kind == SHARE and both.max() < LEAST_SHARE):
        change = float(_change(metric, np.median(a), np.median(b)))
        return Compared(metric, SAME, *sides, change)
    stats = scipy_stats()
    options: dict[str, Any] = {"method": "asymptotic"}
    if len(np.unique(both)) == len(both):
        options["method"] = "exact" if len(both) <= _FEW else "asymptotic"
    elif min(len(a), len(b)) > 1 and comb(len(both), len(a)) <= _MOST_ORDERS:
        options["method"] = stats.PermutationMethod(n_resamples=_MOST_ORDERS)
    found = stats.mannwhitneyu(a, b, **options)
    larger = 1 - float(found.statistic) / (len(a) * len(b))
    by = MEAN if np.median(a) == np.median(b) else MEDIAN
    change = _change(metric, _MIDDLE[by](a), _MIDDLE[by](b))
    interval = _interval(metric, a, b, by, confidence, stats) if confidence else None
    return Compared(metric, SAME, *sides, float(change), interval,
                    min(float(found.pvalue), 1.0), larger, by)  # fmt: skip


def _spread(values: Array) -> Spread | None:
    if not len(values):
        return None
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Spread(len(values), middle, low, high, float(np.mean(values)))


def _change(metric: Metric, a: Any, b: Any) -> Any:
    if metric.kind == SHARE:
        return b - a
    with np.errstate(all="ignore"):
        return np.where(b == a, 0.0, b / a - 1)


def change_text(metric: Metric, change: float | None) -> str:
    """A change: +5 %, x 8, -3 points."""
    if change is None:
        return ""
    if metric.kind == SHARE:
        return f"{100 * change:+.3g} points"
    if change == float("inf"):
        return "from 0"
    return f"x {1 + change:.3g}" if change > _FACTOR else f"{100 * change:+.3g} %"


def interval_text(one: Compared) -> str:
    """The bounds of a change, in the unit of change_text(): +31 to +45 %; empty without any."""
    if one.interval is None:
        return ""
    low, high = one.interval
    if one.metric.kind == SHARE:
        return f"{100 * low:+.3g} to {100 * high:+.3g} points"
    if one.change is not None and one.change > _FACTOR:
        return f"x {1 + low:.3g} to x {1 + high:.3g}"
    return f"{100 * low:+.3g} to {100 * high:+.3g} %"


def _interval(
    metric: Metric, a: Array, b: Array, by: str, confidence: float, stats: Any
) -> tuple[float, float] | None:
    if min(len(a), len(b)) < 2:
        return None
    size, middle = len(a) + len(b), _MIDDLE[by]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # all resamples alike
        found = stats.bootstrap(
            (a, b),
            lambda one, other, axis=-1: _change(
                metric, middle(one, axis=axis), middle(other, axis=axis)
            ),
            n_resamples=max(200, min(_RESAMPLES, _MOST_RESAMPLED // size)),
            batch=max(1, (1 << 20) // size),
            method="percentile", confidence_level=confidence, vectorized=True,
            random_state=np.random.default_rng(1),
        ).confidence_interval  # fmt: skip
    low, high = float(found.low), float(found.high)
    return (low, high) if isfinite(low) and isfinite(high) else None


def _correct(tested: list[Compared], alpha: float) -> list[Compared]:
    """After Holm: the least p counts as often as there are tests, the next once less, and so on."""
    order = sorted(
        (at for at, one in enumerate(tested) if one.p is not None), key=lambda at: tested[at].p or 0
    )
    found, largest = list(tested), 0.0
    for place, at in enumerate(order):
        one = tested[at]
        largest = max(largest, min(1.0, (len(order) - place) * (one.p or 0.0)))
        found[at] = replace(one, p=largest, result=DIFFERS if largest <= alpha else SAME)
    for at, one in enumerate(found):
        tests = max(len(order), 1)
        if one.result == SAME and one.a and one.b and least_p(one.a.n, one.b.n) * tests > alpha:
            found[at] = replace(one, result=TOO_FEW)
    return found


def _needed(tests: int, alpha: float) -> int:
    units = 1
    while least_p(units, units) * max(tests, 1) > alpha:
        units += 1
    return units


def least_p(a: int, b: int) -> float:
    """The p of so many units of each side where all of one are above all of the other."""
    return 2 / comb(a + b, a)


def scipy_stats() -> Any:
    """scipy.stats; UsageError without it."""
    try:
        import scipy.stats
    except ImportError as error:
        raise UsageError(
            f"comparisons need scipy, which cannot be imported ({error})",
            how_to_install("scipy"),
        ) from error
    return scipy.stats


# Conditions of --fail-if, such as `goodput_p50 worse 5%`: docs/conditions.md has the language.

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
