# SPDX-License-Identifier: Apache-2.0
"""When a capture begins its next file, and which of the files it keeps."""

from __future__ import annotations

import math
import shlex
import shutil
from dataclasses import dataclass
from importlib.util import find_spec

from tcpkmon.collector.plan.options import (
    PATH,
    SIZE,
    TIME,
    Kind,
    Option,
    choice,
    command,
    number,
    option,
)
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.installing import how_to_install
from tcpkmon.formats.base.quantities import parse_duration, parse_size

LEAST_BYTES = 64 << 10
LEAST_S = 0.1


def parse_command(text: str) -> tuple[str, ...]:
    """The words of a command; no shell reads them. UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--on-rotate: {text!r}: {error}") from None
    if not words:
        raise UsageError("--on-rotate: there is no command")
    return words


_FILES, _COMMAND = number(1, checked=False), command(parse_command)


@dataclass(frozen=True)
class Rotation:
    """Each condition that is given holds, whatever others are given; None: it is not.

    size_bytes, every_s: a file ends when it has this size, or this age, whichever is first.
    keep_*: sealed files are deleted, the oldest first, while there are more than keep_files, they
    have more than keep_bytes, their disk has less than keep_free_bytes free, or they are older than
    keep_s. on_rotate: a command, which gets each sealed file as its last argument. dataset: the
    folder that the tables of each are added to.
    """

    # fmt: off
    size_bytes: int | None = option(
        "--rotate-size SIZE", SIZE, "Begin the next file at this size: 100M. Then -o names a "
        "folder.", "size", twins=[Option(
            "-C N", Kind(lambda n: parse_size(f"{n}000000"), parse_size, int),
            "As tcpdump: --rotate-size of N million bytes.")])
    every_s: float | None = option(
        "--rotate-every TIME", TIME, "Begin the next file after this time: 10m. Then -o names a "
        "folder.", "every", twins=[Option(
            "-G S", Kind(lambda n: parse_duration(str(n)), parse_duration, int),
            "As tcpdump: --rotate-every S.")])
    keep_files: int | None = option(
        "--keep-files N", _FILES, "Delete the oldest above N files.", True,
        twins=[Option("-W N", _FILES, "As tcpdump: --keep-files N.")])
    keep_bytes: int | None = option(
        "--keep-size SIZE", SIZE, "Delete the oldest while all have more than this size.", True)
    keep_free_bytes: int | None = option(
        "--keep-free SIZE", SIZE, "Delete the oldest while less of their disk is free.", True)
    keep_s: float | None = option(
        "--keep-for TIME", TIME, "Delete those that are older: 12h.", True)
    on_rotate: tuple[str, ...] = option(
        "--on-rotate COMMAND", _COMMAND, "Run this with each finished file as last argument. No "
        "shell reads it.", True, twins=[Option("-z COMMAND", _COMMAND, "As tcpdump: --on-rotate.")])
    archive: str = option(
        "--archive zst", choice("zst"), "Compress each finished file.", True,
        default="")
    dataset: str = option(
        "--dataset DIR", PATH, "Add the tables of each finished file to the dataset in this "
        "folder, as its owner.", True, default="")
    # fmt: on

    @property
    def keeps_all(self) -> bool:
        """Nothing is ever deleted."""
        limits = (self.keep_files, self.keep_bytes, self.keep_free_bytes, self.keep_s)
        return all(limit is None for limit in limits)

    def check(self) -> None:
        """Raises UsageError for values that make no sense."""
        if self.size_bytes is None and self.every_s is None:
            raise UsageError(
                "files are kept, archived or given to a command when the next one begins",
                "say when: --rotate-size or --rotate-every",
            )
        if self.size_bytes is not None and self.size_bytes < LEAST_BYTES:
            raise UsageError(f"--rotate-size: less than {LEAST_BYTES >> 10} KiB", "write 100M")
        if self.every_s is not None and not LEAST_S <= self.every_s < math.inf:
            raise UsageError(f"--rotate-every: less than {LEAST_S} s", "write 10m")
        if self.keep_files is not None and self.keep_files < 1:
            raise UsageError("--keep-files: less than 1", "write 10")
        for name, given in (("--archive", self.archive), ("--dataset", self.dataset)):
            if given and find_spec("pyarrow") is None:
                raise UsageError(f"{name} needs pyarrow", how_to_install("pyarrow"))
        if self.on_rotate and shutil.which(self.on_rotate[0]) is None:
            raise UsageError(f"--on-rotate: there is no command {self.on_rotate[0]}")
