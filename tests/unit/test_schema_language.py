# SPDX-License-Identifier: Apache-2.0
"""What the Klogger language means: types, values, levels, documentation, files together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tcpkmon.formats.base.errors import SchemaError
from tcpkmon.formats.schema import (
    Event,
    Field,
    LogLevel,
    enabled_events,
    field_type,
    format_schema,
    load,
    parse,
)
from tests.full import first

HOWTO_LEVELS = """
using two

loglevel one <
   event ONE_DO {
   }

   event ONE_SIMPLE {
   }
>

loglevel two <
   include one

   omit ONE_SIMPLE

   event TWO_DETAILED {
   }
>
"""


SCHEMATA = Path(__file__).resolve().parents[2] / "bpf" / "schemata"


def names(events: tuple[Event, ...]) -> list[str]:
    return [event.name for event in events]


@pytest.mark.parametrize("separator", [";", ",", " ", "\n", " ;\n"])
def test_separators_of_fields(separator: str) -> None:
    schema = parse(f"event A {{ int a{separator} long b{separator} }}")
    assert schema.events[0].fields == (Field("a", "int"), Field("b", "long"))


def test_groups_of_fields_are_in_the_events() -> None:
    schema = parse("""
        fields who {
            int tid                 // thread [id] @raw
            kind what
        }
        fields whose { long file; fields who }
        enum kind { A }
        event FIRST { fields who; int x }
        loglevel low <
            event SECOND { int x, fields whose }
        >
        """)
    who = (Field("tid", "int", "thread", "id", frozenset({"raw"})), Field("what", "kind"))
    first = Event("FIRST", (*who, Field("x", "int")))
    second = Event("SECOND", (Field("x", "int"), Field("file", "long"), *who))
    assert schema.events == (first, second)
    assert schema.loglevels == (LogLevel("low", (second,)),)
    text = format_schema(schema)
    assert "fields" not in text
    assert parse(text) == schema


def test_howto_enum_values() -> None:
    schema = parse(
        "enum enumerationtype {\n one,\n minusone = -1,\n four = 4,\n TWO = 2,\n Three\n}"
        "enum other { A = 0x10, B, C = -0x2, D = 010, E = 4, F = 4 }"
    )
    one, other = schema.enums
    assert [(member.name, member.value) for member in one.members] == [
        ("one", 0),
        ("minusone", -1),
        ("four", 4),
        ("TWO", 2),
        ("Three", 3),
    ]
    assert [member.value for member in other.members] == [16, 17, -2, 8, 4, 4]
    assert other.names()[4] == "E"
    assert schema.enum("other").names()[17] == "B"


@pytest.mark.parametrize(
    ("kind", "width", "signed", "c_type", "dtype"),
    [
        ("short", 2, True, "short", "i2"),
        ("ushort", 2, False, "unsigned short", "u2"),
        ("int", 4, True, "int", "i4"),
        ("uint", 4, False, "unsigned int", "u4"),
        ("long", 8, True, "long", "i8"),
        ("ulong", 8, False, "unsigned long", "u8"),
        ("longlong", 8, True, "long long", "i8"),
        ("ulonglong", 8, False, "unsigned long long", "u8"),
        ("string1", 1, False, "char[1]", "S1"),
        ("string4096", 4096, False, "char[4096]", "S4096"),
        ("colour", 4, True, "int", "i4"),
    ],
)
def test_types(kind: str, width: int, signed: bool, c_type: str, dtype: str) -> None:
    schema = parse(f"event A {{ {kind} x }} enum colour {{ RED }}")
    found = field_type(schema, schema.events[0].fields[0])
    assert (found.width, found.signed, found.c_type, found.dtype) == (width, signed, c_type, dtype)
    expected = "string" if kind.startswith("string") else "enum" if kind == "colour" else "int"
    assert found.kind == expected


@pytest.mark.parametrize(
    ("using", "enabled"),
    [
        ("", ["FREE", "A", "B", "C"]),
        ("using low", ["FREE", "A", "B"]),
        ("using middle", ["FREE", "B"]),
        ("using high", ["FREE", "B", "C"]),
        ("using high, low;", ["FREE", "A", "B", "C"]),
        ("using high low", ["FREE", "A", "B", "C"]),
        ("using middle\nusing low", ["FREE", "A", "B"]),
    ],
)
def test_levels_in_use(using: str, enabled: list[str]) -> None:
    levels = """
        event FREE { }
        loglevel high < event C { } include middle >
        loglevel low < event A { } event B { } >
        loglevel middle < omit A; include low; >
    """
    found = names(enabled_events(parse(f"{using}\n{levels}")))
    assert sorted(found) == sorted(enabled)


@pytest.mark.parametrize(
    ("comment", "doc", "unit", "tags"),
    [
        ("window [segments] @classic", "window", "segments", {"classic"}),
        ("@a, @b-c. text", "text", "", {"a", "b-c"}),
        ("priv[0] of x", "priv[0] of x", "", set()),
        ("from [a] to [b]", "from [a] to", "b", set()),
        ("see [1] []", "see [1]", "", set()),
        ("mail a@b or @@b", "mail a@b or @b", "", set()),
        ("[ us,  smooth ]", "", "us, smooth", set()),
    ],
)
def test_unit_and_tags(comment: str, doc: str, unit: str, tags: set[str]) -> None:
    field = parse(f"event A {{\n int x // {comment}\n}}").events[0].fields[0]
    assert (field.doc, field.unit) == (doc, unit)
    assert field.tags == tags


def test_carriage_returns_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "win.conf"
    path.write_bytes(b"\xef\xbb\xbfevent A {\r\n  int x // doc\r\n}\r\n")
    assert load([path]).events == (Event("A", (Field("x", "int", "doc"),)),)


def test_load_several(tmp_path: Path) -> None:
    (tmp_path / "base.conf").write_text("event START { kind k }\n")
    (tmp_path / "net.conf").write_text(f"{HOWTO_LEVELS}\nenum kind {{ COLD }}\n")
    levels = "loglevel three < include one event E { } >\nloglevel four < omit E include three >"
    (tmp_path / ".klogger.conf.more").write_text(levels)
    paths = [tmp_path / name for name in ("base.conf", "net.conf", ".klogger.conf.more")]
    schema = load([*paths, paths[0]])
    assert schema.name == "base+net+more"
    # more.conf names no level, so all of its levels are in use, and with three all of one.
    assert schema.using == ("two", "three", "four")
    assert names(enabled_events(schema)) == ["START", "ONE_DO", "ONE_SIMPLE", "TWO_DETAILED", "E"]
    two = load(paths[:1] + paths[1:2])
    assert names(enabled_events(two)) == ["START", "ONE_DO", "TWO_DETAILED"]


def test_shipped_schemata_can_be_loaded_together_but_two() -> None:
    """TCP_SEND is a historic name in both; the refusal says what to do."""
    paths = sorted(SCHEMATA.glob("*.conf"))
    assert len(paths) > 10
    load([path for path in paths if path.stem != "magnet"])
    load([path for path in paths if path.stem != "network"])
    with pytest.raises(SchemaError) as caught:
        load(paths)
    (problem,) = map(str, caught.value.problems)
    assert "found 'TCP_SEND' again" in problem
    assert "network.conf" in problem and "magnet.conf" in problem
    assert problem.endswith("; record these schemata in a capture each")


def test_arches_of_several_files_add_up(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("a.conf", "b.conf", "c.conf"))
    one.write_text("arch any { counter1 task_clock; counter2 cycles }")
    two.write_text("arch any { counter1 task_clock; counter3 page_faults } arch arm64 { }")
    schema = load([one, two])
    assert [(arch.name, dict(arch.counters)) for arch in schema.arches] == [
        ("any", {"counter1": "task_clock", "counter2": "cycles", "counter3": "page_faults"}),
        ("arm64", {}),
    ]
    places = [(place.file, place.column) for place in schema.arches[0].counter_positions]
    assert places == [(str(one), 21), (str(one), 42), (str(two), 42)]
    three.write_text("arch any { counter2 cycles;\n counter1 itlb_miss;\n counter4 page_faults }")
    with pytest.raises(SchemaError) as caught:
        load([one, two, three])
    assert [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems] == [
        "c.conf:2:11: expected 'task_clock' for counter1, found 'itlb_miss'"
        " (arch 'any' is at a.conf:1 too)",
        "c.conf:3:11: expected counter3 for 'page_faults', found counter4"
        " (arch 'any' is at a.conf:1 too)",
    ]


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


_MISTAKES = Path(__file__).with_name("schema_mistakes.jsonl").read_text(encoding="utf-8")
"""Schemata, the place of the mistake, and the words at the end of its message."""


def problems(text: str) -> list[str]:
    with pytest.raises(SchemaError) as caught:
        parse(text, "f")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("text", "place", "what"), map(json.loads, _MISTAKES.splitlines()))
def test_each_mistake_is_named(text: str, place: str, what: str) -> None:
    found = problems(text)
    assert any(one.startswith(f"f:{place}: expected ") and one.endswith(what) for one in found)
    # One mistake may break what follows on its line, but must not make a list of its own.
    assert len(found) <= 2


def test_problems_are_bounded() -> None:
    with pytest.raises(SchemaError, match="stopped after 1000 problems") as caught:
        parse("loglevel x < " + "} event " * 5000)
    assert len(caught.value.problems) == 1000


_HOSTILE = {
    "fields": "event A {" + "int a " * 100_000,
    "levels": " ".join(
        f"loglevel l{n} < include l{n + 1} event E{n} {{ }} >" for n in range(20_000)
    ),
    "name": "event " + "a" * 1_000_000,
    "brackets": "event A {" + "{" * 150_000,
    "members": "enum e {" + "A, " * 100_000,
    "circles": " ".join(f"loglevel l{n} < include l{(n + 1) % 9999}, l0 >" for n in range(9999)),
}


@pytest.mark.parametrize("name", first(3, _HOSTILE))
def test_hostile_text_takes_little_time_and_space(name: str) -> None:
    # Anything quadratic would meet the test's time limit.
    found = problems(_HOSTILE[name])
    assert 1 <= len(found) <= 1001
    assert max(map(len, found)) < 400


def test_long_text_is_refused() -> None:
    with pytest.raises(SchemaError, match="expected at most 524288 characters"):
        parse(" " * (1 << 21))
