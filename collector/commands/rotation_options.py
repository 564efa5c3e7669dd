# SPDX-License-Identifier: Apache-2.0
"""The options of `collect` for its files: when the next one begins, and which are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from formats.base.errors import UsageError

if TYPE_CHECKING:
    from collector.plan.rotation import Rotation

_OPTIONS = (
    click.option("--rotate-size", metavar="SIZE",
                 help="Begin the next file at this size: 100M. Then -o names a folder."),
    click.option("--rotate-every", metavar="TIME",
                 help="Begin the next file after this time: 10m. Then -o names a folder."),
    click.option("--keep-files", type=int, metavar="N", help="Delete the oldest above N files."),
    click.option("--keep-size", metavar="SIZE",
                 help="Delete the oldest while all have more than this size."),
    click.option("--keep-free", metavar="SIZE",
                 help="Delete the oldest while less of their disk is free."),
    click.option("--keep-for", metavar="TIME", help="Delete those that are older: 12h."),
    click.option("--on-rotate", metavar="COMMAND",
                 help="Run this with each finished file as last argument. No shell reads it."),
    click.option("--archive", metavar="parquet|zst",
                 help="Turn each finished file into Parquet, or compress it."),
    click.option("-C", "tcpdump_c", type=int, metavar="N",
                 help="As tcpdump: --rotate-size of N million bytes."),
    click.option("-G", "tcpdump_g", type=int, metavar="S", help="As tcpdump: --rotate-every S."),
    click.option("-W", "tcpdump_w", type=int, metavar="N", help="As tcpdump: --keep-files N."),
    click.option("-z", "tcpdump_z", metavar="COMMAND", help="As tcpdump: --on-rotate."),
)  # fmt: skip
_TWINS = {
    "rotate_size": ("-C", "tcpdump_c"),
    "rotate_every": ("-G", "tcpdump_g"),
    "keep_files": ("-W", "tcpdump_w"),
    "on_rotate": ("-z", "tcpdump_z"),
}


def rotation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_rotation(options: dict[str, Any], seconds: Callable[[str], float]) -> Rotation | None:
    """Take these options out of a command's; None where none was given. UsageError.

    seconds: of a text such as 10m.
    """
    from collector.plan.quantities import parse_size
    from collector.plan.rotation import Rotation, check_rotation, parse_command

    for name, (short, twin) in _TWINS.items():
        given = options.pop(twin)
        if given is not None and options[name] is not None:
            raise UsageError(f"{short} and --{name.replace('_', '-')} are the same")
        if given is not None:
            options[name] = {"-C": f"{given}000000", "-G": f"{given}s"}.get(short, given)
    names = (
        "rotate_size", "rotate_every", "keep_files", "keep_size", "keep_free", "keep_for",
        "on_rotate", "archive",
    )  # fmt: skip
    given = {name: options.pop(name) for name in names}
    if all(value is None for value in given.values()):
        return None

    def size(name: str) -> int | None:
        return None if given[name] is None else parse_size(given[name])

    def age(name: str) -> float | None:
        return None if given[name] is None else seconds(given[name])

    rotation = Rotation(
        size_bytes=size("rotate_size"),
        every_s=age("rotate_every"),
        keep_files=given["keep_files"],
        keep_bytes=size("keep_size"),
        keep_free_bytes=size("keep_free"),
        keep_s=age("keep_for"),
        on_rotate=parse_command(given["on_rotate"]) if given["on_rotate"] is not None else (),
        archive=given["archive"] or "",
    )
    check_rotation(rotation)
    return rotation
