# SPDX-License-Identifier: Apache-2.0
"""Section 6: bytes on the disk per record, by format."""

from __future__ import annotations

import subprocess
from pathlib import Path

import formats
from scripts.benchmark import samples
from scripts.benchmark.context import ROOT, Context

NAME = "sizes"
TITLE = "Disk space per record"
SUBJECT = "bytes a record"
PARQUET = "Parquet, --columns all"
TABLE_PARQUET = "Parquet (pyarrow, zstd), all columns"


def measure(context: Context) -> None:
    """Weighs the samples, each of the same traffic, and the Parquet file of one."""
    made = samples.make(context, NAME)
    for name, pair in made.items():
        sample = pair.many
        context.results.add(NAME, SUBJECT, name, sample.bytes / max(1, sample.records))
    if samples.ALL in made:
        sample = made[samples.ALL].many
        target = context.folder / "weighed.parquet"
        case = _export(sample.path, target)
        context.results.add(NAME, SUBJECT, case, target.stat().st_size / max(1, sample.records))
        target.unlink()


def _export(source: Path, target: Path) -> str:
    """Writes it as Parquet; by which way."""
    tcpkmon = ROOT / ".venv" / "bin" / "tcpkmon"
    done = subprocess.run(
        [str(tcpkmon), "export", str(source), "-o", str(target)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0 and target.is_file():
        return PARQUET
    from pyarrow import parquet

    with formats.open(source) as capture:
        parquet.write_table(capture.table(), target, compression="zstd")
    return TABLE_PARQUET
