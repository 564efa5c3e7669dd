# SPDX-License-Identifier: Apache-2.0
"""U4: known response and think times at a terminal, and keys in raw mode."""

from __future__ import annotations

import statistics
import time

from scripts.experiments.context import Context
from scripts.host.checks import agree, figures_of, tables_of
from scripts.host.monitor import recording
from tcpkmon.formats.analysis import Event, open_log
from tests.live.tty_workload import EVENTS, Terminal, answerer, terminal

NAME = "U4"
TITLE = "U4: response and think time"
LINES, QUICK_LINES = 20, 5
KEYS = 20
RESPONSE_S, THINK_S, WITHIN_S = 0.2, 0.5, 0.005


def measure(context: Context) -> None:
    lines = int(context.pick(LINES, QUICK_LINES))
    context.say(f"{NAME}: {lines} lines, each answered after {RESPONSE_S} s")
    with recording(context.folder, "tty") as log:
        with terminal(*answerer(RESPONSE_S, "cooked")) as user:
            user.wait_for(b"ready")
            for _ in range(lines):
                user.type(b"hello\n")
                user.wait_for(b"answer")
                time.sleep(THINK_S)
        with terminal(*answerer(0, "raw")) as keys:
            keys.wait_for(b"ready")
            for _ in range(KEYS):
                keys.type(b"k")
                keys.wait_for(b"answer")
    with open_log(log) as events:
        found = [one for one in events if one.type in EVENTS]
    mine = _of(user, found)
    starts, ends = (
        [one.timestamp / 1e9 for one in mine if one.type == event] for event in EVENTS
    )
    results = context.results
    agree(results, NAME, "transactions: lines that were typed", len(starts), lines)
    agree(results, NAME, "response, s, median", statistics.median(
        end - start for start, end in zip(starts, ends, strict=False)
    ), RESPONSE_S, WITHIN_S)
    agree(results, NAME, "think, s, median", statistics.median(
        start - end for end, start in zip(ends, starts[1:], strict=False)
    ), THINK_S, WITHIN_S)
    typed = [one for one in _of(keys, found) if one["raw"] and one.type == EVENTS[0]]
    agree(results, NAME, "transactions in raw mode: keys", len(typed), KEYS)


def _of(user: Terminal, found: list[Event]) -> list[Event]:
    """Another terminal may get the same number later."""
    return [
        one for one in found
        if one["tty"] == user.number and user.since < one.timestamp < user.until
    ]  # fmt: skip


figures, tables = figures_of(NAME), tables_of(NAME)
