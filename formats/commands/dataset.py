# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon dataset`: the tables of many captures in one place, and questions to all of them."""

from __future__ import annotations

from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import Errors, LossError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.commands.shared import files_argument, form_option, output_option


@click.group("dataset")
def command() -> None:
    """Keep the tables of many captures of many hosts in one folder or bucket, and ask them.

    DIR is a folder, or s3://BUCKET/PATH. Raw captures stay where they are.
    """


@command.command("add")
@click.argument("place", metavar="DIR")
@files_argument
@click.option("--tables", metavar="NAME,...",
              help="Default: connections,intervals,requests,latency,ledger; also: snapshots.")
def add_command(place: str, files: tuple[Path, ...], tables: str | None) -> None:
    """Add captures, or segments of one. What was added before is left as it is."""
    from tcpkmon.formats.dataset import TABLES, USUAL, Store, add

    chosen = tuple(name.strip() for name in tables.split(",")) if tables else USUAL
    if wrong := [name for name in chosen if name not in TABLES[:-1]]:
        raise UsageError(f"no table {wrong[0]!r}", f"choose of {', '.join(TABLES[:-1])}")
    store, errors = Store(place), Errors()
    for path in files:
        with errors.caught():
            done = add(store, path, chosen)
            told = ", ".join(f"{name} {count:,}" for name, count in done.rows.items())
            click.echo(f"{for_terminal(str(path))}: {done.segment}: {told or 'there already'}")
    errors.raise_all()


@command.command("compact")
@click.argument("place", metavar="DIR")
def compact_command(place: str) -> None:
    """Merge the files of each table, day and host into one."""
    from tcpkmon.formats.dataset import Store, compact

    click.echo(f"{compact(Store(place)):,} files were merged")


@command.command("check")
@click.argument("place", metavar="DIR")
def check_command(place: str) -> int:
    """Say what is missing: segments, tables, proof. Exit code 3 if something is."""
    from tcpkmon.formats.dataset import Store, check

    count = 0
    for count, text in enumerate(check(Store(place)), 1):  # noqa: B007
        say(for_terminal(text))
    if not count:
        click.echo("nothing is missing")
    return LossError.exit_code if count else 0


@command.command("drop")
@click.argument("place", metavar="DIR")
@click.option("--before", metavar="DATE", required=True, help="As 2026-11-22.")
def drop_command(place: str, before: str) -> None:
    """Delete the days before a date."""
    from tcpkmon.formats.dataset import Store, drop

    click.echo(f"{drop(Store(place), before):,} files were deleted")


@command.command("query")
@click.argument("name")
@click.argument("place", metavar="DIR", required=False)
@click.option("--engine", default="duckdb", metavar="URL",
              help="duckdb (default), or the master of a Spark cluster: spark://HOST:PORT.")
@click.option("--day", default="", metavar="DATE",
              help="The day of questions that have one. Default: the last one.")
@click.option("--against", default="", metavar="DATE",
              help="What worst-hosts and diff compare it with. Default: a week before.")
@click.option("--connection", default="", metavar="SEGMENT:CONN_ID", help="The one of story.")
@click.option("--that", default="", metavar="ASSERTION",
              help="Of check: 'retrans_ratio < 1e-3', 'limit_share(\"rwnd\") < 20%'.")
@form_option
@output_option("Write to this file.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def query_command(
    name: str, place: str | None, engine: str, day: str, against: str, connection: str, that: str,
    form: str | None, output: Path | None, force: bool,
) -> None:  # fmt: skip
    """Ask a dataset. NAME help lists the questions."""
    from tcpkmon.formats.base.table_text import form_of
    from tcpkmon.formats.dataset import QUERIES, Store, ask
    from tcpkmon.formats.tables import write_answer

    if name == "help":
        for known, (text, _) in QUERIES.items():
            click.echo(f"{known:19}{text}")
        return
    if name not in QUERIES or place is None:
        what = f"no question {name!r}{suggest(name, QUERIES)}"
        raise UsageError(what if place else "a question and DIR are needed",
                         f"choose of {', '.join(QUERIES)}")  # fmt: skip
    form = form_of(form, output)
    answer = ask(Store(place), name, engine, day, against, connection, that)
    write_answer(answer.to_reader(), form, output, force)
