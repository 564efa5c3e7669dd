# SPDX-License-Identifier: Apache-2.0
"""A schema printed and read again is the same schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.formats.schema import enabled_events, format_schema, load, parse
from tests.unit.schema_texts import HOWTO_LEVELS

ROOT = Path(__file__).resolve().parents[2]


def test_howto_levels_print_and_parse_back() -> None:
    schema = parse(HOWTO_LEVELS)
    assert parse(format_schema(schema)) == schema


@pytest.mark.parametrize(
    "path", sorted((ROOT / "bpf" / "schemata").glob("*.conf")), ids=lambda path: str(path.name)
)
def test_shipped_schemata_print_and_parse_back(path: Path) -> None:
    schema = load([ROOT / "bpf" / "schemata" / "base.conf", path])
    assert parse(format_schema(schema)) == schema


def test_guide_examples_are_schemata() -> None:
    guide = (ROOT / "docs" / "schema-language.md").read_text()
    blocks = [block.split("```")[0] for block in guide.split("\n```\n") if "event " in block]
    examples = [block for block in blocks if "{ int" in block or "SCHEDOUT {" in block]
    first, levels = (parse(text) for text in examples)
    assert [field.unit for field in first.event("SCHEDOUT").fields] == ["id", "", "misses"]
    assert [event.name for event in enabled_events(levels)] == ["ONE_DO", "TWO_DETAILED"]


def test_printed_form() -> None:
    text = """using one

arch P {
    counter1 itlb_miss;
}

enum colour {
    RED = -1,  // blood @warm
    GREEN = 255,
}

// Free.
event A {
}

// A level.
loglevel one <
    // Two lines,
    // with a tag. @t
    event B {
        int a;  // first [us]
        // long
        // text [x] []
        colour paint;
    }
>

loglevel two <
    include one
    omit B
>
"""
    assert format_schema(parse(text)) == text
