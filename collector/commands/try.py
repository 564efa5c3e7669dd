# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon try FILE`: settings that `tcpkmon why` suggests, tried on a copy of the path."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.commands.choosing import Chooser, choosing_options
from tcpkmon.formats.commands.connections import report

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.trying import Fitted, Likeness, Seen

_UNLIKE = "the copy is not like the capture"


@click.command("try")
@click.argument("file", metavar="[FILE]", required=False,
                type=click.Path(readable=False, path_type=Path))
@choosing_options
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE[,...]",
              help="Try this setting: tcp_rmem, tcp_wmem (largest size), tcp_congestion_control, "
              "tcp_notsent_lowat, tcp_slow_start_after_idle, initcwnd, qdisc (as tc takes it). "
              "With --live: tcp_congestion_control, tcp_notsent_lowat, initcwnd, snd_cwnd_clamp, "
              "so_sndbuf, so_rcvbuf, rto_min_us, delack_max_us. With commas: together; more "
              "with more --set. Default: what why suggests.")
@click.option("--rounds", type=click.IntRange(2, 100), default=8, show_default=True, metavar="N",
              help="Play each setting so often.")
@click.option("--seconds", type=click.FloatRange(0.1, 100), default=10.0, show_default=True,
              metavar="N", help="Copy the first N seconds of the connection.")
@click.option("--rate", type=click.FloatRange(0.01, 600), metavar="MBIT",
              help="The path's rate [Mbit/s], where the connection never filled it and you know.")
@click.option("--fit", "fit_only", is_flag=True, help="Show the path alone; plays nothing.")
@click.option("--live", is_flag=True,
              help="Without FILE: set it on half of this machine's new connections of --ports, "
              "--cgroup or --unit, for the time of --for, and compare the halves.")
@click.option("--ports", "live_ports", metavar="LIST", default="",
              help="With --live: of these ports of servers, here or there, as in 443,8000-8010.")
@click.option("--cgroup", metavar="PATH", default="",
              help="With --live: of sockets of this control group (v2), and of those below it.")
@click.option("--unit", metavar="NAME", default="",
              help="With --live: of sockets of this systemd unit, as in nginx.service.")
@click.option("--for", "live_for", metavar="TIME", default="60s", show_default=True,
              help="With --live: how long.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    file: Path | None,
    ports: tuple[str, ...],
    where: str | None,
    sets: tuple[str, ...],
    rounds: int,
    seconds: float,
    rate: float | None,
    fit_only: bool,
    live: bool,
    live_ports: str,
    cgroup: str,
    unit: str,
    live_for: str,
    as_json: bool,
) -> int:
    """Try settings for a connection of a capture on a copy of its path, old and new in turn.

    The copy is two network namespaces of this machine with a small program between them, fitted to
    the capture: rate, delay, jitter, loss, queue, the receiver's window. If it is not like the
    capture with the old setting, try says so and stops (exit code 1). Else it plays old and new in
    turn and prints what differs, with its interval, and what to write. It writes no setting of this
    machine. Of several connections it takes the one that sent most. Needs root, but for --fit.

    With --live, a BPF program sets socket options on half of the new connections, by chance. It is
    gone when the time is over, or when tcpkmon ends, however that ends.
    """
    if live or file is None:
        if not live or file is not None or ports or where or fit_only or rate:
            raise UsageError("try takes either FILE, or --live", "--live chooses by --ports, "
                             "--cgroup or --unit, and takes --set, --for and --json")  # fmt: skip
        return _try_live(sets, live_ports, cgroup, unit, live_for, as_json)
    from tcpkmon.collector.commands.trial import Trial
    from tcpkmon.collector.lab.endpoint import congestion_controls
    from tcpkmon.collector.linux.privileges import check_root
    from tcpkmon.formats.analysis.trying import fit, parse_variant, propose

    asked = [parse_variant(text) for text in sets]
    if not fit_only:
        check_root("a copy of a path")
    seen, sentences = _see(file, ports, where, seconds)
    path = fit(seen)
    told: dict[str, Any] = {"connection": seen.connection.conn_id, "path": asdict(path)}

    def tell(text: str) -> None:
        if not as_json:
            click.echo(for_terminal(text))

    def end() -> int:
        if as_json:
            click.echo(json.dumps(told, indent=2))
        return 0

    for text in [*sentences, *_path_words(seen, path, rate)]:
        tell(text)
    if fit_only:
        return end()
    variants = asked or propose(seen, path, congestion_controls())
    if not variants:
        tell("why suggests no setting for this connection: --set NAME=VALUE tries one")
        return end()
    with Trial(seen, rate or 0.0) as trial:
        trial.accept(variants)
        trial.correct(_progress)
        alike, fits = trial.check(_progress)
        told |= {"set_to": asdict(trial.set_to), "copies": [asdict(one) for one in fits],
                 "likeness": [_row(one) for one in alike]}  # fmt: skip
        told["spans"] = trial.spans
        tell(_fit_words(path, fits))
        tell(_span_words(trial.spans))
        bad = _tell_likeness(alike, tell)
        if not bad:
            outcomes, alike = trial.compare(variants, rounds, _progress)
            bad = _tell_likeness(alike, tell, again=True)
            told["likeness"] = [_row(one) for one in alike]
            told["tried"] = [one.as_json(seen.settings) for one in outcomes]
    if bad:
        end()
        raise TcpkmonError(f"{_UNLIKE}: {bad}", "what limits it is not what the copy has (a "
                           "policer, other traffic, a program that writes slowly): no setting was "
                           "judged")  # fmt: skip
    for one in outcomes:
        for text in ["", *one.lines(seen.settings)]:
            tell(text)
    return end()


def _try_live(
    sets: tuple[str, ...], ports: str, cgroup: str, unit: str, live_for: str, as_json: bool
) -> int:
    from tcpkmon.collector.commands.trial_live import choose, try_live
    from tcpkmon.collector.linux.privileges import check_root
    from tcpkmon.formats.analysis.trying import parse_variant

    if len(sets) != 1:
        raise UsageError("--live tries one --set at a time", "with commas, settings are tried "
                         "together")  # fmt: skip
    variant = parse_variant(sets[0], live=True)
    check_root("a live trial")
    chosen = choose(ports, cgroup, unit, live_for)
    found = try_live(variant, chosen, _progress)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
        return 0
    for text in [*found.words(), "", *found.outcome.lines({})]:
        click.echo(for_terminal(text))
    return 0


def _progress(text: str) -> None:
    say(f"tcpkmon try: {text}")


def _see(
    file: Path, ports: tuple[str, ...], where: str | None, seconds: float
) -> tuple[Seen, list[str]]:
    """The chosen connection that sent most, and what `why` says of it."""
    import numpy as np

    from tcpkmon.formats.analysis.trying import see
    from tcpkmon.formats.analysis.why import Source, connection_of, connections, head, verdict

    chosen = Chooser("try", (file,), ports, where)
    with Source(file) as source:
        table = chosen(connections(source))
        report(source, "try", (file,))
    chosen.check()
    if not len(table["conn_id"]):
        raise UsageError(f"{file}: no such connection", "tcpkmon connections lists them")
    at = int(np.argmax(table["bytes_acked"]))
    one = connection_of(table, at)
    with Source(file) as source:
        seen = see(source, one.conn_id, seconds)
    return seen, [head(one), *(f"    {text}" for text in verdict(one))]


def _path_words(seen: Seen, path: Fitted, rate: float | None) -> list[str]:
    """The path, in words."""
    least = "" if path.is_full else " or more: the connection never filled it"
    if rate:
        least = f"; {rate:g} are taken, by --rate"
    queue = f"a queue of {path.queue_bytes / 1000:.0f} kB, which overflowed"
    if not path.overflowed:
        queue = (f"a queue of {path.queue_bytes / 1000:.0f} kB and more, as it never overflowed "
                 "(the copy's holds what the path holds)")  # fmt: skip
    words = [
        f"the path: {path.rate_mbit:.3g} Mbit/s{least}; round trip {path.rtt_ms:.3g} ms, jitter "
        f"{path.jitter_ms:.2g} ms; {path.loss_percent:.2g} % lost at random; {queue}",
    ]
    if path.window_bytes:
        words.append(f"    the receiver's window, at most {path.window_bytes / 1000:.0f} kB, "
                     "limited it")  # fmt: skip
    if path.sndbuf_bytes:
        words.append(f"    the send buffer of {path.sndbuf_bytes / 1000:.0f} kB limited it")
    total = sum(burst.nbytes for burst in seen.bursts)
    pauses = len(seen.bursts) - 1
    words.append(f"    to send: {total:,} bytes"
                 + (f" in {pauses + 1} bursts with pauses" if pauses else "")
                 + ("" if seen.whole else ", the begin of it (--seconds)"))  # fmt: skip
    return words


def _fit_words(path: Fitted, fits: list[Fitted]) -> str:
    """The fit's error: by how much the copies' paths are off, seen as the capture's is."""
    import numpy as np

    parts = []
    for name, text in (("rate_mbit", "rate"), ("rtt_ms", "round trip"), ("queue_bytes", "queue"),
                       ("window_bytes", "window")):  # fmt: skip
        goal = getattr(path, name)
        if goal and (name != "queue_bytes" or path.overflowed):
            off = float(np.median([getattr(one, name) for one in fits])) / goal - 1
            parts.append(f"{text} {100 * off:+.1f} %")
    lost = float(np.median([one.loss_percent for one in fits])) - path.loss_percent
    return f"the copy, seen as the capture was: {', '.join(parts)}, loss {lost:+.2f} points"


def _span_words(spans: dict[str, tuple[float, float]]) -> str:
    """The path with its error: what each play of the copy implies."""
    parts = []
    for name, text, scale, unit in (
        ("rate_mbit", "rate", 1, " Mbit/s"), ("rtt_ms", "round trip", 1, " ms"),
        ("jitter_ms", "jitter", 1, " ms"), ("loss_percent", "loss", 1, " %"),
        ("queue_bytes", "queue", 1e-3, " kB"), ("window_bytes", "window", 1e-3, " kB"),
    ):  # fmt: skip
        if name in spans:
            low, high = (f"{scale * value:.3g}" for value in spans[name])
            parts.append(f"{text} {low}{'' if low == high else f' to {high}'}{unit}")
    return f"so the path, by all its plays: {', '.join(parts)}"


def _tell_likeness(alike: list[Likeness], tell: Any, again: bool = False) -> str:
    """The table; what is not alike, or empty."""
    tell(f"{'of the old plays beside it' if again else 'with the old setting':26} "
         f"{'capture':>10} {'copy':>10} {'from':>10} {'to':>10}  off by")  # fmt: skip
    for one in alike:
        if one.name == "limits":
            tell(f"    limits: {100 * one.copy:.0f} % of the time limited otherwise (at most "
                 f"{100 * one.may:.0f} %)")  # fmt: skip
            continue
        scale, unit = (1e-3, "ms") if one.name.endswith("_us") else (100, "%")
        numbers = " ".join(f"{scale * value:>10.4g}" for value in
                           (one.capture, one.copy, one.least, one.most))  # fmt: skip
        off = f"{100 * one.off:+.1f} {'points' if unit == '%' else '%'}"
        tell(f"    {one.name.removesuffix('_us') + ' [' + unit + ']':22} {numbers}  {off}")
    return ", ".join(f"{one.name.removesuffix('_us')} ({100 * one.off:+.0f} "
                     f"{'%' if one.name.endswith('_us') else 'points'})"
                     for one in alike if not one.is_alike)  # fmt: skip


def _row(one: Likeness) -> dict[str, Any]:
    return asdict(one) | {"is_alike": one.is_alike}
