# SPDX-License-Identifier: Apache-2.0
"""scripts/kernels: one column for each series and flavour, a row for a kernel that is refused."""

from __future__ import annotations

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kernels"
SEEN = {
    "rings": "bpf", "functions": ["fentry"], "counts_kprobes": True, "preemption": "PREEMPT_RT",
    "absent_columns": [],
    "locations": {"RTO": {"ways": {"btf:a": "", "raw:a": "no such"}, "recorded": {"btf:a": 3}}},
}  # fmt: skip


@pytest.fixture
def script() -> Any:
    loader = SourceFileLoader("kernels_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_has_the_texts(script: Any) -> None:
    page = (SCRIPT.parents[1] / "docs/kernels.md").read_text()
    for text in (script.LEGEND, script.DIFFERENCES, script.ARM64, script.TESTS, script.FACTS,
                 script.WAYS):  # fmt: skip
        assert text.rstrip("\n") in page


def test_the_newest_of_each_series_and_flavour(script: Any, tmp_path: Path) -> None:
    arm64 = "6.1.0-56-arm64"
    for kernel in ("6.1.0-9-amd64", "6.1.0-56-amd64", "7.3.4-rt-amd64", "7.3.4-amd64", arm64):
        counts = not kernel.startswith("6")
        seen = {**SEEN, "kernel": kernel, "counts_kprobes": counts}
        (tmp_path / f"{kernel}.json").write_text(json.dumps(seen))
    refused = {"kernel": "5.10.0-46-amd64", "refused": "too old"}
    (tmp_path / "5.10.json").write_text(json.dumps(refused))
    kernels = script.read_seen(tmp_path)
    names = [seen["kernel"] for seen in kernels]
    assert names[:2] == ["5.10.0-46-amd64", "6.1.0-56-amd64"]
    assert set(names[2:4]) == {"7.3.4-amd64", "7.3.4-rt-amd64"}
    assert names[4:] == [arm64]
    lines = script.make_text(kernels).splitlines()
    assert "| RTO |" + 4 * " `btf:a`, recorded |" in lines
    assert "| RTO | `raw:a` |" + 4 * " no such target |" in lines
    (row,) = (line for line in lines if line.startswith("| 5.10.0-46-amd64"))
    assert "`collect` refuses to start: too old" in row
    (row,) = (line for line in lines if line.startswith("| 6.1.0-56-amd64"))
    assert "no: not proven" in row
