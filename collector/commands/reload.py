# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon reload: the daemon applies what changed in its configuration."""

from __future__ import annotations

import click

from tcpkmon.formats.base.escape import for_terminal


@click.command("reload")
def command() -> int:
    """Apply what changed in the daemon's configuration.

    One daemon runs at a time, and reads what its own --config names again. Filters and limits
    change while a capture runs. For the rest the capture is restarted. With a mistake in the
    configuration nothing changes.
    """
    from tcpkmon.collector.daemon.requests import ask

    for name, what in ask({"op": "reload"}).items():
        print(for_terminal(f"{name}: {what}"))
    return 0
