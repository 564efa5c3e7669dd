# SPDX-License-Identifier: Apache-2.0
"""Chooses among the collectors that run: each capture has one name, the same in all commands.

It is the name that the daemon gave it, else that of its output without the folder. Of several with
one name, those that began later have -2, -3 ... behind it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tcpkmon.collector.control.access import own_name, read_name
from tcpkmon.collector.control.client import Client, Collector, find_collectors
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

_HOW_TO_START = "start one: sudo collect -o FILE; its help says what else can be recorded"
_ASK_S = 2.0


def named(folder: Path | None = None) -> dict[str, Collector]:
    """The collectors that run here by name, in the order of their begins.

    The names are in files that everybody may read, so all users and commands see the same ones,
    whether or not a capture answers.
    """
    told = []
    for collector in find_collectors(folder):
        name, since_ns = read_name(collector.path) or (_ask_name(collector), 0)
        told.append((since_ns, collector.pid, name, collector))
    found: dict[str, Collector] = {}
    for *_, own, collector in sorted(told, key=lambda one: one[:2]):
        name, count = own, 1
        while name in found:
            count += 1
            name = f"{own}-{count}"
        found[name] = collector
    return found


def _ask_name(collector: Collector) -> str:
    """Of a capture of an earlier version."""
    answer: dict[str, Any] = {}
    with suppress(TcpkmonError):
        answer = Client(collector, _ASK_S).status()
    return own_name(answer.get("name"), answer.get("output"))


def choose(which: str | int | None = None, folder: Path | None = None) -> Collector:
    """The collector of that PID or name, or the only one. UsageError: there is none, or several."""
    running = find_collectors(folder)
    asked = f"process {which}" if str(which).isdigit() else which
    if not running:
        what = "no collector runs here" if which is None else f"no collector runs as {asked}"
        raise UsageError(what, _HOW_TO_START)
    if which is None and len(running) == 1:
        return running[0]
    for collector in running:
        if str(collector.pid) == str(which):
            return collector
    names = named(folder)
    if (found := names.get(str(which))) is not None:
        return found
    listed = ", ".join(f"{name} ({one.pid})" for name, one in names.items())
    if which is not None:
        raise UsageError(f"no collector runs as {asked}", f"these run: {listed}")
    raise UsageError(f"{len(running)} captures run here: {listed}", "add --collector NAME")


def name_of(collector: Collector) -> str:
    """The name of a collector's capture; its process where it has ended meanwhile."""
    folder = collector.path.parent
    return next((n for n, one in named(folder).items() if one == collector), str(collector.pid))
