# SPDX-License-Identifier: Apache-2.0
"""scripts/kernels: one column for each series and flavour, a row for a kernel that is refused."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kernels"


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
