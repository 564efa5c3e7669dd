# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon bisect: which kernel, which value of a sysctl, which commit changed it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import Errors, FileError, TcpkmonError, UsageError

if TYPE_CHECKING:
    from tcpkmon.collector.commands.bisect_scenario import Scenario
    from tcpkmon.collector.commands.bisect_trial import Trials
    from tcpkmon.collector.session.command import Identity
    from tcpkmon.formats.analysis.bisecting import Found, Plan, Told
    from tcpkmon.formats.conditions import Value

GOOD, BAD, SKIP, STOP = 0, 1, 125, 128
"""What `git bisect run` makes of exit codes: 128 and above end the search."""
_COMMAND = "tcpkmon.bisect.command"


class Bisect(click.Command):
    """What follows -- is the command. With --step no mistake ends with a code that git takes for a
    bad commit."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[at + 1 :])
        try:
            return super().parse_args(ctx, args[:at])
        except click.UsageError as error:
            if "--step" not in args[:at]:
                raise
            say(f"tcpkmon bisect: {error.format_message()}")
            raise click.exceptions.Exit(STOP) from None


@click.command("bisect", cls=Bisect, options_metavar="[OPTIONS]")
@click.argument("sides", metavar="[SIDE]... -- COMMAND...", nargs=-1)
@click.option("--over", type=click.Choice(["kernels", "sysctl"]), help="What the sides are.")
@click.option("--step", is_flag=True,
              help="Judge the tree as it is, for git bisect run: exit code 0 good, 1 bad, 125 "
              "cannot tell; more than 127 ends the search.")
@click.option("--baseline", "baseline", multiple=True, metavar="CAPTURE...",
              type=click.Path(path_type=Path),
              help="With --step: captures of runs that are good, or folders of them.")
@click.option("--runs", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N",
              help="Runs of each side, at most.")
@click.option("--least", metavar="PERCENT", type=click.FloatRange(0, 1000, min_open=True),
              default=5.0, show_default=True, help="The least change that matters.")
@click.option("--alpha", type=click.FloatRange(0, 0.5, min_open=True), default=0.01, metavar="P",
              show_default=True,
              help="How often at most equal sides may be taken for different, all looks together.")
@click.option("--metrics", metavar="NAME,...",
              help="What is compared: tcpkmon diff --metrics help lists them. Default: "
              "duration_us,goodput_mean. Fewer take fewer runs.")
@click.option("--where", metavar="CONDITION", help="Only connections for which this holds.")
@click.option("--peer", metavar="COMMAND", default="",
              help="A server, by the shell, in the other namespace: the command finds it at "
              "$TCPKMON_PEER.")
@click.option("--path", "path", metavar="NAME=VALUE,...",
              help="What the path between both does, as in delay_ms=20,rate_mbit=10; back it has "
              "the delay alone.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 86400), default=60.0,
              show_default=True, metavar="SECONDS", help="How long a run may take.")
@click.option("--as-root", is_flag=True, help="Run the command as root, and not as sudo's caller.")
@click.option("-o", "--output", metavar="FOLDER", type=click.Path(path_type=Path),
              help="Keep the captures here, a folder for each side.")
@click.option("--json", "as_json", is_flag=True, help="What was found as JSON.")
def command(**options: Any) -> int:
    """Find the kernel, the setting or the commit that changed what a command's connections do.

    \b
    bisect --over sysctl net.ipv4.tcp_sack=0,1 -- ./transfer.sh
    bisect --over kernels 6.1 6.12 7.3 --path delay_ms=20 --peer ./serve.sh -- ./fetch.sh
    git bisect run tcpkmon bisect --step --baseline good/ -- ./build-and-transfer.sh

    Each run is in network namespaces of its own, which are gone afterwards; needs root. Sides take
    turns, and are compared as tcpkmon diff does, until it is sure. Of more than two sides, in
    order, the range is halved. Exit code 0: a change is named, or there is none that matters. 2:
    it cannot be told.
    """
    words = click.get_current_context().meta[_COMMAND]
    if not options["step"]:
        return _bisect(words, options)
    try:
        return _step(words, options)
    except UsageError as error:
        _complain(error)
        return STOP
    except (TcpkmonError, OSError) as error:
        _complain(error)
        return SKIP


def _complain(error: Exception) -> None:
    lines = error.lines() if isinstance(error, TcpkmonError) else [str(error)]
    for line in lines:
        say(f"tcpkmon bisect: {line}")


def _bisect(words: Sequence[str], options: dict[str, Any]) -> int:
    from tcpkmon.collector.commands.bisect_sides import Guests, sysctl_sides
    from tcpkmon.collector.commands.bisect_trial import Trials
    from tcpkmon.formats.analysis.bisecting import apart, halve

    if not options["over"]:
        raise UsageError("say what the sides are", "--over sysctl NAME=a,b, --over kernels A B, "
                         "or --step in git bisect run")  # fmt: skip
    if options["baseline"]:
        raise UsageError("--baseline is for --step", "leave it out")
    plan, scenario, identity, where = _prepare(words, options, 0)
    given: tuple[str, ...] = options["sides"]
    with _folder(options["output"]) as folder:
        if options["over"] == "sysctl":
            if len(given) != 1:
                raise UsageError("--over sysctl takes one setting and its values",
                                 "as in net.ipv4.tcp_sack=0,1")  # fmt: skip
            sides = sysctl_sides(given[0], scenario, identity)
        else:
            sides = Guests(given, scenario, folder / "guests")
        with sides:
            _announce(plan)
            trials = Trials(sides, plan, folder, where, _note)
            found = halve(len(sides.names), partial(_stage, trials, sides.names))
        named = (sides.names[found.low], sides.names[found.high])
        hints = apart(trials.plan, trials.runs[found.low], trials.runs[found.high])
        code = 0 if found.told.changed or not found.told.unsure else UsageError.exit_code
        _print(found, named, trials.plan, hints, code, options, [
            sides.names[side] for side in found.gradual
        ])  # fmt: skip
    return code


def _stage(
    trials: Trials, names: Sequence[str], sides: Sequence[int], metrics: Sequence[str]
) -> list[Told]:
    """What halving asks for; of more than two sides each stage is told, as it takes long."""
    from tcpkmon.formats.analysis.bisecting import verdict_lines

    told = trials.compare(sides, metrics)
    if len(names) > 2:
        for n, one in enumerate(told):
            for line in verdict_lines(one, (names[sides[n]], names[sides[n + 1]]), trials.plan):
                _note(line)
    return told


def _step(words: Sequence[str], options: dict[str, Any]) -> int:
    """The tree as it is against captures of a good one."""
    from tcpkmon.collector.commands.bisect_sides import Sides
    from tcpkmon.collector.commands.bisect_trial import Trials
    from tcpkmon.formats.analysis.bisecting import Found, apart, power_lines, powers
    from tcpkmon.formats.analysis.diff import (
        RUN,
        parse_folder,
        read_run,
        refuse_unproven,
        values_of_side,
    )

    if options["over"]:
        raise UsageError("--step has one side, the tree as it is", "leave out --over")
    paths = parse_folder([*options["baseline"], *map(Path, options["sides"])])
    where = _where(options)
    good = [read_run(path, where) for path in paths]
    refuse_unproven(good)
    if len(good) < 2 and (good or options["output"] is None):
        hint = "-o good without --baseline records one, of a tree that is good"
        raise UsageError("--step compares with a baseline of several runs", hint)
    plan, scenario, identity, where = _prepare(words, options, len(good))
    sides = Sides(["this tree"], scenario, [{}], identity)
    with _folder(options["output"]) as folder:
        if not good:
            Trials(sides, plan, folder, where, _note).record()
            _note(f"{plan.runs} runs are a baseline: --baseline {folder}")
            return GOOD
        _announce(plan)
        values = values_of_side([(run.connections, None) for run in good], RUN)
        for line in power_lines(plan, powers(plan, values), len(good)):
            _note(line)
        trials = Trials(sides, plan, folder, where, _note, good)
        (told,) = trials.compare((0,), ())
        code = _verdict(told, plan)
        hints = apart(plan, good, trials.runs[0])
        _print(Found(0, 0, told), ("the baseline", "this tree"), plan, hints, code, options, [])
    return code


def _verdict(told: Told, plan: Plan) -> int:
    """Bad if something changed by at least what matters, and not for the better."""
    bad = [one for one in told.changed
           if one.is_worse is not False and abs(one.change or 0.0) >= plan.least]  # fmt: skip
    if bad:
        return BAD
    # A change for the better, or a small one, that is proven is no reason to call a commit bad.
    return SKIP if told.unsure and not told.changed else GOOD


def _prepare(
    words: Sequence[str], options: dict[str, Any], baseline: int
) -> tuple[Plan, Scenario, Identity | None, Value | None]:
    """What needs no run to be checked: all mistakes at once."""
    from tcpkmon.collector.commands.bisect_scenario import Scenario, parse_path
    from tcpkmon.collector.commands.bisect_sides import here, words_of
    from tcpkmon.collector.linux.privileges import check_root
    from tcpkmon.collector.session.command import find_caller
    from tcpkmon.formats.analysis.bisecting import make_plan
    from tcpkmon.formats.analysis.diff import parse_metrics

    errors = Errors()
    with errors.caught():
        where = _where(options)
    with errors.caught():
        plan = make_plan(parse_metrics(options["metrics"]), options["runs"], options["alpha"],
                         options["least"] / 100, baseline)  # fmt: skip
    with errors.caught():
        scenario = Scenario(words_of(words), options["peer"], parse_path(options["path"]), here(),
                            options["timeout_s"])  # fmt: skip
    with errors.caught():
        identity = None if options["as_root"] else find_caller()
    with errors.caught():
        output = options["output"]
        if output is not None and output.exists() and any(output.iterdir()):
            raise FileError(f"{output} has files already", "name a folder that is new, or empty")
    errors.raise_all()
    check_root("tcpkmon bisect")
    return plan, scenario, identity, where


def _where(options: dict[str, Any]) -> Value | None:
    from tcpkmon.formats.analysis.check import parse_where

    return None if options["where"] is None else parse_where(options["where"])


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    if output is None:
        with tempfile.TemporaryDirectory(prefix="tcpkmon-bisect-") as made:
            yield Path(made)
    else:
        output.mkdir(parents=True, exist_ok=True)
        yield output


def _announce(plan: Plan) -> None:
    from tcpkmon.formats.analysis.bisecting import plan_lines

    for line in plan_lines(plan):
        _note(line)


def _note(text: str) -> None:
    say(f"tcpkmon bisect: {text}")


def _print(
    found: Found, names: tuple[str, str], plan: Plan, hints: Sequence[str], code: int,
    options: dict[str, Any], gradual: Sequence[str],
) -> None:  # fmt: skip
    from tcpkmon.formats.analysis.bisecting import told_json, verdict_lines
    from tcpkmon.formats.base.escape import for_terminal

    if options["as_json"]:
        told = told_json(found.told) | {"sides": names, "gradual": gradual, "apart": hints}
        click.echo(json.dumps({**told, "exit_code": code}, indent=2))
        return
    for line in verdict_lines(found.told, names, plan):
        click.echo(for_terminal(line))
    if gradual:
        click.echo(for_terminal(f"gradual: {', '.join(gradual)} differ from both ends"))
    if found.told.changed and hints:
        click.echo(f"besides, apart in all runs (no test): {'; '.join(hints)}")
    if options["step"]:
        word = {GOOD: "good", BAD: "bad"}.get(code, "cannot tell")
        click.echo(f"{word} (exit code {code})")
