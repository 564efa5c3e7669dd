# SPDX-License-Identifier: Apache-2.0
"""The options of `collect` for its budget: what the capture may cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collector.plan.budget import Budget

_OPTIONS = (
    click.option("--max-cpu", metavar="PCT%",
                 help="A budget: above this share of one CPU (5%) leave out events, step by step: "
                 "kinds of events, unchanged segments, a part of the connections."),
    click.option("--max-disk-rate", metavar="SIZE", help="The same above this size a second: 10M."),
    click.option("--max-memory", metavar="SIZE", help="The same above this resident memory: 512M."),
    click.option("--back-after", metavar="TIME",
                 help="Take a step back when less than 70 % of the budget was used for so long. "
                 "Default: 10s."),
)  # fmt: skip


def budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_budget(options: dict[str, Any], seconds: Callable[[str], float]) -> Budget | None:
    """Take these options out of a command's; None where none was given. UsageError.

    seconds: of a text such as 10s.
    """
    from collector.plan.budget import make_budget, parse_cpu
    from collector.plan.quantities import parse_size

    fields = {
        "max_cpu": ("cpu", parse_cpu),
        "max_disk_rate": ("disk_bytes", parse_size),
        "max_memory": ("memory_bytes", parse_size),
        "back_after": ("back_after_s", seconds),
    }
    texts = {name: options.pop(name) for name in fields}
    given = {fields[name][0]: fields[name][1](text) for name, text in texts.items() if text}
    return make_budget(given) if given else None
