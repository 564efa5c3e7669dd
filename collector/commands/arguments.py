# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of Python as options of collect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from tcpkmon.collector.commands.collect import command
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import suggest

_OURS = frozenset(
    ("output", "ready_fd", "quiet", "verbose", "print", "top", "why", "latency", "help",
     "as_root")
)  # fmt: skip
"""What the caller decides otherwise, or what prints."""
_LONG = {"only4": "4", "only6": "6", "local_ports": "L", "remote_ports": "D"}
"""Names for options that are a letter or a digit."""


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """The words for collect. UsageError for an option that it lacks, or that prints.

    A name is that of the option, with _ for -. True: the option alone; None and False: not given;
    several values: the option several times, or its values with commas.
    """
    __tracebackhide__ = True  # in tests
    known = {
        name.lstrip("-").replace("-", "_"): (name, option)
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    }
    known |= {name: known[short] for name, short in _LONG.items()}
    usable = [name for name in known if name not in _OURS]
    words: list[str] = []
    for key, value in options.items():
        if key not in usable:
            more = suggest(key, usable) if key not in known else ": it is no option from Python"
            raise UsageError(f"collect has no option for {key}={value!r}{more}")
        name, option = known[key]
        if value is None or value is False:
            continue
        is_one = isinstance(value, str) or not isinstance(value, Iterable)
        several = [value] if is_one else [*value]
        if option.is_flag:
            words.append(name)
        elif option.multiple:
            words += [word for one in several for word in (name, str(one))]
        else:
            words += [name, ",".join(map(str, several))]
    return words
