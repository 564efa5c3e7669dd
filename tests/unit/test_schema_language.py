# SPDX-License-Identifier: Apache-2.0
"""What the Klogger language means: types, values, levels, documentation, files together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.formats.base.errors import FileError, SchemaError, UsageError
from tcpkmon.formats.schema import (
    Arch,
    Enum,
    Event,
    Field,
    LogLevel,
    Schema,
    enabled_events,
    field_type,
    format_schema,
    load,
    parse,
)
from tcpkmon.formats.schema.model import Include, Member, Omit
from tests.unit.schema_texts import HOWTO_LEVELS

SCHEMATA = Path(__file__).resolve().parents[2] / "bpf" / "schemata"


def names(events: tuple[Event, ...]) -> list[str]:
    return [event.name for event in events]


def test_howto_event_without_semicolons() -> None:
    schema = parse("event SCHEDOUT {\n    int pid\n    ulonglong l2_cache_misses_user\n}")
    fields = (Field("pid", "int"), Field("l2_cache_misses_user", "ulonglong"))
    assert schema == Schema(events=(Event("SCHEDOUT", fields),))


@pytest.mark.parametrize("separator", [";", ",", " ", "\n", " ;\n"])
def test_separators_of_fields(separator: str) -> None:
    schema = parse(f"event A {{ int a{separator} long b{separator} }}")
    assert schema.events[0].fields == (Field("a", "int"), Field("b", "long"))


def test_event_without_fields() -> None:
    assert parse("event A {} event B { };").events == (Event("A"), Event("B"))


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


def test_a_group_of_fields_of_an_earlier_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.conf", tmp_path / "two.conf"
    one.write_text("fields who { int tid }")
    two.write_text("event A { fields who }")
    assert load([one, two]).events == (Event("A", (Field("tid", "int"),)),)
    with pytest.raises(SchemaError, match=r"two\.conf:1:18: expected the name of fields"):
        load([two, one])


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


def test_field_type_unknown() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'uint'"):
        field_type(Schema(), Field("x", "u32"))


def test_howto_levels() -> None:
    schema = parse(HOWTO_LEVELS)
    assert schema.using == ("two",)
    assert schema.loglevels == (
        LogLevel("one", (Event("ONE_DO"), Event("ONE_SIMPLE"))),
        LogLevel("two", (Include("one"), Omit("ONE_SIMPLE"), Event("TWO_DETAILED"))),
    )
    assert names(schema.events) == ["ONE_DO", "ONE_SIMPLE", "TWO_DETAILED"]
    assert names(enabled_events(schema)) == ["ONE_DO", "TWO_DETAILED"]


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


def test_level_through_two_ways() -> None:
    text = """
        using top
        loglevel base < event A { } event B { } >
        loglevel left < include base omit A >
        loglevel right < include base omit B >
        loglevel top < include left, right >
    """
    assert names(enabled_events(parse(text))) == ["A", "B"]


def test_deep_levels() -> None:
    levels = [f"loglevel l{n} < include l{n + 1} >" for n in range(3000)]
    text = "\n".join(["using l0", *levels, "loglevel l3000 < event A { } >", "event B { }"])
    assert names(enabled_events(parse(text))) == ["A", "B"]


def test_arch() -> None:
    schema = parse("arch PentiumIV {\n counter1 l2_cache_misses_user;\n counter2 itlb_miss\n}")
    counters = (("counter1", "l2_cache_misses_user"), ("counter2", "itlb_miss"))
    assert schema.arches == (Arch("PentiumIV", counters),)


def test_comments_behind_and_above() -> None:
    schema = parse("""# A licence, not documentation.

// What A is,  in
// two lines. @always
event A {  // and behind
    // above
    uint a;  // behind [bytes] @one
    /* in a
     * block [us] */
    int b;
    int c /* between */ ; // end
    long d;

    // stands alone

    long e;  // goes on
             // below
    // not below
    long f;
} // nothing
enum colour { // colours [raw]
    RED,   // like blood @warm
    // as
    // the sky
    BLUE
}
// a level
loglevel one <
    // a dot
    event B { int x; /* X */ int y; /* Y */ } // dotted
>
""")
    event = schema.event("A")
    assert (event.doc, event.tags) == (
        "What A is, in\ntwo lines.\nand behind",
        frozenset({"always"}),
    )
    assert [(field.name, field.doc, field.unit, set(field.tags)) for field in event.fields] == [
        ("a", "above\nbehind", "bytes", {"one"}),
        ("b", "in a\nblock", "us", set()),
        ("c", "between\nend", "", set()),
        ("d", "", "", set()),
        ("e", "goes on\nbelow", "", set()),
        ("f", "not below", "", set()),
    ]
    red = Member("RED", 0, "like blood", frozenset({"warm"}))
    blue = Member("BLUE", 1, "as\nthe sky")
    assert schema.enums == (Enum("colour", (red, blue), "colours [raw]"),)
    assert schema.loglevels[0].doc == "a level"
    dotted = schema.event("B")
    assert dotted.doc == "a dot\ndotted"
    assert [field.doc for field in dotted.fields] == ["X", "Y"]


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


def test_positions() -> None:
    schema = parse("\n  event A {\n    int x\n}\nenum B { C }", "some.conf")
    event = schema.event("A")
    assert (event.position.file, event.position.line, event.position.column) == ("some.conf", 2, 9)
    assert (event.fields[0].position.line, event.fields[0].position.column) == (3, 5)
    assert (schema.enum("B").position.line, schema.enum("B").position.column) == (5, 6)


def test_carriage_returns_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "win.conf"
    path.write_bytes(b"\xef\xbb\xbfevent A {\r\n  int x // doc\r\n}\r\n")
    assert load([path]).events == (Event("A", (Field("x", "int", "doc"),)),)


def test_lookup_suggests() -> None:
    schema = parse("event SEND { int size } enum colour { RED }")
    with pytest.raises(UsageError, match=r"unknown event 'SENT' \(did you mean 'SEND'\?\)"):
        schema.event("SENT")
    with pytest.raises(UsageError, match=r"unknown enum 'color'"):
        schema.enum("color")
    with pytest.raises(UsageError, match=r"unknown field of event 'SEND' 'sise'"):
        schema.event("SEND").find_field("sise")


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


def test_load_tells_of_all_files(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("z.conf", "y.conf", "x.conf"))
    one.write_text("event A { nope x }\nevent A2 { int }\n")
    two.write_text("event A { }\n")
    three.write_bytes(b"event\n // \xff\n")
    with pytest.raises(SchemaError) as caught:
        load([one, two, three])
    assert [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems] == [
        "z.conf:1:11: expected a type, found 'nope'",
        "z.conf:2:16: expected a field name after 'int', found '}'",
        f"y.conf:1:7: expected a new event name, found 'A' again (first at {one}:1); "
        "record these schemata in a capture each",
        "x.conf:2:5: expected text in UTF-8",
    ]


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


def test_load_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.conf: No such file or directory"):
        load([tmp_path / "none.conf"])
    with pytest.raises(FileError, match="Is a directory"):
        load([tmp_path])
