# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon sql FILE... 'select ...'`: asks captures in SQL, by DuckDB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import LossError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.reader import complaints_of
from tcpkmon.formats.commands.proof import exit_code
from tcpkmon.formats.commands.shared import FORMS, output_option, refuse_input

if TYPE_CHECKING:
    from tcpkmon.formats.tables import Query

_MOST_SHOWN = 10


@click.command("sql")
@click.argument("words", metavar="FILE... QUERY", nargs=-1, required=True)
@click.option("--tables", is_flag=True,
              help="List the tables of FILE, with columns, types, units and meanings. No QUERY.")
@click.option("--format", "form", type=click.Choice(FORMS),
              help="Default: that of the ending of OUT, else table. json: an object a line.")
@output_option("Write to this file.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    words: tuple[str, ...], tables: bool, form: str | None, output: Path | None, force: bool
) -> int:
    """Ask captures in SQL, as DuckDB understands it.

    FILE is a capture of any format; segments of one are read as one, and of several the column
    file has the name. Tables are snapshots, connections, intervals, requests, latency, ledger and
    proof, as far as the capture has them, and one for each event of a log. In place of FILE there
    can be a dataset: it has the tables that were added, with segment_id, host, date and proven.
    What a query does not name is not read. It can read and write no other file. Exit code 3:
    records were lost, or the end is unknown; 5: a capture is damaged.

    \b
    tcpkmon sql run.pm 'select main_limit, sum(bytes_sent) from connections group by 1'
    tcpkmon sql run.pm --tables
    """
    *names, query = words if not tables else (*words, "")
    files = tuple(Path(name) for name in names)
    if not files:
        raise UsageError("a file and a query are needed, and one of them is there",
                         "tcpkmon sql run.pm 'select * from connections', or --tables")  # fmt: skip
    if not tables and os.path.exists(query):  # False for a query that is too long for a name
        raise UsageError(f"there is no query behind the file {query}",
                         "add 'select * from connections', or --tables")  # fmt: skip
    from tcpkmon.formats.base.table_text import form_of
    from tcpkmon.formats.dataset import open_query
    from tcpkmon.formats.tables import write_answer

    form = form_of(form, output)
    refuse_input(output, files, force)
    with open_query(names) as asked:
        if tables:
            _list_tables(asked)
            return 0
        write_answer(asked.run(query), form, output, force)
        return _told(asked)


def _told(asked: Query) -> int:
    """Print what is missing in the captures; returns the exit code."""
    from tcpkmon.formats.dataset import DatasetQuery

    if isinstance(asked, DatasetQuery):
        texts = [*asked.complaints()]
        for text in texts[:_MOST_SHOWN]:
            say(f"tcpkmon sql: {for_terminal(text)}")
        if len(texts) > _MOST_SHOWN:
            say(f"tcpkmon sql: and {len(texts) - _MOST_SHOWN:,} segments more are not proven")
        return LossError.exit_code if texts else 0
    code = 0
    if not asked.asked:
        return code
    for opened in asked.opened():
        with opened.reader:
            for text in complaints_of(opened.reader):
                say(f"tcpkmon sql: {opened.reader.path}: {for_terminal(text)}")
            code = max(code, exit_code("tcpkmon sql", opened.reader, opened.paths))
    return code


def _list_tables(asked: Query) -> None:
    for view in asked.views.values():
        click.echo(f"{for_terminal(view.name)}: {view.text}")
        width = max(len(for_terminal(one.name)) for one in view.columns)
        for one in view.columns:
            kind = one.type.partition("[")[0]
            name, unit = for_terminal(one.name).ljust(width), for_terminal(one.unit)
            click.echo(f"  {name}  {kind:9}  {unit:8}  {for_terminal(one.text)}".rstrip())
        click.echo()
