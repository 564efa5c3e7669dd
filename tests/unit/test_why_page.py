# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/why-accuracy.md: what was found counts where it is true, at each time."""

from __future__ import annotations

from tests.truth.why.judging import Judged
from tests.truth.why.page import page

MACHINE = {"cpu": "a CPU", "kernel": "6.1"}


def test_the_matrix_counts_the_parts_of_a_scenario_by_their_time() -> None:
    found = [
        Judged("deep", ("cwnd", "recovery"), False, {"cwnd": 0.7, "recovery": 0.2, "app": 0.1}, 0),
        Judged("closes", ("cwnd", "recovery"), True, {"cwnd": 0.5, "closing": 0.5}, 0,
               family="closes", wrong=["look"], parts=[
                   (("cwnd", "recovery"), 0.5, {"cwnd": 1.0}),
                   (("closing",), 0.5, {"closing": 0.8, "cwnd": 0.2}),
               ]),
    ]  # fmt: skip
    text = page(found, MACHINE)
    assert "| tuned by | 1 | 90.0 % | 90.0 % | 90.0 % | 0.0 % | 0.0 % |" in text
    assert any(one.startswith("| over a test link, truths written first (*) | 1 | 90.0 %")
               for one in text)  # fmt: skip
    assert "| closes | 1 | 90.0 % | 90.0 % | 1 of 1 |" in text
    at = text.index("| true | recovery | app | cwnd | closing |")
    assert text[at + 2 :] == [
        # 1.0 of a time of 1, and 0.5 of another
        "| cwnd, recovery | 13.3 | **6.7** | 80.0 |  |",
        "| closing |  |  | **20.0** | 80.0 |",
    ]


def test_each_scenario_counts_once_however_often_it_was_played() -> None:
    found = [Judged("often", ("app",), False, {"app": 0.5}, 0) for _ in range(3)]
    found.append(Judged("once", ("app",), False, {"app": 1.0}, 0))
    assert any(one.startswith("| tuned by | 2 | 75.0 % | 50.0 %") for one in page(found, MACHINE))
