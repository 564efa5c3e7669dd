# SPDX-License-Identifier: Apache-2.0
"""The command scripts/test --truth why."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from scripts.markdown import write_part
from tcpkmon.formats.base.errors import UsageError
from tests.truth.base import DOCS, here
from tests.truth.why import transfers
from tests.truth.why.judging import Judged, check_spread, play
from tests.truth.why.page import page
from tests.truth.why.scenarios import SCENARIOS
from tests.truth.why.unseen import UNSEEN as UNSEEN_FIRST
from tests.truth.why.unseen_more import UNSEEN_MORE
from tests.truth.why.unseen_third import UNSEEN_THIRD

PAGE = DOCS / "why-accuracy.md"
UNSEEN = (*UNSEEN_FIRST, *UNSEEN_MORE, *UNSEEN_THIRD)
File = click.Path(dir_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(0), default=3, show_default=True,
              help="Play each scenario so often.")
@click.option("--only", default="", metavar="WORD", help="The scenarios with this in their names.")
@click.option("--unseen", is_flag=True,
              help="The scenarios over a test link alone, which no rule was made by.")
@click.option("--part", default="1/1", show_default=True, metavar="K/N",
              help="Of the scenarios, each N-th one, from the K-th on.")
@click.option("--minutes", type=click.FloatRange(0), metavar="N",
              help="Begin no round after so many minutes.")
@click.option("--read", "earlier", type=File, multiple=True, metavar="FILE",
              help="Add what --json wrote; several times. With --rounds 0 nothing is played.")
@click.option("--json", "output", type=File, metavar="FILE", help="Write all that was found.")
@click.option("--verdicts", is_flag=True,
              help="In place of scenarios, transfers of real programs: what `tcpkmon why` says.")
@click.option("--docs", is_flag=True,
              help="Write docs/why-accuracy.md, or the verdicts into docs/verdicts.md.")
def command(
    rounds: int,
    only: str,
    unseen: bool,
    part: str,
    minutes: float | None,
    earlier: tuple[Path, ...],
    output: Path | None,
    verdicts: bool,
    docs: bool,
) -> int:
    """Make connections whose limit is known, and compare with what `tcpkmon why` says of them."""
    if verdicts:
        return tell_verdicts(only, docs)
    machine = here()
    found: list[Judged] = []
    for path in earlier:
        read = json.loads(path.read_text())
        if read["machine"] != machine and rounds:
            raise UsageError(f"{path} is of another machine: {read['machine']}")
        machine = read["machine"]
        found += [Judged(**{**one, "truth": tuple(one["truth"])}) for one in read["rounds"]]
    which, _, of = part.partition("/")
    if not (which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        raise UsageError(f"--part takes K/N, not {part!r}")
    known = [*UNSEEN] if unseen else [*SCENARIOS, *UNSEEN]
    named = [one for one in known if only in one.name or only == one.family]
    chosen = named[int(which) - 1 :: int(of)]
    if not chosen:
        raise UsageError(f"no scenario has {only!r} in its name")
    until = time.monotonic() + (60 * minutes if minutes is not None else 1e9)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            if time.monotonic() > until:
                break
            for scenario in chosen:
                found.append(play(scenario, Path(folder)))
                click.echo(f"{100 * found[-1].right:5.1f} %  {scenario.name}")
                for words in found[-1].wrong:
                    click.echo(f"         says {words!r}")
    check_spread(found)
    if output is not None:
        told: dict[str, Any] = {"machine": machine, "rounds": [asdict(one) for one in found]}
        output.write_text(json.dumps(told))
    text = "\n".join(page(found, machine))
    if not docs:
        click.echo(text)
        return 0
    names = {one.name for one in found}
    if missing := [one.name for one in (*SCENARIOS, *UNSEEN) if one.name not in names]:
        raise UsageError(f"the page needs all scenarios; these are missing: {', '.join(missing)}")
    write_part(PAGE, "test --truth why", text)
    click.echo(f"wrote {PAGE}")
    return 0


def tell_verdicts(only: str, docs: bool) -> int:
    """Plays the transfers with this word in their titles."""
    if missing := [name for name in transfers.PROGRAMS if shutil.which(name) is None]:
        raise UsageError(f"{', '.join(missing)} missing", f"apt install {' '.join(missing)}")
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for transfer in (one for one in transfers.TRANSFERS if only in one.title):
            said.append((transfer, transfers.say(transfer, Path(folder))))
            click.echo(f"{transfer.title}\n{said[-1][1]}")
    if docs and not only:
        path = PAGE.with_name("verdicts.md")
        path.write_text(transfers.page(said))
        click.echo(f"wrote {path}")
    return 0
