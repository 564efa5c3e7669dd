# SPDX-License-Identifier: Apache-2.0
"""The results: the sections add to them, the report and the targets read them; kept as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from scripts.experiments.stats import Spread, ratios, slowdowns, spread


@dataclass
class Results:
    """Values by section, subject and case, one a round; notes and skipped cases by section.

    machine: its description. seconds: the duration of each section.
    """

    machine: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    quick: bool = False
    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, section: str, subject: str, case: str, value: float) -> None:
        subjects = self.values.setdefault(section, {})
        subjects.setdefault(subject, {}).setdefault(case, []).append(value)

    def note(self, section: str, text: str) -> None:
        notes = self.notes.setdefault(section, [])
        if text not in notes:
            notes.append(text)

    def skip(self, section: str, case: str, reason: str) -> None:
        self.skipped.setdefault(section, {})[case] = reason

    def is_skipped(self, section: str, case: str) -> bool:
        return case in self.skipped.get(section, {})

    def all(self, section: str, subject: str, case: str) -> list[float]:
        """The rounds' values; [] when it was not measured."""
        return self.values.get(section, {}).get(subject, {}).get(case, [])

    def spread(self, section: str, subject: str, case: str) -> Spread | None:
        return spread(self.all(section, subject, case))

    def median(self, section: str, subject: str, case: str) -> float | None:
        found = self.spread(section, subject, case)
        return None if found is None else found.median

    def slowdowns(self, section: str, subject: str, case: str, bare: str) -> list[float]:
        """By round, how much longer the subject's work took in this case than in the bare one."""
        return slowdowns(self.all(section, subject, case), self.all(section, subject, bare))

    def ratio(self, section: str, subject: str, case: str, other: str) -> Spread | None:
        """The subject's value in this case, divided by that in the other, round by round."""
        return spread(ratios(self.all(section, subject, case), self.all(section, subject, other)))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """What to_json wrote; ValueError for anything else."""
        try:
            raw: Any = json.loads(text)
            return cls(**raw)
        except TypeError as error:
            raise ValueError(f"no results of scripts/bench: {error}") from None
