# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a schema: each named with its place and what was expected, all in one run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpkmon.formats.base.errors import SchemaError
from tcpkmon.formats.schema import parse
from tcpkmon.formats.schema.cursor import C_WORDS, KEYWORDS

# What a schema is made of, and what it is not.
_MARKS = st.sampled_from(["{", "}", "<", ">", ";", ",", "=", "[", "-", "/*", "*/", "//", "\n"])
_WORDS = st.sampled_from(["evnt", "uint", "stringN", "string8", "A", "B", "x", "-1", "0x", "3com"])
_PIECE = _MARKS | _WORDS | st.sampled_from(sorted(KEYWORDS | C_WORDS | {"counter1"}))

_ITEM = "'event', 'fields', 'enum', 'loglevel', 'using', 'arch' or 'extends'"
_MISTAKES = [
    ("evnt A { int x }", f"1:1: expected {_ITEM},"
     " found 'evnt' (did you mean 'event'?)"),
    ("include one", f"1:1: expected {_ITEM}"
     " ('include' belongs inside a loglevel), found 'include'"),
    ("event { int x }", "1:7: expected a name, found '{'"),
    ("event 3com { int x }", "1:7: expected a name, found '3com'"),
    ("event for { int x }", "1:7: expected a name that is no word of C, found 'for'"),
    ("event A\n int x\n}", "2:2: expected '{' after event 'A', found 'int'"),
    ("event A < int x >", "1:9: expected '{' after event 'A', found '<'"),
    ("event A {\n int x\n", "3:1: expected a type or '}' (of event 'A', line 1), found end of"
     " file"),
    ("event A {\n int x\nevent B { }", "3:1: expected a type or '}' (of event 'A', line 1),"
     " found 'event'"),
    ("event A { } }", f"1:13: expected {_ITEM},"
     " found '}'"),
    ("event A { u32 x; }", "1:11: expected a type, found 'u32' (did you mean 'uint'?)"),
    ("event A { ulogn x }", "1:11: expected a type, found 'ulogn' (did you mean 'ulong'?)"),
    ("event A { stat x }\nenum state { S }", "1:11: expected a type, found 'stat' (did you"
     " mean 'state'?)"),
    ("event A { unsigned int x; }", "1:11: expected a type, found 'unsigned' (did you mean"
     " 'uint'?)"),
    ("event A { long long x; }", "1:16: expected 'longlong' in one word, found 'long long'"),
    ("event A { char x[8]; }", "1:11: expected a type, found 'char' (did you mean 'stringN, N"
     " bytes'?)"),
    ("event A { string x }", "1:11: expected a type, found 'string' (did you mean 'stringN, N"
     " bytes'?)"),
    ("event A { string0 x }", "1:11: expected a string of 1 to 4096 bytes, found 'string0'"),
    ("event A { string4097 x }", "1:11: expected a string of 1 to 4096 bytes, found"
     " 'string4097'"),
    ("event A { struct { int a;\n int b; } x; }", "1:11: expected a type, found 'struct'"),
    ("enum e { A }\nevent A { enum e x; }", "2:11: expected the enum's name alone, 'e', found"
     " 'enum'"),
    ("event A { int x[4]; int y }", "1:16: expected a type, found '['"),
    ("event A { int; int y }", "1:14: expected a field name after 'int', found ';'"),
    ("event A { int for; }", "1:15: expected a field name after 'int', found 'for', a word of"
     " C"),
    ("event A { int header }", "1:15: expected a field name other than 'header', the head of"
     " each log record"),
    ("fields f { int x }\nevent A { fields g }", "2:18: expected the name of fields that are"
     " declared above, found unknown 'g'"),
    ("event A { fields task }\nfields task { int x }", "1:18: expected the name of fields that are"
     " declared above, found unknown 'task'"),
    ("fields task { int x }\nevent A { fields tsk }", "2:18: expected the name of fields that are"
     " declared above, found unknown 'tsk' (did you mean 'task'?)"),
    ("fields f { int x }\nevent A { long x; fields f }", "2:26: expected a new field name, found"
     " 'x' of 'f' again"),
    ("fields f { int x }\nevent A { fields f; long x }", "2:26: expected a new field name, found"
     " 'x' again"),
    ("fields f { int x }\nfields f { }", "2:8: expected a new name of fields, found 'f' again"),
    ("fields f { u8 x }\nevent A { fields f }\nevent B { fields f }", "1:12: expected a type,"
     " found 'u8' (did you mean 'ushort'?)"),
    ("fields f { fields f }", "1:19: expected the name of fields that are declared above, found"
     " unknown 'f'"),
    ("event A { fields }", "1:18: expected the name of a group of fields, found '}'"),
    ("event A {\n int x\nfields f { }", "3:1: expected a type or '}' (of event 'A', line 1),"
     " found 'fields'"),
    ("event A { int x; long x }", "1:23: expected a new field name, found 'x' again"),
    ("event A { }\nevent A { }", "2:7: expected a new event name, found 'A' again (first at"
     " f:1)"),
    ("enum A { B }\nenum A { C }", "2:6: expected a new enum name, found 'A' again (first at"
     " f:1)"),
    ("arch A { }\narch A { }", "2:6: expected a new arch name, found 'A' again (first at f:1)"),
    ("loglevel A < >\nloglevel A < >", "2:10: expected a new log level name, found 'A' again"
     " (first at f:1)"),
    ("enum uint { A }", "1:6: expected a new type name, found basic type 'uint'"),
    ("enum string12 { A }", "1:6: expected a new type name, found basic type 'string12'"),
    ("enum int { A }", "1:6: expected a name that is no word of C, found 'int'"),
    ("enum e { A, B, A }", "1:16: expected a new name, found 'A' again"),
    ("enum e { }", "1:10: expected at least one name in enum 'e', found '}'"),
    ("enum e { A = B }", "1:14: expected an integer after 'A =', found 'B'"),
    ("enum e { A = 0xg }", "1:14: expected an integer after 'A =', found '0xg'"),
    ("enum e { A = 09 }", "1:14: expected an integer after 'A =', found '09'"),
    ("enum e { A = 0x80000000 }", "1:14: expected a value of 32 bits with sign, found"
     " 2147483648"),
    ("enum e { A = 0x7fffffff, B }", "1:26: expected a value of 32 bits with sign, found"
     " 2147483648"),
    ("enum e { A B }", "1:12: expected ',' or '}' after 'A', found 'B'"),
    ("enum e { A event }", "1:12: expected ',' or '}' after 'A', found 'event'"),
    ("using one", "1:7: expected the name of a log level, found unknown 'one'"),
    ("loglevel one < >\nusing onne", "2:7: expected the name of a log level, found unknown"
     " 'onne' (did you mean 'one'?)"),
    ("loglevel one < >\nusing one, one", "2:12: expected another log level, found 'one' again"),
    ("using\nevent A { }", "2:1: expected a log level's name, found 'event'"),
    ("loglevel one < include tow >\nloglevel two < >", "1:24: expected the name of a log level,"
     " found unknown 'tow' (did you mean 'two'?)"),
    ("loglevel one < include one >", "1:24: expected log levels without a circle, found one ->"
     " one"),
    ("loglevel a < include b >\nloglevel b < include c >\nloglevel c < include a >",
     "3:22: expected log levels without a circle, found a -> b -> c -> a"),
    ("loglevel one < omit NONE >", "1:21: expected the name of an event, found unknown 'NONE'"),
    ("event A { }\nloglevel one < omit A >", "2:21: expected an event of the log levels that"
     " 'one' includes, found 'A'"),
    ("loglevel one < enum e { A } >", "1:16: expected 'event', 'include' or 'omit' or '>' (of"
     " loglevel 'one', line 1), found 'enum'"),
    ("loglevel one < int x; >", "1:16: expected 'event', 'include' or 'omit', found 'int'"),
    ("loglevel one { event A { } }", "1:14: expected '<' after loglevel 'one', found '{'"),
    ("loglevel one <\n event A { }\n}\nenum e { A }", "3:1: expected 'event', 'include' or"
     " 'omit' or '>' (of loglevel 'one', line 1), found '}'"),
    ("arch P { counterx miss }", "1:10: expected 'counter1', 'counter2', ... in arch 'P', found"
     " 'counterx'"),
    ("arch P { counter1 }", "1:19: expected a hardware counter's name, found '}'"),
    ("arch P { counter1 a; counter1 b }", "1:22: expected a new counter, found 'counter1'"
     " again"),
    ("arch P { counter1 a; counter2 a }", "1:31: expected a new name, found 'a' again"),
    ("event A { } /* open", "1:13: expected '*/', found end of file"),
    ("event A { } \u00e9", f"1:13: expected {_ITEM}, found '\u00e9'"),
]  # fmt: skip


def problems(text: str) -> list[str]:
    with pytest.raises(SchemaError) as caught:
        parse(text, "f")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("text", "problem"), _MISTAKES)
def test_each_mistake_is_named(text: str, problem: str) -> None:
    found = problems(text)
    assert f"f:{problem}" in found
    # One mistake may break what follows on its line, but must not make a list of its own.
    assert len(found) <= 2


def test_ten_mistakes_get_ten_messages() -> None:
    text = """event SCHEDOUT {
    itn pid;
    u64 cycles;
    string99999 name;
    int pid2 [3];
    int a; int a;
}
enum policy { FIFO, FIFO, RR = fast }
loglevel one < include tow >
loglevel two < omit SCHEDUOT >
using three
"""
    assert problems(text) == [
        "f:2:5: expected a type, found 'itn' (did you mean 'int'?)",
        "f:3:5: expected a type, found 'u64' (did you mean 'ulonglong'?)",
        "f:4:5: expected a string of 1 to 4096 bytes, found 'string99999'",
        "f:5:14: expected a type, found '['",
        "f:6:16: expected a new field name, found 'a' again",
        "f:8:21: expected a new name, found 'FIFO' again",
        "f:8:32: expected an integer after 'RR =', found 'fast'",
        "f:9:24: expected the name of a log level, found unknown 'tow' (did you mean 'two'?)",
        "f:10:21: expected the name of an event, found unknown 'SCHEDUOT'"
        " (did you mean 'SCHEDOUT'?)",
        "f:11:7: expected the name of a log level, found unknown 'three'",
    ]


def test_misspelt_keyword_hides_nothing() -> None:
    found = problems("evnt A {\n int x;\n nope y;\n}\nevent B { wrong z }")
    assert [problem.split(":")[1] for problem in found] == ["1", "3", "5"]


def test_problems_are_bounded() -> None:
    with pytest.raises(SchemaError, match="stopped after 1000 problems") as caught:
        parse("loglevel x < " + "} event " * 5000)
    assert len(caught.value.problems) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "event A {" + "{" * 150_000,
        "event A {" + "int a " * 100_000,
        "enum e {" + "A, " * 100_000,
        " ".join(f"loglevel l{n} < include l{n + 1} event E{n} {{ }} >" for n in range(20_000)),
        " ".join(f"loglevel l{n} < include l{(n + 1) % 9999}, l0 >" for n in range(9999)),
        "event " + "a" * 1_000_000,
    ],
    ids=["brackets", "fields", "members", "levels", "circles", "name"],
)
def test_hostile_text_takes_little_time_and_space(text: str) -> None:
    # Anything quadratic would meet the test's time limit.
    found = problems(text)
    assert 1 <= len(found) <= 1001
    assert max(map(len, found)) < 400


def test_long_text_is_refused() -> None:
    with pytest.raises(SchemaError, match="expected at most 524288 characters"):
        parse(" " * (1 << 21))


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECE, max_size=40).map(" ".join) | st.text(max_size=60))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        parse(text, "f")
    except SchemaError as error:
        lines = text.count("\n") + 1
        assert error.problems
        assert all(1 <= problem.line <= lines for problem in error.problems)
        assert all(problem.column >= 1 for problem in error.problems)
