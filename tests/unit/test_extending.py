# SPDX-License-Identifier: Apache-2.0
"""A user's schema that extends tcp: what it adds, what it cannot, and what a file says of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tcpkmon.collector.plan import extension
from tcpkmon.collector.plan.columns import EVENT, choose_columns, locations_of, make_layout
from tcpkmon.collector.plan.extension import own_columns, own_locations, tcp_schema
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import check_request, make_request
from tcpkmon.collector.plan.schema_lint import check_sources
from tcpkmon.collector.plan.schema_sources import Source, find_sources
from tcpkmon.collector.ring.points import FIRST_OWN
from tcpkmon.formats.base.errors import SchemaError, UsageError
from tcpkmon.formats.klogger.describe import describe_snapshot
from tcpkmon.formats.psc.entries import Description
from tcpkmon.formats.psc.header import decode_header, encode_header, writer_header
from tcpkmon.formats.schema import Schema, format_schema, load, parse

ROOT = Path(__file__).resolve().parents[2]
WAKEUPS = ROOT / "docs" / "examples" / "wakeups"
CONF = (WAKEUPS / "wakeups.conf").read_text()
BASE = "event E { int a }\nenum e { ONE = 1 }\n"


def merged(**texts: str) -> Schema:
    """The schema of these texts, each of the file NAME.conf."""
    return load([f"{name}.conf" for name in texts], lambda file: texts[file.removesuffix(".conf")])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, which is trusted whoever runs the tests."""
    made = tmp_path / "wakeups"
    shutil.copytree(WAKEUPS, made)
    monkeypatch.setattr(extension, "find_sources", lambda asked: find_sources(asked, False))
    return made


def find(folder: Path, conf: str = "", old: str = "", new: str = "") -> tuple[Source, ...]:
    """The sources of the example, with another .conf, or something else in the C file."""
    (folder / "wakeups.conf").write_text(conf or CONF)
    text = folder / "wakeups.bpf.c"
    assert old in text.read_text()
    text.write_text(text.read_text().replace(old, new))
    return find_sources([str(folder)], trusted_only=False)


def test_fields_members_and_enums_are_added_in_any_order() -> None:
    more = "extends base;\nevent E { kind b; ushort c }\nenum e { TWO = 2 }\nenum kind { GOOD }"
    for schema in (merged(base=BASE, more=more), merged(more=more, base=BASE)):
        assert [field.name for field in schema.event("E").fields] == ["a", "b", "c"]
        assert schema.enum("e").names() == {1: "ONE", 2: "TWO"}
        assert schema.enum("kind").names() == {0: "GOOD"}
        assert schema.extends == ""
        assert parse(format_schema(schema)) == schema
    both = merged(base=BASE, more=more, third="extends base\nevent E { int d }")
    assert [field.name for field in both.event("E").fields] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("extends bas", "1:9: expected a schema that is read too, found 'bas' (did you mean"
                        " 'base'?)"),
        ("extends base extends base", "1:22: expected one 'extends', found another, of 'base'"),
        ("extends base\nevent EE { }", "2:7: expected an event of 'base', found unknown 'EE' (did"
                                       " you mean 'E'?)"),
        ("extends base\nevent E { int a }", "2:11: expected a new field name, found 'a' of 'base'"
                                            " again"),
        ("extends base\nenum e { ONE = 3 }", "2:10: expected a new name, found 'ONE' of 'base'"
                                             " again"),
        ("extends base\nevent E { u8 b }", "2:11: expected a type, found 'u8'"),
        ("extends base\nevent E { int b }\nevent E { int c }",
         "3:7: expected a new event name, found 'E' again (first at more.conf:2)"),
        ("extends base\nloglevel l < event F { } >",
         "2:10: expected events and enums alone in what extends 'base'"),
        ("extends base\narch any { counter1 cpu_clock }",
         "2:6: expected events and enums alone in what extends 'base'"),
        ("extends base\nusing l", "2:7: expected no 'using' in what extends 'base'"),
        ("extends", "1:8: expected a schema's name, found end of file"),
    ],
)  # fmt: skip
def test_what_cannot_be_added(more: str, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        merged(base=BASE, more=more)
    told = [str(one) for one in caught.value.problems]
    assert any(one.startswith(f"more.conf:{problem}") for one in told), told


def test_tcp_comes_with_what_extends_it(folder: Path) -> None:
    sources = find(folder)
    assert [source.name for source in sources] == ["base", "tcp", "wakeups"]
    assert find_sources([str(folder), "tcp"], False) == find_sources(["tcp", str(folder)], False)
    assert check_sources(sources).problems == ()
    schema = tcp_schema(sources)
    assert [column.name for column in own_columns(schema)] == ["pmtu", "quiet_ms"]
    assert [(m.name, m.value) for m in own_locations(schema)] == [("DATA_READY", 26)]
    assert locations_of(schema)["DATA_READY"] == FIRST_OWN
    chosen = choose_columns(schema.event(EVENT), "default")
    assert "pmtu" in chosen and "quiet_ms" not in chosen
    shipped = tcp_schema(find_sources(["tcp"]))
    assert own_columns(shipped) == own_locations(shipped) == ()
    assert max(n for n in locations_of(shipped).values()) < FIRST_OWN


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("pmtu ", "mss ", ":7:5: expected a new field name, found 'mss' of 'tcp' again"),
        ("pmtu ", "rto ", ":7:5: expected another name of a column: 'rto' means something else"),
        ("pmtu ", "all ", ":7:5: expected another name of a column: 'all' means something"),
        ("pmtu ", "a" * 24 + " ", ":7:5: expected a column's name of at most 23 characters"),
        ("@default", "@classic", ":7:5: expected no tag @classic: the report of 2000 has all"),
        ("uint pmtu", "string256 pmtu", ":7:5: expected a column of at most 255 bytes"),
        ("    uint quiet", "    uint more\n    uint quiet",
         ":8:5: expected SET(more, value) in a FILL(name) of the C file"),
        ("= 26", "= 25", ":12:5: expected a number from 26 to 31, those of your"),
        ("= 26", "= 32", ":12:5: expected a number from 26 to 31, those of your"),
        ("= 26,", "= 26, OTHER = 26,", ":12:22: expected another number: 26 is DATA_READY"),
        ("DATA_READY", "data_ready", ":12:5: expected a location's name in capitals that is no"),
        ("DATA_READY", "SRTT_US", ":12:5: expected a location's name in capitals that is no"),
        ("= 26,", "= 26, OTHER,", ":12:22: expected a PROBE() of OTHER in the C file"),
        ("DATA_READY", "RTO", ":12:5: expected a new name, found 'RTO' of 'tcp' again"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_place(folder: Path, old: str, new: str, problem: str) -> None:
    assert CONF.count(old) == 1, "the mistake is one"
    problems = [str(one) for one in check_sources(find(folder, CONF.replace(old, new))).problems]
    assert any(problem in one for one in problems), problems


def test_only_tcp_can_be_extended(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"wakeups\.conf extends 'sched': only the schema tcp"):
        find(folder, CONF.replace("extends tcp", "extends sched"))


def test_a_capture_of_it_is_a_psc_file_by_default(folder: Path) -> None:
    find(folder)
    word = str(folder)
    one = make_request(Filters(), {"schemata": (word,), "output": "-"})
    assert (one.schemata, one.file_format) == (("tcp", word), "psc")
    for name in ("psc", "klogger"):
        given = {"schemata": ("tcp", word), "output": "x", "file_format": name}
        check_request(make_request(Filters(), given))
    more = make_request(Filters(), {"schemata": ("sched", word), "output": "x"})
    assert (more.schemata, more.file_format) == (("tcp", "sched", word), "klogger")
    magnet = {"schemata": ("magnet", word), "output": "x", "file_format": "magnet"}
    with pytest.raises(UsageError, match="holds the schema magnet and a user's own"):
        check_request(make_request(Filters(), magnet))
    with pytest.raises(UsageError, match="holds the schema tcp and what extends it"):
        given = {"schemata": ("sched", word), "output": "x", "file_format": "psc"}
        check_request(make_request(Filters(), given))


def test_a_file_says_what_its_columns_and_locations_are(folder: Path, tmp_path: Path) -> None:
    schema = tcp_schema(find(folder))
    layout = make_layout(schema, choose_columns(schema.event(EVENT), "default,quiet_ms"), ())
    header = encode_header(
        writer_header(
            layout.columns, layout.entry_size, mods=3, version="tk", mclsize=4096, host="h",
            kernel="k", clock=(1, 2, 3), schema=format_schema(schema), settings={},
        )
    )  # fmt: skip
    read = Description(tmp_path, decode_header(header, len(header))[0])
    assert read.location_name(26) == "DATA_READY" and read.location_name(27) == "27"
    assert read.find_column("pmtu").length == 4
    assert read.schema == schema and not read.warnings
    table = describe_snapshot(schema, layout.columns, layout.entry_size)
    assert [field["name"] for field in table["fields"]][-2:] == ["pmtu", "quiet_ms"]
