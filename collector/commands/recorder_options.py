# SPDX-License-Identifier: Apache-2.0
"""The options of `collect` for the flight recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from formats.base.errors import UsageError

if TYPE_CHECKING:
    from collector.plan.recorder import Recorder

_OPTIONS = (
    click.option("--record-last", metavar="TIME|SIZE",
                 help="Flight recorder: keep this much in memory (30s, 256M, or 30s,1G), and write "
                 "it to a file in the folder -o when a trigger fires."),
    click.option("--after", metavar="TIME",
                 help="Write so much after the trigger too. Default: 5s."),
    click.option("--on", "triggers", multiple=True, metavar="EXPR",
                 help="A trigger: rto, rst, 'retrans_out > 3', 'srtt_us > 5 * min_rtt_us for "
                 "100ms', 'stall > 200ms'; tcpkmon triggers lists the names."),
    click.option("--dumps-per-hour", type=int, metavar="N",
                 help="Triggers write at most N files an hour. Default: 12."),
)  # fmt: skip


def recorder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_recorder(options: dict[str, Any], seconds: Callable[[str], float]) -> Recorder | None:
    """Take these options out of a command's; None where none was given. UsageError.

    seconds: of a text such as 10s.
    """
    from collector.plan.recorder import Recorder, check_recorder, parse_last

    last, after = options.pop("record_last"), options.pop("after")
    triggers, most = options.pop("triggers"), options.pop("dumps_per_hour")
    if last is None:
        if after is not None or triggers or most is not None:
            what = "--after, --on and --dumps-per-hour are for the flight recorder"
            raise UsageError(what, "add --record-last 30s")
        return None
    last_s, last_bytes = parse_last(last)
    after_s = Recorder.after_s
    if after is not None:
        after_s = 0.0 if after in ("0", "0s") else seconds(after)
    recorder = Recorder(
        last_s, last_bytes, after_s, tuple(triggers),
        Recorder.dumps_per_hour if most is None else most,
    )  # fmt: skip
    check_recorder(recorder)
    return recorder
