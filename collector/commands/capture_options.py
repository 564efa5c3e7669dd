# SPDX-License-Identifier: Apache-2.0
"""The options of a capture as those of a command: collector/plan/options.py declares them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from collector.plan.options import Kind, Twin, all_options
from collector.plan.request import Request
from formats.base.errors import UsageError

_Command = Callable[..., Any]


def capture_options(command: _Command) -> _Command:
    """Adds all options of a capture to a command, which gets their values; given() reads those."""
    for _, name, one in reversed([*all_options(Request)]):
        for twin in reversed(one.twins):
            add = _click(twin.kind, twin.name, _parameter(twin))
            command = add(metavar=twin.metavar, help=twin.help)(command)
        add = _click(one.kind, *one.names, name)
        shown = {} if one.shown is None else {"default": one.shown, "show_default": True}
        command = add(metavar=one.metavar, help=one.help, **shown)(command)
    return command


def _parameter(twin: Twin) -> str:
    """The command's name of its value."""
    return f"_{twin.name[1:]}"


def _click(kind: Kind, *names: str) -> Callable[..., Any]:
    """click.option() of values of a kind."""
    what: Any = kind.number
    if kind.choices:
        what = click.Choice(kind.choices)
    elif kind.least is not None:
        ranges: Any = click.FloatRange if kind.number is float else click.IntRange
        what = ranges(kind.least, kind.most)
    more = {"is_flag": True} if kind.flag else {"type": what}
    return partial(click.option, *names, multiple=kind.many, **more)


def given() -> dict[str, Any]:
    """What the command line of the current command gives: values by field, those of a group in a
    dict of its own. UsageError."""
    context = click.get_current_context()

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

    found: dict[str, Any] = {}
    for part, name, one in all_options(Request):
        ways = [(one.names[-1], name, one.kind)]
        ways += [(twin.name, _parameter(twin), twin.kind) for twin in one.twins]
        chosen = [way for way in ways if is_given(way[1])]
        if len(chosen) > 1:
            raise UsageError(one.clash.format(chosen[0][0], chosen[1][0]))
        for _, parameter, kind in chosen:
            value = kind.read(context.params[parameter])
            (found.setdefault(part, {}) if part else found)[name] = value
    return found
