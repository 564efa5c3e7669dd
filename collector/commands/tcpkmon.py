# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon: the group of all subcommands."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from tcpkmon.formats.base.cli import run

ROOMS = {
    "tcpkmon.collector.commands": (
        "benchmark", "buffer_size", "columns", "daemon", "demo", "disable", "doctor",
        "dump", "enable", "events", "lowwater", "mark", "metrics", "probe", "reload",
        "sampler_period", "schema", "selftest", "status", "top", "triggers", "try",
    ),
    "tcpkmon.collector.commands.history": ("iscan", "monitor", "msmod"),
    "tcpkmon.formats.commands": (
        "anonymise", "check", "condense", "conform", "connections", "cut", "dataset", "decode",
        "diff", "export", "flamegraph", "join", "latency", "magnet_parse", "packetdrill", "pair",
        "repair", "report", "requests", "sql", "translate", "verify", "why",
    ),
}  # fmt: skip
"""The commands, by the room of their modules."""
_MODULES = {
    name.replace("_", "-"): f"{room}.{name}" for room, names in ROOMS.items() for name in names
}


GROUPS = {
    "Before a capture": ("doctor", "columns", "events", "schema", "selftest", "benchmark"),
    "Capture (the command collect does one)": (
        "daemon", "reload", "status", "top", "metrics", "dump", "triggers", "mark", "probe",
        "enable", "disable", "buffer-size", "lowwater", "sampler-period", "try",
    ),
    "Explain": ("why", "connections", "requests", "latency", "report", "sql", "flamegraph"),
    "Prove and repair": ("verify", "repair"),
    "Compare and check": ("diff", "check", "conform", "packetdrill"),
    "Export and share": ("export", "decode", "join", "pair", "cut", "anonymise", "dataset", "demo"),
    "The systems of 1987, 1988 and 2001": (
        "monitor", "condense", "msmod", "iscan", "translate", "magnet-parse",
    ),
}  # fmt: skip
"""The commands as the help shows them."""


class Commands(click.Group):
    """Imports a command's module when it is asked for: `verify` starts without the loader."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _MODULES.get(cmd_name)
        if place is None:
            return None
        found = import_module(place).command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In GROUPS, each with its whole first sentence."""
        known = parts(self)
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([
                    (name, known[name].get_short_help_str(formatter.width * 4)) for name in names
                ])  # fmt: skip


@click.command(
    "tcpkmon", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}
)  # fmt: skip
@click.version_option(package_name="tcpkmon", prog_name="tcpkmon")
def command() -> None:
    """Monitor TCP in the running Linux kernel: what this machine can do, and what files hold.

    The command collect makes a capture, and pmgraph draws one:

    \b
      sudo collect --ports 443 -o run.pm --duration 10s
      tcpkmon why run.pm
      tcpkmon verify run.pm
    """


def parts(group: click.Group) -> dict[str, click.Command]:
    """The commands of a group, by name."""
    context = click.Context(group)
    found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return {name: part for name, part in found if part is not None}


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(command, prog="tcpkmon"))
