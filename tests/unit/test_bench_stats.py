# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic: medians, ratios round by round, slowdowns, targets from results."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from scripts.benchmark import rates, reading, scale, sizes, slowdown, startup
from scripts.benchmark.means import (
    Beside,
    Mean,
    beside,
    deciding,
    each_beside,
    mean_cpu,
    mean_slowdown,
    scatter_of,
)
from scripts.benchmark.release import too_slow
from scripts.benchmark.report import markdown
from scripts.benchmark.targets import Target, targets, whole_cost_us
from scripts.benchmark.work import WORK
from scripts.experiments import interleaved
from scripts.experiments.results import Results
from scripts.experiments.stats import number, percent, ratios, slowdowns, spread, standard_error


def test_spread_is_median_and_range() -> None:
    found = spread([3.0, 1.0, 2.0])
    assert found is not None
    assert (found.median, found.low, found.high, found.rounds) == (2.0, 1.0, 3.0, 3)
    assert found.text(1) == "2.0 (1.0 to 3.0)"
    assert found.text(0, 1000) == "2,000 (1,000 to 3,000)"
    single = spread([5.0])
    assert single is not None and single.text() == "5.00"
    assert spread([]) is None


def test_of_many_rounds_the_quartiles_are_told() -> None:
    found = spread([float(n) for n in range(11)])
    assert found is not None and (found.low, found.median, found.high) == (2.0, 5.0, 8.0)


def test_standard_error_is_that_of_the_median_of_normal_values() -> None:
    random.seed(1)
    medians, errors = [], []
    for _ in range(400):
        values = [random.gauss(3, 2) for _ in range(15)]
        medians.append(statistics.median(values))
        errors.append(standard_error(values))
    assert statistics.fmean(errors) == pytest.approx(statistics.stdev(medians), rel=0.15)
    assert math.isnan(standard_error([1.0]))


def test_ratios_and_slowdowns_are_taken_round_by_round() -> None:
    assert ratios([2.0, 30.0, 1.0], [1.0, 10.0, 0.0]) == [2.0, 3.0]
    assert slowdowns([50.0, 100.0, 0.0], [100.0, 100.0, 5.0]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.8, "1,234,568"), (0.126, "0.13"), (float("nan"), "-")]
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_percent() -> None:
    assert percent(0.1234) == "12.3 %"


def filled(**rate_of: float) -> Results:
    """Results in which the bare work does 100 a second, and each named case what is given."""
    names = {"default": slowdown.DEFAULT, "same": slowdown.COLUMNS, "perf": slowdown.PERF,
             "filtered": slowdown.FILTERED, "changed": slowdown.CHANGED,
             "empty": slowdown.EMPTY, "clock": slowdown.CLOCK}  # fmt: skip
    results = Results(rounds=1)
    for short, rate in rate_of.items():
        case = names[short]
        for subject in WORK:
            cpu = interleaved.cpu_subject(subject)
            results.add(slowdown.NAME, subject, interleaved.bare(case), 100.0)
            results.add(slowdown.NAME, subject, case, rate)
            results.add(slowdown.NAME, cpu, interleaved.bare(case), 1.0)
            results.add(slowdown.NAME, cpu, case, 100.0 / rate)
    return results


def add_lean(results: Results, case: str, **metrics: float) -> None:
    for metric, value in metrics.items():
        results.add(rates.NAME, rates.subject("getppid", rates.ANY, metric), case, value)


def target(results: Results, words: str) -> Target:
    [found] = [one for one in targets(results) if words in one.wanted]
    return found


def reached(results: Results, words: str) -> bool | None:
    return target(results, words).reached


def test_slowdown_targets_compare_with_perf() -> None:
    results = filled(default=90.0, same=90.0, perf=80.0, filtered=99.5)
    mean = mean_slowdown(results, slowdown.DEFAULT)
    assert mean is not None and mean.value == pytest.approx(1 / 9)
    assert mean_cpu(results, slowdown.DEFAULT) == pytest.approx(10 / 9)
    assert reached(results, "default capture: at most 0.6") is True
    assert reached(results, "default capture: at most 1.0") is True
    assert reached(results, "filter leaves out") is True
    assert reached(filled(filtered=98.5), "filter leaves out") is False
    assert reached(filled(default=82.0, perf=80.0), "default capture: at most 0.6") is False
    assert reached(filled(default=82.0, perf=80.0), "default capture: at most 1.0") is True
    assert reached(filled(default=79.0, perf=80.0), "default capture: at most 1.0") is False
    columns = "perf's columns and events: at most 0.7 times perf record's slowdown, in the mean"
    assert reached(filled(same=86.0, perf=80.0), columns) is True
    assert reached(filled(same=84.0, perf=80.0), columns) is False
    assert reached(filled(default=80.0), "default capture: at most 1.0") is None
    # Where perf costs nothing there is nothing to be compared with.
    assert reached(filled(default=80.0, perf=101.0), "default capture: at most 1.0") is None


def test_beside_a_target_that_is_missed_stands_what_bare_programs_cost() -> None:
    results = filled(default=79.0, perf=80.0, clock=90.0, filtered=98.0, empty=98.5)
    assert f"{slowdown.CLOCK} at the same events: 0.44" in target(results, "at most 1.0").measured
    assert f"{slowdown.EMPTY} at the same events: 1.5 %" in target(results, "leaves out").measured
    kept = filled(default=82.0, perf=80.0, clock=90.0)
    assert slowdown.CLOCK not in target(kept, "at most 1.0").measured


def test_where_all_work_scatters_it_says_so() -> None:
    results = filled(default=90.0, perf=80.0, filtered=99.0)
    assert not [one for one in targets(results) if "scatters" in one.measured]
    for subject in WORK:
        for rate in (80.0, 100.0, 120.0, 140.0):
            results.add(slowdown.NAME, subject, slowdown.OFF, rate)
            results.add(slowdown.NAME, subject, interleaved.bare(slowdown.OFF), 100.0)
    for words in ("default capture: at most 0.6", "leaves out", "when-changed"):
        found = target(results, words)
        assert "all work scatters" in found.measured and found.reached is None


def test_what_scatters_decides_nothing() -> None:
    """Off against off: one work is steady, another is not, though its median is as good."""
    results = filled(default=90.0, perf=50.0)
    for case, rate in ((slowdown.DEFAULT, 40.0), (slowdown.PERF, 90.0)):
        results.values[slowdown.NAME]["bulk transfer"][case] = [rate]
    assert reached(results, "default capture: at most 1.0") is False
    for subject in WORK:
        wide = 8.0 if subject == "bulk transfer" else 2.0
        for percents in (-wide, 0.0, wide):
            results.add(slowdown.NAME, subject, interleaved.bare(slowdown.OFF), 100.0)
            results.add(slowdown.NAME, subject, slowdown.OFF, 100 / (1 + percents / 100))
    assert scatter_of(results, "churn") == pytest.approx(0.02 / 1.349)
    assert set(deciding(results)) == set(WORK) - {"bulk transfer"}
    assert reached(results, "default capture: at most 1.0") is True
    mean = mean_slowdown(results, slowdown.DEFAULT)
    assert mean is not None and mean.value == pytest.approx(1 / 9)
    page = markdown(results)
    assert "| bulk transfer | 5.9 % | no: it scatters too much |" in page
    assert "150.0 %" in page, "it is printed all the same"
    results.quick = True
    assert deciding(results) == list(WORK)


def test_one_work_beyond_its_limit_misses_the_target_of_all_work() -> None:
    results = filled(default=90.0, perf=90.0)
    for case, rate in ((slowdown.DEFAULT, 50.0), (slowdown.PERF, 90.0)):
        results.values[slowdown.NAME]["churn"][case] = [rate]
    found = target(results, "default capture: at most 1.0")
    assert found.reached is False
    assert found.measured == "churn: 9.00"
    assert each_beside(results, slowdown.DEFAULT, slowdown.PERF)[0].work == "churn"


def noisy(*percents: float) -> list[float]:
    """Rates of a bare 100 a second that took so much longer in each round."""
    return [100 / (1 + value / 100) for value in percents]


def test_what_noise_can_explain_is_neither_reached_nor_missed() -> None:
    results = Results(rounds=8)
    rounds = {slowdown.DEFAULT: (1, 21, 11, 2, 20, 12, 10, 13), slowdown.PERF: (10,) * 8}
    for case, percents in rounds.items():
        for rate in noisy(*percents):
            results.add(slowdown.NAME, "churn", interleaved.bare(case), 100.0)
            results.add(slowdown.NAME, "churn", case, rate)
    found = target(results, "default capture: at most 1.0")
    assert (found.reached, found.unclear) == (None, True), "11.5 against 10, give or take 3"
    results.values[slowdown.NAME]["churn"][slowdown.DEFAULT] = noisy(*(30, 31, 29, 30) * 2)
    assert reached(results, "default capture: at most 1.0") is False


def test_a_ratio_is_not_told_where_the_other_slowdown_is_noise() -> None:
    ours, noise = Mean(0.169, 0.046), Mean(0.039, 0.051)
    assert Beside("churn", ours, noise).text == "16.9 % \u00b1 4.6 against 3.9 % \u00b1 5.1"
    assert Beside("churn", ours, Mean(0.1, 0.01)).text == "1.69 \u00b1 0.49"
    both = beside(filled(default=80.0, perf=90.0), slowdown.DEFAULT, slowdown.PERF)
    assert both is not None and both.text == "2.25"


def test_targets_of_fields_changes_and_records() -> None:
    results = filled(filtered=98.0, changed=97.5)
    assert reached(results, "--when-changed") is True
    assert reached(filled(filtered=98.0, changed=96.5), "--when-changed") is False
    for case, fields in ((slowdown.DEFAULT, 40), (slowdown.PERF, 13)):
        results.add(slowdown.NAME, slowdown.FIELDS, case, fields)
    assert reached(results, "3 times its fields") is True
    results.values[slowdown.NAME][slowdown.FIELDS][slowdown.DEFAULT] = [38]
    assert reached(results, "3 times its fields") is False
    for case, lost_us in ((slowdown.DEFAULT, 1.0), (slowdown.ALL, 1.1)):
        for _ in range(4):
            results.add(slowdown.NAME, interleaved.LOST_TIME, case, lost_us)
            results.add(slowdown.NAME, "lost", case, 0)
    assert reached(results, "as cheap a record") is False
    assert reached(results, "and none lost") is True
    results.values[slowdown.NAME]["lost"][slowdown.ALL][2] = 1
    assert reached(results, "and none lost") is False, "lost in one round of four"


def test_targets_of_floods_and_many_connections() -> None:
    results = Results(rounds=2)
    for lost, uncounted in ((0.4, 0), (0.0, 0)):
        for metric, value in (("lost", lost), (rates.UNCOUNTED, uncounted)):
            subject = rates.subject("receive", rates.BOTH, metric)
            results.add(rates.NAME, subject, rates.DEFAULT, value)
    assert reached(results, "both cores at any rate") is True, "what was lost was counted"
    results.values[rates.NAME][subject][rates.DEFAULT][1] = 3
    assert reached(results, "both cores at any rate") is False
    for count, micros in (("1,000", 0.4), ("100,000", 0.5)):
        results.add(scale.NAME, scale.READER_US, count, micros)
    assert reached(results, "100,000 connections") is True
    results.values[scale.NAME][scale.READER_US]["100,000"] = [0.6]
    assert reached(results, "100,000 connections") is False


def test_rate_and_cost_targets() -> None:
    results = Results(rounds=1)
    add_lean(results, rates.LEAN, records=1.2e6, lost=0.0, cpu_us=0.1, kernel_us=0.29)
    assert whole_cost_us(results, rates.LEAN) == pytest.approx(0.39)
    assert reached(results, "1,000,000 records") is True
    assert reached(results, "under one core") is True
    assert reached(results, "0.40 us") is True
    add_lean(results, rates.LEAN, records=1.2e6, lost=0.5, cpu_us=1.0, kernel_us=0.29)
    assert reached(results, "1,000,000 records") is False, "some were lost in half of the rounds"
    assert reached(results, "0.40 us") is False


def test_start_reading_and_size_targets() -> None:
    results = Results(rounds=1)
    results.add(startup.NAME, startup.FIRST, startup.CACHED, 0.4)
    results.add(startup.NAME, startup.FIRST, startup.FRESH, 1.6)
    results.add(startup.NAME, startup.MEMORY, startup.CACHED, 80.0)
    results.add(reading.NAME, reading.WALL, reading.PERF_SCRIPT, 5000.0)
    results.add(reading.NAME, reading.WALL, reading.READ, 100.0)
    results.add(reading.NAME, reading.WALL, reading.TEXT, 1000.0)
    results.skip(reading.NAME, reading.PARQUET, "no such command")
    results.add(sizes.NAME, sizes.SUBJECT, sizes.PARQUET, 21.0)
    assert reached(results, "first record within 0.5 s") is True
    assert reached(results, "first record within 1.5 s") is False
    assert reached(results, "200 MiB") is True
    assert reached(results, reading.READ) is True
    assert reached(results, reading.TEXT) is False
    assert target(results, reading.TEXT).measured == "5.0 times"
    results.machine["CPU"] = "family 26; 2 CPUs at 2596 MHz"
    for cpu, why in ((1300.0, "1,300 ns of CPU, more than 2 CPUs"), (900.0, "90.0 % of what 2")):
        results.values[reading.NAME].setdefault(reading.CPU, {})[reading.TEXT] = [cpu]
        assert why in target(results, reading.TEXT).measured
    assert reached(results, reading.PARQUET) is None
    assert reached(results, "20 bytes") is False


def test_ci_fails_only_on_what_is_several_times_slower() -> None:
    assert too_slow(Results()) == []
    assert too_slow(filled(same=50.0, perf=80.0)) == []
    assert len(too_slow(filled(same=20.0, perf=80.0))) == 1
    results = Results(rounds=1)
    add_lean(results, rates.PERF_LEAN, cpu_us=0.2, kernel_us=0.8)
    add_lean(results, rates.LEAN, cpu_us=0.2, kernel_us=1.8)
    assert too_slow(results) == []
    results = Results(rounds=1)
    add_lean(results, rates.PERF_LEAN, cpu_us=0.2, kernel_us=0.8)
    add_lean(results, rates.LEAN, cpu_us=5.0, kernel_us=0.8)
    assert len(too_slow(results)) == 1


def test_results_come_back_from_json() -> None:
    results = filled(default=80.0)
    results.note("a", "twice")
    results.note("a", "twice")
    again = Results.from_json(results.to_json())
    assert again == results
    assert again.notes == {"a": ["twice"]}
    for text in ("[]", "{", '{"other": 1}', "3"):
        with pytest.raises(ValueError):
            Results.from_json(text)
