# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon conform FILE...`: whether connections keep the rules of TCP's RFCs."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.ports import find_missing, match_ports, parse_connection
from tcpkmon.formats.commands.choosing import ports_option
from tcpkmon.formats.commands.connections import report
from tcpkmon.formats.commands.shared import PATH

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.conform import Verdicts

BROKEN = 6
_SHOWN = 5
_HEAD = ("kept", "broken", "cannot tell")


@click.command("conform")
@click.argument("files", metavar="FILE...", nargs=-1, type=PATH)
@ports_option
@click.option("--rules", is_flag=True,
              help="List the rules, each with its sentence and what Linux does otherwise.")
@click.option("--as", "judged_as", type=click.Choice(["reno", "cubic"]),
              help="Judge sockets of other congestion controls by the rules of this one.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: an object with `captures`.")
def command(
    files: tuple[Path, ...], ports: tuple[str, ...], rules: bool, judged_as: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Check that the connections of captures of the schema tcp keep the rules of TCP's RFCs.

    For each rule: how often it was kept, how often and where it is broken, and how often that
    cannot be told, as a record is missing there. --columns all and the default locations show most.
    Exit code 6: a rule is broken. 3: records were lost.
    """
    from tcpkmon.formats.analysis.conform import RULES, conform, why_unsure
    from tcpkmon.formats.analysis.why import Source
    from tcpkmon.formats.registry import format_of, group

    if rules:
        for rule in RULES:
            click.echo(f'{rule.name}: {rule.rfc}: "{rule.quote}"\n    Linux: {rule.deviations}')
        return 0
    if not files:
        raise UsageError("no capture to check", "name a file")
    pairs = tuple(parse_connection(text) for text in ports)
    code = 0
    told: list[dict[str, Any]] = []
    seen: set[tuple[int, int]] = set()
    for paths in group(files):
        known = {path: format_of(path).verify(path) for path in paths}
        unsure = why_unsure(chain(*known.values()))
        with Source(*paths) as source:
            found = conform(source, unsure, judged_as or "")
            code = max(code, report(source, "conform", paths, known))
        chosen = [*found.counts]
        if pairs:
            ends = [found.ends[one] for one in chosen]
            seen.update((end[1], end[3]) for end in ends)
            kept = match_ports(pairs, *([end[at] for end in ends] for at in (1, 3)))
            chosen = [one for one, wanted in zip(chosen, kept, strict=True) if wanted]
        if found.broken(chosen):
            code = BROKEN
        if as_json:
            told.append({"files": [str(path) for path in paths], **_as_dict(found, chosen)})
        else:
            _print(found, chosen)
    if note := find_missing(pairs, seen, ", ".join(map(str, files))):
        say(f"tcpkmon conform: {note}")
    if as_json:
        click.echo(json.dumps({"captures": told, "exit_code": code}, indent=2))
    return code


def _print(found: Verdicts, chosen: list[int]) -> None:
    from tcpkmon.formats.analysis.conform import RULES

    click.echo(f"{'rule':13} {'of':18}{''.join(f'{name:>13}' for name in _HEAD)}")
    for rule in RULES:
        counts = found.total(rule, chosen)
        numbers = "".join(f"{count:>13,}" for count in counts.tolist())
        if why := found.untellable.get(rule.name):
            numbers = f"  cannot tell: the capture {why}"
        click.echo(f"{rule.name:13} {rule.rfc:18}{numbers}")
    if found.unsure:
        click.echo(for_terminal(f"what looks broken by a missing record is not told: "
                                f"{found.unsure}"))  # fmt: skip
    breaks = found.breaks_of(chosen)
    for rule in RULES:
        if mine := [one for one in breaks if one.rule is rule]:
            click.echo(f'\n{rule.name} is broken. {rule.rfc}: "{rule.quote}"')
            click.echo(f"    Linux: {rule.deviations}")
            for one in mine[:_SHOWN]:
                laddr, lport, raddr, rport = found.ends[one.conn_id]
                click.echo(f"    connection {one.conn_id}, {laddr}:{lport} -> {raddr}:{rport} at "
                           f"{one.time_ns / 1e9:.6f} s: {one}")  # fmt: skip
            if (more := int(found.total(rule, chosen)[1]) - len(mine[:_SHOWN])) > 0:
                click.echo(f"    and {more:,} more")


def _as_dict(found: Verdicts, chosen: list[int]) -> dict[str, Any]:
    from tcpkmon.formats.analysis.conform import RULES

    names = ("kept", "broken", "untold")
    return {
        "unsure": found.unsure,
        "untellable": found.untellable,
        "connections": [
            dict(zip(("laddr", "lport", "raddr", "rport"), found.ends[one], strict=True))
            | {"conn_id": one, "rules": {
                rule.name: dict(zip(names, counts, strict=True))
                for rule, counts in zip(RULES, found.counts[one].tolist(), strict=True)
            }}
            for one in chosen
        ],
        "breaks": [
            {"rule": one.rule.name, "rfc": one.rule.rfc, "quote": one.rule.quote,
             "conn_id": one.conn_id, "time_ns": one.time_ns, "values": dict(one.values)}
            for one in found.breaks_of(chosen)
        ],
    }  # fmt: skip
