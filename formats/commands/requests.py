# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon requests FILE...`: the exchanges of requests and answers, and who was waited for."""

from __future__ import annotations

import json
from pathlib import Path

import click

from formats.commands.connections import report


@click.command("requests")
@click.argument("files", metavar="FILE...", nargs=-1, required=True,
                type=click.Path(readable=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line for each exchange.")
def command(files: tuple[Path, ...], as_json: bool) -> int:
    """Say where the time of each request went: client, network, server.

    FILE is a PSC file, a Klogger log or a folder of them, of the schema tcp.
    """
    from formats.analysis.requests import requests
    from formats.analysis.why import Source, rows_of
    from formats.registry import group

    code = 0
    for paths in group(files):
        with Source(*paths) as source:
            table = requests(source)
            code = max(code, report(source, "requests"))
        for row in rows_of(table):
            click.echo(json.dumps(row))
    return code
