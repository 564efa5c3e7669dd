# SPDX-License-Identifier: Apache-2.0
"""What a capture's header says of the records that tcpkmon cut left out of it."""

from __future__ import annotations

from typing import Any

from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.verify.report import Problems, Report

_WORDS = ("since", "until", "connections", "where")


def cuts_in(settings: object) -> list[dict[str, Any]]:
    """A dictionary for each cut, the first one first."""
    found = setting(settings, "cut")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def tell_cuts(settings: object, report: Report, problems: Problems) -> None:
    """Say what was cut; the ledger must count as many records as filtered, at least."""
    cuts = cuts_in(settings)
    numbers = [one.get("records") for one in cuts]
    counts = [number for number in numbers if isinstance(number, int) and number >= 0]
    for one, count in zip(cuts, counts, strict=False):
        asked = ", ".join(f"{name} {one[name]}" for name in _WORDS if name in one)
        report.notes.append(
            f"{count:,} records were cut out afterwards ({asked}); they count as filtered"
        )
    if len(counts) < len(cuts):
        problems.add_header("the header's description of a cut cannot be read")
    elif report.proven_end and sum(counts) > sum(row.filtered for row in report.rows):
        problems.add_header("the header tells of more records cut than the ledger has filtered")
