# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon daemon: runs the captures of a configuration."""

from __future__ import annotations

from pathlib import Path

import click

from tcpkmon.collector.daemon.toml_files import CONFIG


@click.command("daemon")
@click.option("--config", type=click.Path(path_type=Path), default=CONFIG, show_default=True,
              metavar="FILE", help="The configuration; files of FILE's name with .d come after it.")
@click.option("--check", is_flag=True, help="Only tell the mistakes in the configuration.")
@click.option("--early", is_flag=True, help="From boot on: write to memory until tcpkmon reload, "
              "when the disks are there, then move that to them.")
def command(config: Path, check: bool, early: bool) -> int:
    """Run the captures of a configuration, until SIGTERM.

    Each is a process of its own, which is started again if it dies. SIGHUP, or tcpkmon reload,
    applies what changed in the configuration.
    """
    if check:
        from tcpkmon.collector.daemon.checking import check_only

        return check_only(config)
    from tcpkmon.collector.daemon import supervisor

    return supervisor.run(config, early=early)
