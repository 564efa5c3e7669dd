# SPDX-License-Identifier: Apache-2.0
"""The options of a capture as those of a command: collector/plan/options.py declares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tcpkmon.collector.plan.options import Kind, Option, all_options
from tcpkmon.collector.plan.request import Request
from tcpkmon.formats.base.errors import UsageError

_Command = Callable[..., Any]
_FIRST = ("--ports", "--output", "--duration")
"""Of the help: what a first capture needs."""


def capture_options(command: _Command) -> _Command:
    """Adds all options of a capture to a command, which gets their values; given() reads those."""
    ordered = sorted(all_options(Request), key=lambda each: each[2].names[-1] not in _FIRST)
    for _, name, one in reversed(ordered):
        for parameter, each in reversed(_ways(name, one)):
            shown = {} if each.shown is None else {"default": each.shown, "show_default": True}
            add = click.option(*each.names, parameter, metavar=each.metavar, help=each.help,
                               multiple=each.kind.many, **_type(each.kind), **shown)  # fmt: skip
            command = add(command)
    return command


def _ways(name: str, one: Option) -> list[tuple[str, Option]]:
    """An option and its twins, each with the command's name of its value."""
    return [(name, one), *((f"_{twin.names[0][1:]}", twin) for twin in one.twins)]


def _type(kind: Kind) -> dict[str, Any]:
    if kind.flag:
        return {"is_flag": True}
    if kind.choices:
        return {"type": click.Choice(kind.choices)}
    if kind.least is None:
        return {"type": kind.number}
    of_range: Any = click.FloatRange if kind.number is float else click.IntRange
    return {"type": of_range(kind.least, kind.most)}


def given() -> dict[str, Any]:
    """What the command line of the current command gives: values by field, those of a group in a
    dict of its own. UsageError."""
    context = click.get_current_context()

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

    found: dict[str, Any] = {}
    for part, name, one in all_options(Request):
        chosen = [way for way in _ways(name, one) if is_given(way[0])]
        if len(chosen) > 1:
            both = " and ".join(each.names[-1] for _, each in chosen)
            raise UsageError(f"{both} contradict each other", "give one of them")
        for parameter, each in chosen:
            into = found.setdefault(part, {}) if part else found
            into[name] = each.kind.read(context.params[parameter])
    return found
