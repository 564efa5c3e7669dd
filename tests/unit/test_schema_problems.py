# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a schema: each named with its place and what was expected, all in one run."""

from __future__ import annotations

import pytest

from tcpkmon.formats.base.errors import SchemaError
from tcpkmon.formats.schema import parse
from tests.full import first

_MISTAKES = [
    ("evnt A { int x }", "1:1", "found 'evnt' (did you mean 'event'?)"),
    ("include one", "1:1", "found 'include'"),
    ("event { int x }", "1:7", "found '{'"),
    ("event 3com { int x }", "1:7", "found '3com'"),
    ("event for { int x }", "1:7", "found 'for'"),
    ("event A\n int x\n}", "2:2", "found 'int'"),
    ("event A < int x >", "1:9", "found '<'"),
    ("event A {\n int x\n", "3:1", "found end of file"),
    ("event A {\n int x\nevent B { }", "3:1", "found 'event'"),
    ("event A { } }", "1:13", "found '}'"),
    ("event A { u32 x; }", "1:11", "found 'u32' (did you mean 'uint'?)"),
    ("event A { ulogn x }", "1:11", "found 'ulogn' (did you mean 'ulong'?)"),
    ("event A { stat x }\nenum state { S }", "1:11", "found 'stat' (did you mean 'state'?)"),
    ("event A { unsigned int x; }", "1:11", "found 'unsigned' (did you mean 'uint'?)"),
    ("event A { long long x; }", "1:16", "found 'long long'"),
    ("event A { char x[8]; }", "1:11", "found 'char' (did you mean 'stringN, N bytes'?)"),
    ("event A { string x }", "1:11", "found 'string' (did you mean 'stringN, N bytes'?)"),
    ("event A { string0 x }", "1:11", "found 'string0'"),
    ("event A { string4097 x }", "1:11", "found 'string4097'"),
    ("event A { struct { int a;\n int b; } x; }", "1:11", "found 'struct'"),
    ("enum e { A }\nevent A { enum e x; }", "2:11", "found 'enum'"),
    ("event A { int x[4]; int y }", "1:16", "found '['"),
    ("event A { int; int y }", "1:14", "found ';'"),
    ("event A { int for; }", "1:15", "found 'for', a word of C"),
    ("event A { int header }", "1:15",
     "expected a field name other than 'header', the head of each log record"),
    ("fields f { int x }\nevent A { fields g }", "2:18", "found unknown 'g'"),
    ("event A { fields task }\nfields task { int x }", "1:18", "found unknown 'task'"),
    ("fields task { int x }\nevent A { fields tsk }", "2:18",
     "found unknown 'tsk' (did you mean 'task'?)"),
    ("fields f { int x }\nevent A { long x; fields f }", "2:26", "found 'x' of 'f' again"),
    ("fields f { int x }\nevent A { fields f; long x }", "2:26", "found 'x' again"),
    ("fields f { int x }\nfields f { }", "2:8", "found 'f' again"),
    ("fields f { u8 x }\nevent A { fields f }\nevent B { fields f }", "1:12",
     "found 'u8' (did you mean 'ushort'?)"),
    ("fields f { fields f }", "1:19", "found unknown 'f'"),
    ("event A { fields }", "1:18", "found '}'"),
    ("event A {\n int x\nfields f { }", "3:1", "found 'fields'"),
    ("event A { int x; long x }", "1:23", "found 'x' again"),
    ("event A { }\nevent A { }", "2:7", "found 'A' again (first at f:1)"),
    ("enum A { B }\nenum A { C }", "2:6", "found 'A' again (first at f:1)"),
    ("arch A { }\narch A { }", "2:6", "found 'A' again (first at f:1)"),
    ("loglevel A < >\nloglevel A < >", "2:10", "found 'A' again (first at f:1)"),
    ("enum uint { A }", "1:6", "found basic type 'uint'"),
    ("enum string12 { A }", "1:6", "found basic type 'string12'"),
    ("enum int { A }", "1:6", "found 'int'"),
    ("enum e { A, B, A }", "1:16", "found 'A' again"),
    ("enum e { }", "1:10", "found '}'"),
    ("enum e { A = B }", "1:14", "found 'B'"),
    ("enum e { A = 0xg }", "1:14", "found '0xg'"),
    ("enum e { A = 09 }", "1:14", "found '09'"),
    ("enum e { A = 0x80000000 }", "1:14", "found 2147483648"),
    ("enum e { A = 0x7fffffff, B }", "1:26", "found 2147483648"),
    ("enum e { A B }", "1:12", "found 'B'"),
    ("enum e { A event }", "1:12", "found 'event'"),
    ("using one", "1:7", "found unknown 'one'"),
    ("loglevel one < >\nusing onne", "2:7", "found unknown 'onne' (did you mean 'one'?)"),
    ("loglevel one < >\nusing one, one", "2:12", "found 'one' again"),
    ("using\nevent A { }", "2:1", "found 'event'"),
    ("loglevel one < include tow >\nloglevel two < >", "1:24",
     "found unknown 'tow' (did you mean 'two'?)"),
    ("loglevel one < include one >", "1:24", "found one -> one"),
    ("loglevel a < include b >\nloglevel b < include c >\nloglevel c < include a >", "3:22",
     "found a -> b -> c -> a"),
    ("loglevel one < omit NONE >", "1:21", "found unknown 'NONE'"),
    ("event A { }\nloglevel one < omit A >", "2:21", "found 'A'"),
    ("loglevel one < enum e { A } >", "1:16", "found 'enum'"),
    ("loglevel one < int x; >", "1:16", "found 'int'"),
    ("loglevel one { event A { } }", "1:14", "found '{'"),
    ("loglevel one <\n event A { }\n}\nenum e { A }", "3:1", "found '}'"),
    ("arch P { counterx miss }", "1:10", "found 'counterx'"),
    ("arch P { counter1 }", "1:19", "found '}'"),
    ("arch P { counter1 a; counter1 b }", "1:22", "found 'counter1' again"),
    ("arch P { counter1 a; counter2 a }", "1:31", "found 'a' again"),
    ("event A { } /* open", "1:13", "found end of file"),
    ("event A { } é", "1:13", "found 'é'"),
]  # fmt: skip


def problems(text: str) -> list[str]:
    with pytest.raises(SchemaError) as caught:
        parse(text, "f")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("text", "place", "what"), _MISTAKES)
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
