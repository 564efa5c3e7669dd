# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon try --live`: a setting on half of the new connections, measured."""

from __future__ import annotations

import json

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal


@click.command("try")
@click.option("--live", is_flag=True, required=True,
              help="Try it on this machine's real connections, the only way.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE[,...]",
              help="Try this setting: tcp_congestion_control, tcp_notsent_lowat, initcwnd, "
              "snd_cwnd_clamp, so_sndbuf, so_rcvbuf, rto_min_us, delack_max_us. With commas: "
              "together.")
@click.option("--ports", metavar="LIST", default="",
              help="On connections of these ports of servers, here or there, as in "
              "443,8000-8010.")
@click.option("--cgroup", metavar="PATH", default="",
              help="On sockets of this control group (v2), and of those below it.")
@click.option("--unit", metavar="NAME", default="",
              help="On sockets of this systemd unit, as in nginx.service.")
@click.option("--for", "live_for", metavar="TIME", default="60s", show_default=True,
              help="How long.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    live: bool, sets: tuple[str, ...], ports: str, cgroup: str, unit: str, live_for: str,
    as_json: bool,
) -> int:  # fmt: skip
    """Try a setting on half of the new connections, and compare the halves.

    A BPF program sets socket options on half of this machine's new connections of --ports,
    --cgroup or --unit, by chance, for the time of --for. A capture runs meanwhile. What differs is
    printed, with its interval, and what to write. It writes no setting of this machine. The program
    is gone when the time is over, or when tcpkmon ends, however that ends. Needs root.
    """
    from tcpkmon.collector.commands.trial_live import choose, try_live
    from tcpkmon.collector.linux.privileges import check_root
    from tcpkmon.formats.analysis.trial import parse_variant

    if len(sets) != 1:
        raise UsageError("try takes one --set at a time", "with commas, settings are tried "
                         "together")  # fmt: skip
    variant = parse_variant(sets[0])
    check_root("a live trial")
    chosen = choose(ports, cgroup, unit, live_for)
    found = try_live(variant, chosen, lambda text: say(f"tcpkmon try: {text}"))
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
        return 0
    for text in [*found.words(), "", *found.outcome.lines()]:
        click.echo(for_terminal(text))
    return 0
