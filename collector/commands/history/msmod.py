# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon msmod: lists what this kernel can measure, and switches measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option
from tcpkmon.collector.commands.signed import SignedArguments
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal

if TYPE_CHECKING:
    from tcpkmon.collector.commands.history.measurements import Measurement


@click.command("msmod", cls=SignedArguments, context_settings={"ignore_unknown_options": True})
@click.option("-l", "listed", is_flag=True, help="List the measurements that this kernel has.")
@collector_option
@click.argument("ids", metavar="[+ID|-ID]...", nargs=-1, type=click.UNPROCESSED)
def command(listed: bool, collector: str | None, ids: tuple[str, ...]) -> int:
    """List what can be measured (-l), or switch measurements of a running capture: +ID, -ID.

    As in HP-UX: each measurement has an id and a line that describes its record, the words that
    tcpkmon translate prints behind the id.
    Those that this kernel lacks follow, with the reason. An ID is an event's name, or that of 1988.
    """
    from tcpkmon.collector.commands.history.measurements import choose, list_measurements

    if listed:
        if ids:
            raise UsageError("-l lists, and takes no ID", "switch in a call of its own")
        _list(list(list_measurements()))
        return 0
    if not ids:
        raise UsageError("nothing to do", "-l lists the measurements; +ID or -ID switches one")
    if wrong := [word for word in ids if word[:1] not in ("+", "-")]:
        raise UsageError(f"{wrong[0]!r} does not say on or off", f"+{wrong[0]} or -{wrong[0]}")
    found = choose([word[1:] for word in ids])
    client = ask(collector)
    warn_of_version(client.status().get("tcpkmon"), "the collector")
    for sign, switch in (("+", client.enable), ("-", client.disable)):
        chosen = [one.event.name for word, each in zip(ids, found, strict=True) for one in each
                  if word[0] == sign]  # fmt: skip
        if chosen:
            switch(chosen)
    return 0


def warn_of_version(theirs: object, whose: str) -> None:
    """Warn, and go on, if that is not this program's version."""
    from tcpkmon.formats.base.installing import own_version

    ours = own_version()
    if isinstance(theirs, str) and theirs != ours:
        say(f"tcpkmon: warning: {whose} has version {for_terminal(theirs)}, this tool {ours}")


def _list(found: Sequence[Measurement]) -> None:
    from tcpkmon.formats.history.names_1988 import GONE, IDS

    for one in found:
        if not one.event.why_not:
            click.echo("\n".join(one.lines))
    old = {one.event.name: one.old for one in found}
    for name, events in IDS.items():
        click.echo(f"{name}: {', '.join(old[event] for event in events)}")
    lacking = [one for one in found if one.event.why_not]
    for one in lacking:
        click.echo(f"{one.old or one.event.name}: not on this kernel: {one.event.why_not}")
    for name, reason in GONE.items():
        click.echo(f"{name}: not on this kernel: {reason}")
    if os.geteuid() != 0:
        say("tcpkmon: as far as the kernel's types and names tell; root also tries")
