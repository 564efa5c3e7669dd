# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon iscan: collects measurements, as in HP-UX; translate prints them."""

from __future__ import annotations

import click

from tcpkmon.formats.registry import FILE_FORMATS

_FORMAT = "klogger"


@click.command("iscan")
@click.option("-o", "--output", metavar="FOLDER", help="Where the logs go. Default: iscan-TIME.")
@click.option("--force", is_flag=True, help="Replace an existing capture.")
@click.option("--duration", metavar="TIME", help="Stop after this time: 10s, 2m.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def command(
    output: str | None, force: bool, duration: str | None, quiet: bool, ids: tuple[str, ...]
) -> int:
    """Collect these measurements into Klogger logs until Ctrl-C; see tcpkmon msmod -l.

    The log level of a schema that has one of them is used.
    """
    import time

    from tcpkmon.collector.commands.collect import import_quietly, run
    from tcpkmon.collector.commands.history.measurements import choose
    from tcpkmon.collector.plan.filters import parse
    from tcpkmon.collector.plan.request import Request
    from tcpkmon.formats.base.quantities import parse_duration

    chosen = [one for each in choose(ids) for one in each]
    import_quietly()
    names = dict.fromkeys(one.event.name for one in chosen)
    return run(
        Request(
            filters=parse(),
            output=time.strftime("iscan-%Y%m%d-%H%M%S") if output is None else output,
            schemata=tuple(dict.fromkeys(one.schema for one in chosen)),
            locations=",".join(names),
            using=tuple(dict.fromkeys(one.level for one in chosen if one.level)),
            file_format=FILE_FORMATS[_FORMAT].name,
            duration_s=parse_duration(duration) if duration else None,
            force=force,
            quiet=quiet,
            arguments=("iscan", *ids),
        )
    )
