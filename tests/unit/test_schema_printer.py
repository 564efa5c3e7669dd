# SPDX-License-Identifier: Apache-2.0
"""A schema printed and read again is the same schema."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tcpkmon.formats.schema import Schema, enabled_events, format_schema, load, parse
from tests.full import IS_FULL
from tests.unit.schema_texts import HOWTO_LEVELS, renamed, schemata

ROOT = Path(__file__).resolve().parents[2]


@settings(max_examples=200 if IS_FULL else 40, deadline=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(schemata())
def test_any_schema_prints_and_parses_back(schema: Schema) -> None:
    text = format_schema(schema)
    again = parse(text)
    assert again == schema
    assert enabled_events(again) == enabled_events(schema)
    assert format_schema(again) == text


@settings(max_examples=60 if IS_FULL else 12, deadline=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(schemata(), schemata())
def test_any_two_files_together_print_and_parse_back(one: Schema, two: Schema) -> None:
    both = [renamed(one, "A_"), renamed(two, "B_")]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("a.conf", "b.conf")]
        for path, schema in zip(paths, both, strict=True):
            path.write_text(format_schema(schema), encoding="utf-8", newline="")
        merged = load(paths)
    assert merged.events == both[0].events + both[1].events
    assert enabled_events(merged) == enabled_events(both[0]) + enabled_events(both[1])
    again = parse(format_schema(merged))
    assert again == merged
    assert enabled_events(again) == enabled_events(merged)


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
