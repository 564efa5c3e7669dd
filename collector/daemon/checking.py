# SPDX-License-Identifier: Apache-2.0
"""Checks a configuration in a process of its own: the supervisor has none of the imports.

    python -m tcpkmon.collector.daemon.checking FILE

It prints the captures as JSON, or all mistakes on stderr.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from tcpkmon.collector.daemon.config import check
from tcpkmon.collector.daemon.metrics_process import lacking
from tcpkmon.collector.daemon.toml_files import CONFIG, read
from tcpkmon.formats.base.cli import run, say


def plan_of(path: Path) -> dict[str, Any]:
    """The configuration, for the supervisor. ConfigError, FileError, PrivilegeError.

    captures: by name, the `table`, and of it what may change in a running capture: `filters`, the
    arguments of filters.parse(), and `limits`, by event; `static` is the rest.
    """
    sources = read(path)
    captures = {}
    for name, capture in check(sources).items():
        table = sources.table["capture"][name]
        captures[name] = {
            "table": table,
            "folder": capture.request.output,
            "filters": capture.filters,
            "limits": dict(capture.request.limits),
            "static": {key: value for key, value in table.items() if key not in capture.changeable},
        }
        capture.request.filters.close()
    control = sources.table.get("control", {})
    return {
        "captures": captures,
        "group": control.get("group"),
        "metrics": sources.table.get("metrics"),
    }


def check_only(config: Path) -> int:
    """Tell the mistakes in a configuration. ConfigError with all of them."""
    plan = plan_of(config)
    names = list(plan["captures"])
    many = "capture" if len(names) == 1 else "captures"
    print(f"{config}: {len(names)} {many}: {', '.join(names)}")
    if warning := lacking(plan["metrics"], plan["group"]):
        say(f"tcpkmon daemon: {warning}")
    return 0


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=CONFIG)
def command(path: Path) -> int:
    """Print the plan of a configuration."""
    print(json.dumps(plan_of(path)))
    return 0


def main() -> None:
    sys.exit(run(command, prog="tcpkmon daemon"))
