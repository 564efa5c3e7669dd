# SPDX-License-Identifier: Apache-2.0
"""When a capture begins its next file, and which of the files it keeps."""

from __future__ import annotations

import math
import shlex
import shutil
from dataclasses import dataclass
from importlib.util import find_spec

from formats.base.errors import UsageError
from formats.base.installing import how_to_install

ARCHIVES = ("parquet", "zst")
LEAST_BYTES = 64 << 10
LEAST_S = 0.1


@dataclass(frozen=True)
class Rotation:
    """Each condition that is given holds, whatever others are given; None: it is not.

    size_bytes, every_s: a file ends when it has this size, or this age, whichever is first.
    keep_*: sealed files are deleted, the oldest first, while there are more than keep_files, they
    have more than keep_bytes, their disk has less than keep_free_bytes free, or they are older than
    keep_s. on_rotate: a command, which gets each sealed file as its last argument.
    """

    size_bytes: int | None = None
    every_s: float | None = None
    keep_files: int | None = None
    keep_bytes: int | None = None
    keep_free_bytes: int | None = None
    keep_s: float | None = None
    on_rotate: tuple[str, ...] = ()
    archive: str = ""

    @property
    def keeps_all(self) -> bool:
        """Nothing is ever deleted."""
        limits = (self.keep_files, self.keep_bytes, self.keep_free_bytes, self.keep_s)
        return all(limit is None for limit in limits)


def check_rotation(rotation: Rotation) -> None:
    """Raises UsageError for values that make no sense."""
    if rotation.size_bytes is None and rotation.every_s is None:
        raise UsageError(
            "files are kept, archived or given to a command when the next one begins",
            "say when: --rotate-size or --rotate-every",
        )
    if rotation.size_bytes is not None and rotation.size_bytes < LEAST_BYTES:
        raise UsageError(f"--rotate-size: less than {LEAST_BYTES >> 10} KiB", "write 100M")
    if rotation.every_s is not None and not LEAST_S <= rotation.every_s < math.inf:
        raise UsageError(f"--rotate-every: less than {LEAST_S} s", "write 10m")
    if rotation.keep_files is not None and rotation.keep_files < 1:
        raise UsageError("--keep-files: less than 1", "write 10")
    if rotation.archive and rotation.archive not in ARCHIVES:
        raise UsageError(f"--archive: {rotation.archive!r} is none of {', '.join(ARCHIVES)}")
    if rotation.archive and find_spec("pyarrow") is None:
        raise UsageError("--archive needs pyarrow", how_to_install("pyarrow"))
    if rotation.on_rotate and shutil.which(rotation.on_rotate[0]) is None:
        raise UsageError(f"--on-rotate: there is no command {rotation.on_rotate[0]}")


def parse_command(text: str) -> tuple[str, ...]:
    """The words of a command; no shell reads them. UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--on-rotate: {text!r}: {error}") from None
    if not words:
        raise UsageError("--on-rotate: there is no command")
    return words
