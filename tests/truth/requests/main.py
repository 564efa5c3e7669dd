# SPDX-License-Identifier: Apache-2.0
"""The command scripts/test --truth requests."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from scripts.markdown import write_part
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tests.truth.base import DOCS, here
from tests.truth.requests.cases import CASES
from tests.truth.requests.judging import Judged, play
from tests.truth.requests.page import page

PAGE = DOCS / "requests.md"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", default="", metavar="WORD", help="The cases with this in their names.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the captures and the servers' logs there.",
)
@click.option(
    "--read",
    "earlier",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Add what --json wrote; cases that are played replace theirs.",
)
@click.option(
    "--json",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all that was found.",
)
@click.option("--docs", is_flag=True, help="Write the table into docs/requests.md.")
def command(
    only: str, keep: Path | None, earlier: tuple[Path, ...], output: Path | None, docs: bool
) -> int:
    """Compare `tcpkmon requests` with what clients and servers note themselves."""
    chosen = [case for case in CASES if only in case.name]
    if not chosen:
        raise UsageError(f"no case has {only!r} in its name")
    machine = here()
    found: dict[str, Judged] = {}
    for path in earlier:
        read = json.loads(path.read_text())
        if read["machine"] != machine:
            raise UsageError(f"{path} is of another machine: {read['machine']}")
        found |= {one["name"]: Judged(**one) for one in read["cases"]}
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(chosen):
            home = keep / f"{number}" if keep is not None else Path(folder) / "case"
            try:
                judged = play(case, home)
            except TcpkmonError as error:
                judged = Judged(case.name, wrong=[str(error)])
            found[case.name] = judged
            click.echo(f"{'wrong' if judged.wrong else 'right'}  {case.name}")
            for words in judged.wrong:
                click.echo(f"         {words}")
    if output is not None:
        told = {"machine": machine, "cases": [asdict(one) for one in found.values()]}
        output.write_text(json.dumps(told, indent=1))
    ordered = [found[case.name] for case in CASES if case.name in found]
    text = "\n".join(page(ordered, machine))
    if not docs:
        click.echo(text)
        return 0
    if len(ordered) < len(CASES):
        raise UsageError("the page needs all cases: play them, or --read what --json wrote")
    write_part(PAGE, "test --truth requests", text)
    click.echo(f"wrote {PAGE}")
    return 0
