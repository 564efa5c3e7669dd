# SPDX-License-Identifier: Apache-2.0
"""What scripts/test --truth requests compares: a wrong row is found, a right one is not blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.truth.requests import judging
from tests.truth.requests.cases import Case
from tests.truth.requests.truth import Exchange, bounds, largest

MS = 1_000_000
SERVER, CLIENT = 7000, 40000


def made(count: int = 200) -> list[Exchange]:
    """Each begins 20 ms after the last one, of which 10 ms are the server's."""
    return [
        Exchange(CLIENT, SERVER, at, at, at, at + 10 * MS, at + 10 * MS, 50, 60, think=10 * MS,
                 idle=10 * MS)
        for at in range(MS, count * 20 * MS, 20 * MS)
    ]  # fmt: skip


def rows_of(found: list[Exchange]) -> list[dict[str, Any]]:
    """What a faultless command says of them."""
    return [
        {"side": side, "lport": ports[0], "rport": ports[1], "conn_id": number, "number": n,
         "start_ns": one.send, "wait_ns": 10 * MS, "request_ns": 0, "think_ns": 10 * MS,
         "network_ns": 0 if number else None, "response_ns": 0, "read_ns": 0 if number else None,
         "total_ns": 10 * MS, "request_bytes": 50, "response_bytes": 60, "exact": True,
         "uncertain_ns": 0, "certain": True, "lost_records": 0, "pipelined": False}
        for number, (side, ports) in enumerate([("server", (SERVER, CLIENT)),
                                                ("client", (CLIENT, SERVER))])
        for n, one in enumerate(found)
    ]  # fmt: skip


def judge(
    monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], told: bool = True
) -> judging.Judged:
    monkeypatch.setattr(judging, "read_rows", lambda _: rows)
    monkeypatch.setattr(judging, "_check_table", lambda *_: None)
    monkeypatch.setattr(judging, "tell", lambda *_: "it cannot be told")
    case = Case("made", "python3", lambda _: [], "think", told=told)
    return judging.judge(case, Path("run.pm"), made())


def test_right_rows_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge(monkeypatch, rows_of(made()))
    assert judged.wrong == []
    assert judged.largest == (0, 0)  # waiting and thinking took as long
    assert judge(monkeypatch, rows_of(made()), told=False).wrong == []


@pytest.mark.parametrize("column", ["think_ns", "total_ns", "wait_ns", "request_ns"])
@pytest.mark.parametrize("by", [-2 * MS, 2 * MS])
def test_three_rows_in_a_hundred_are_too_many(
    monkeypatch: pytest.MonkeyPatch, column: str, by: int
) -> None:
    rows = rows_of(made())
    for row in rows[:6]:
        row[column] += by
    assert [one for one in judge(monkeypatch, rows).wrong if f"server {column}" in one]


def test_lost_and_invented_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(made())
    judged = judge(monkeypatch, rows[1:])
    assert (judged.lost, judged.invented) == (1, 0)
    assert judged.wrong
    judged = judge(monkeypatch, [*rows, {**rows[-1], "number": 999, "start_ns": 10**12}])
    assert (judged.lost, judged.invented) == (0, 1)
    assert judged.wrong


@pytest.mark.parametrize("what", [{"request_bytes": 51}, {"response_bytes": 61},
                                  {"pipelined": True}, {"uncertain_ns": 2 * MS}])  # fmt: skip
def test_other_mistakes_are_found(monkeypatch: pytest.MonkeyPatch, what: dict[str, Any]) -> None:
    assert judge(monkeypatch, [{**row, **what} for row in rows_of(made())]).wrong


def test_false_claims_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(made())
    rows[3]["total_ns"] += 5 * MS
    assert judge(monkeypatch, rows, told=False).invented == 1
    rows[3]["pipelined"] = True
    assert judge(monkeypatch, rows, told=False).wrong == []


def test_bounds_of_a_late_reader() -> None:
    one = Exchange(CLIENT, SERVER, 0, 0, 1, 40 * MS, 40 * MS, think=10 * MS,
                   read=(29 * MS, 30 * MS))  # fmt: skip
    found = bounds(one, None, "client", 0)
    assert found["think_ns"] == (10 * MS, 11 * MS)
    assert found["read_ns"] == (29 * MS, 30 * MS)
    assert largest(one, 0) == ("read", 29 * MS)
