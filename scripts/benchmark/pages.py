# SPDX-License-Identifier: Apache-2.0
"""docs/benchmark: a page for each CPU model that was measured, and the index of all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.benchmark import slowdown
from scripts.benchmark.means import beside, each_beside, mean_slowdown
from scripts.benchmark.report import markdown
from scripts.experiments.report import NONE, check_whole, rows_of, write_whole
from scripts.experiments.results import Results
from scripts.experiments.stats import number, percent
from tcpkmon.formats.base.errors import FileError

INDEX = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `sudo scripts/bench --docs`: change scripts/benchmark, not this page. -->
# What it costs

`sudo scripts/bench` measures it beside perf, bpftrace and tcpdump. Anybody can run it: it installs
what it needs, makes network namespaces of its own, and takes some 17 minutes on a machine that
does nothing else. How much a capture costs depends on the CPU, so each model has a page, of the
tree that was measured there:

{table}

How much longer TCP's work takes. Ratios: the mean slowdown of so many kinds of work, divided by
that of `perf record -a -e tcp:tcp_probe` in the same run; below 1 is cheaper than perf. Worst: the
work in which it is most above perf's; both slowdowns, where perf's may be noise. Perf's columns:
the same events with the 13 values that tcp_probe prints. Other ports: traffic that the capture's
filter leaves out. `-`: all work scattered too much there to decide; the page has what was seen.

- [Where the time goes, and what was tried](benchmark/tried.md)
- `sudo scripts/bench --compare main HEAD` tells which of two trees is faster.
- `sudo scripts/bench --docs` writes the page of your machine's model.
"""


@dataclass(frozen=True)
class Share:
    """A mean slowdown divided by perf's, in so many kinds of work; the worst one, in words."""

    mean: float
    works: int
    worst: str = ""

    @property
    def text(self) -> str:
        """As `0.55, mean of 5; worst: churn, 2.10`."""
        worst = f"; worst: {self.worst}" if self.worst else ""
        return f"{number(self.mean)}, mean of {self.works}{worst}"


@dataclass(frozen=True)
class Page:
    """The headline of a page, in a file of its own beside it, from which the index is made.

    other_ports: a slowdown; 0.1 is 10 % longer. source: who measured, if it was not scripts/bench.
    """

    model: str
    date: str
    tree: str
    kernel: str
    default: Share | None = None
    perf_columns: Share | None = None
    other_ports: float | None = None
    source: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Page:
        """What to_json wrote; ValueError for anything else."""
        try:
            raw: Any = json.loads(text)
            for name in ("default", "perf_columns"):
                if raw[name] is not None:
                    raw[name] = Share(**raw[name])
            return cls(**raw)
        except (TypeError, KeyError) as error:
            raise ValueError(f"no headline of a benchmark's page: {error}") from None


def slug(model: str) -> str:
    """The name of a model's page: `Intel(R) Xeon(R) CPU @ 2.70GHz` is intel-xeon."""
    plain = re.sub(r"\((?:r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", model.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"


def headline(results: Results) -> Page:
    """What the index tells of these results."""
    machine = results.machine
    other = mean_slowdown(results, slowdown.FILTERED)
    return Page(
        machine.get("CPU model", "unknown"),
        machine.get("date", "unknown").partition(" ")[0],
        machine.get("tree", "unknown"),
        machine.get("kernel", "unknown").partition(" ")[0],
        _share(results, slowdown.DEFAULT),
        _share(results, slowdown.COLUMNS),
        None if other is None else round(other.value, 4),
    )


def _share(results: Results, case: str) -> Share | None:
    mean = beside(results, case, slowdown.PERF)
    if mean is None or mean.other.value <= 0:
        return None
    each = each_beside(results, case, slowdown.PERF)
    return Share(round(mean.ratio, 3), len(each), f"{each[0].work}, {each[0].text}")


def write(results: Results, docs: Path, sections: Sequence[str]) -> list[Path]:
    """Writes the page of the results' model, and the index; returns the written files.

    A page is made of a whole run: UsageError for a quick one, and where a section is missing.
    """
    check_whole(results, sections)
    page = headline(results)
    folder = docs / "benchmark"
    folder.mkdir(exist_ok=True)
    paths = folder / f"{slug(page.model)}.md", folder / f"{slug(page.model)}.json"
    for path, text in zip(paths, (markdown(results), page.to_json()), strict=True):
        write_whole(path, text)
    write_whole(docs / "benchmark.md", index(folder))
    return [*paths, docs / "benchmark.md"]


def index(folder: Path) -> str:
    """docs/benchmark.md, from the headlines in that folder."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        try:
            page = Page.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FileError(f"{path}: {error}") from None
        rows.append((
            f"[{page.model}](benchmark/{path.stem}.md)", page.date,
            page.tree + (f" ({page.source})" if page.source else ""),
            *(NONE if share is None else share.text for share in (page.default, page.perf_columns)),
            NONE if page.other_ports is None else percent(page.other_ports),
        ))  # fmt: skip
    headings = ("CPU model", "date", "tree", "default / perf", "perf's columns / perf",
                "other ports")  # fmt: skip
    return INDEX.format(table="\n".join(rows_of(headings, rows)))
