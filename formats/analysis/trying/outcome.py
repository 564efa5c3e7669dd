# SPDX-License-Identifier: Apache-2.0
"""What a trial of a setting found, in words and as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tcpkmon.formats.analysis.diff.metrics import RATE, RATIO
from tcpkmon.formats.analysis.diff.statistics import TOO_FEW, Compared, change_text
from tcpkmon.formats.analysis.trying.settings import Variant, what_to_write

METRICS = ("duration_us", "goodput_mean", "latency_whole_us", "latency_whole_p95_us",
           "srtt_p50_us", "srtt_p95_us", "retrans_ratio")  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A variant beside the old setting. compared: by metric. counts: plays, or connections, without
    it and with it."""

    variant: Variant
    compared: dict[str, Compared]
    counts: tuple[int, int]

    @property
    def main(self) -> Compared:
        """The metric that it is meant to improve."""
        return self.compared[self.variant.main_metric]

    @property
    def is_proven(self) -> bool:
        """Whether that is better."""
        return self.main.is_worse is False

    @property
    def judgement(self) -> str:
        """What the main metric says."""
        main, (old, new) = self.main, self.counts
        live = self.variant.live
        name = main.metric.name.removesuffix("_us")
        counted = f"{old} plays of each"
        if live:
            counted = f"{old} connections without it and {new} with it"
        if main.result == TOO_FEW or main.a is None or main.b is None:
            return f"{counted} are too few to tell: {'--for' if live else '--rounds'}"
        if main.interval is None:
            low = high = change_text(main.metric, main.change)
        else:
            low, high = (change_text(main.metric, end) for end in main.interval)
        if main.is_worse is None:
            return f"it changes nothing that {counted} would show: {name} {low} to {high}"
        word = "it is worse" if main.is_worse else "proven " + ("here" if live else "on the copy")
        return f"{word}: {name} {change_text(main.metric, main.change)}, 95 %: {low} to {high}"

    def lines(self, settings: dict[str, str]) -> list[str]:
        """For people. settings: of the host, by name."""
        variant = self.variant
        found = [f"{variant}" + (f" ({variant.why})" if variant.why else "")]
        for name, row in self.compared.items():
            if row.a is None or row.b is None:
                continue
            scale, unit = {RATE: (8e-6, "Mbit/s"), RATIO: (100, "%")}.get(
                row.metric.kind, (1e-3, "ms"))  # fmt: skip
            low, high = row.interval or (None, None)
            interval = f"{change_text(row.metric, low)} to {change_text(row.metric, high)}"
            found.append(
                f"    {name.removesuffix('_us'):18} {scale * row.a.median:>9.4g} -> "
                f"{scale * row.b.median:<9.4g} {unit:7} {change_text(row.metric, row.change):>9}"
                + (f"  (95 %: {interval})" if row.interval else "") + f"  {row.result}"
            )  # fmt: skip
        found.append(f"    {self.judgement}")
        if self.is_proven:
            found.append("    to write:")
            found += [f"        {line}" for line in what_to_write(variant, settings)]
        return found

    def as_json(self, settings: dict[str, str]) -> dict[str, Any]:
        """All of it. plays: of each side; of a live trial counts: connections."""
        variant = self.variant
        counts = {"counts": list(self.counts)} if variant.live else {"plays": self.counts[0]}
        return {
            "settings": str(variant), "why": variant.why, **counts, "main": variant.main_metric,
            "proven": self.is_proven, "judgement": self.judgement,
            "write": what_to_write(variant, settings),
            "metrics": [
                {"metric": name, "result": row.result, "change": row.change,
                 "interval": row.interval, "p": row.p, "a": asdict(row.a) if row.a else None,
                 "b": asdict(row.b) if row.b else None}
                for name, row in self.compared.items()
            ],
        }  # fmt: skip
