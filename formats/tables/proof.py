# SPDX-License-Identifier: Apache-2.0
"""The tables ledger and proof: what verify finds in the files of a capture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.tables.column import Column, schema_of
from tcpkmon.formats.tables.shipped import LEDGER, PROOF, cause_column
from tcpkmon.formats.verify import CAUSES, Report

_COUNTS = ("attempts", "filtered", "unchanged", "limited", "shed", "written", "in_file", "pending")


def reports_of(paths: Iterable[Path]) -> list[Report]:
    """What verify says of each file. FileError."""
    return [report for path in paths for report in format_of(path).verify(path)]


def ledger_of(reports: Sequence[Report]) -> Any:
    """The table ledger. No count is in it twice: what sums up other files is left out."""
    rows = []
    for report in _parts(reports):
        head = {"path": report.path, "segment": _segment(report), "proven": _is_proven(report)}
        for row in report.rows:
            counts = {name: getattr(row, name) for name in _COUNTS}
            lost = {cause_column(name): row.lost.get(name, 0) for name in CAUSES}
            rows.append({**head, "cpu": row.cpu, "location": row.name, **counts, **lost,
                         "lost": row.lost_total, "missed": 0})  # fmt: skip
        for one in report.missed:
            if missed := one.recursion + one.kprobe:
                counts = dict.fromkeys((*_COUNTS, *map(cause_column, CAUSES), "lost"), 0)
                rows.append({**head, **counts, "location": one.name, "missed": missed})
    return _table(rows, LEDGER)


def proof_of(reports: Sequence[Report]) -> Any:
    """The table proof."""
    parts = {id(report) for report in _parts(reports)}
    rows = [
        {
            "path": report.path, "whole": id(report) not in parts, "segment": _segment(report),
            "format": report.format, "verdict": report.verdict, "exit_code": report.exit_code,
            "proven": _is_proven(report), "entries": report.entries,
            "size_bytes": report.size_bytes, "lost": report.lost_total,
            "end_reason": report.end_reason, "checkpoints": report.checkpoints,
            "problems": report.problems_total,
        }
        for report in reports
    ]  # fmt: skip
    return _table(rows, PROOF)


def _table(rows: list[dict[str, Any]], columns: Sequence[Column]) -> Any:
    return import_pyarrow().Table.from_pylist(rows, schema=schema_of(columns))


def _parts(reports: Sequence[Report]) -> list[Report]:
    """Those that tell of no other one's files."""
    above = {parent for one in reports for parent in Path(one.path).parents}
    return [one for one in reports if Path(one.path) not in above]


def _is_proven(report: Report) -> bool:
    return report.exit_code == 0 and report.ledger


def _segment(report: Report) -> int | None:
    return report.part.number if report.part is not None else None
