# SPDX-License-Identifier: Apache-2.0
"""Bytes on the disk per record, by format."""

from __future__ import annotations

import subprocess

from scripts.benchmark import samples
from scripts.experiments.context import BIN, Context

NAME = "sizes"
TITLE = "Disk space per record"
SUBJECT = "bytes a record"
PARQUET = "Parquet, --columns all"


def measure(context: Context) -> None:
    """The sizes of the samples, all of the same traffic, and of one as Parquet."""
    made = samples.make(context, NAME)
    for name, pair in made.items():
        sample = pair.many
        context.results.add(NAME, SUBJECT, name, sample.bytes / max(1, sample.records))
    if samples.ALL in made:
        sample = made[samples.ALL].many
        target = context.folder / "weighed.parquet"
        subprocess.run(
            [str(BIN / "tcpkmon"), "export", str(sample.path), "-o", str(target)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        context.results.add(NAME, SUBJECT, PARQUET, target.stat().st_size / max(1, sample.records))
        target.unlink()
