# SPDX-License-Identifier: Apache-2.0
"""Schemata checked without compiling: each mistake in #include and PROBE() has its place."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.plan.schema_lint import check_probes, check_sources
from tcpkmon.collector.plan.schema_sources import (
    Source,
    blank_comments,
    find_sources,
    shipped_names,
)
from tcpkmon.formats.schema import Schema, load, parse

CONF = """
event IN { int pid; ulonglong misses }
event OUT { int pid }
event NONE { }
arch any { counter1 task_clock; counter2 page_faults; }
"""
FORM = 'PROBE(name, "EVENT ...", "kind:target ...") at the beginning of a line'
WAYS = '"btf:sched_switch raw:sched_switch"'


def problems(text: str, schema: Schema | None = None) -> list[str]:
    found = check_probes(schema or parse(CONF, "s.conf"), f'#line 1 "s.bpf.c"\n{text}')
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    "text",
    [
        f'PROBE(p, "IN OUT NONE", {WAYS})\n{{ klogger(IN, ARG(0)); }}',
        f'PROBE( p,\n  "IN  OUT" , // PROBE(q)\n  {WAYS} )',
        'PROBE(p, "IN", "fentry:a kprobe:a.isra.0 fexit:b iter:tcp")',
        "/* PROBE(p)\n PROBE(q) */ // PROBE(r)",
        'x = "PROBE(p)" + PROBE;\nint my_PROBE(void);',
        "x = '\"'; y = \"PROBE()\"; // \"",
        "#define PROBE(name, events, attach) int name(void)",
        "#define TWO \\\n  PROBE(p) \\\n  PROBE(q)\n  # undef PROBE",
        "klogger(WRONG); what(is, (not, checked;",
    ],
)
def test_what_is_right_is_not_refused(text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('PROBE(p, "IN")', f"1:1: expected {FORM}"),
        ('int x; PROBE (', f"1:8: expected {FORM}"),
        (f'PROBE("p", "IN", {WAYS})', f"1:1: expected {FORM}"),
        (f"PROBE(p, IN, {WAYS})", f"1:1: expected {FORM}"),
        ('PROBE(p, "IN", ways)', f"1:1: expected {FORM}"),
        (f'\n  PROBE(p, "IN", {WAYS})', f"2:3: expected {FORM}"),
        (f'PROBE(p, "IN OT", {WAYS})', "1:14: expected the name of an event, found unknown 'OT'"
         " (did you mean 'OUT'?)"),
        (f'PROBE(p, "", {WAYS})', "1:10: expected the events that the probe logs, found none"),
        ('PROBE(p, "IN", "")', "1:16: expected at least one way to attach, such as"
         " 'btf:sched_switch'"),
        ('PROBE(p, "IN", "btf:a tracepoint:b")', "1:23: expected a way to attach (btf, raw,"
         f" {', '.join([*KINDS][2:])}), found 'tracepoint' (did you mean 'btf'?)"),
        ('PROBE(p, "IN",\n "kprob:a")', "2:3: expected a way to attach (btf, raw, fentry, fexit,"
         f" {', '.join([*KINDS][4:])}), found 'kprob' (did you mean 'kprobe'?)"),
        ('PROBE(p, "IN", "btf")', "1:17: expected 'btf:TARGET', found 'btf'"),
        ('PROBE(p, "IN", "btf:")', "1:17: expected 'btf:TARGET', found 'btf:'"),
        ('PROBE(p, "IN", "nf:INGRESS")', "1:17: expected a hook of netfilter (PRE_ROUTING,"
         " LOCAL_IN, FORWARD, LOCAL_OUT, POST_ROUTING), found 'INGRESS'"),
    ],
)  # fmt: skip
def test_each_mistake_is_named(text: str, problem: str) -> None:
    assert problems(text) == [f"s.bpf.c:{problem}"]


def test_line_directives_tell_the_place() -> None:
    text = ' PROBE(A\n#line 7 "in \\"x\\".h"\n\n PROBE(B\n#line 3 "s.bpf.c"\n PROBE()'
    assert [problem.split(": ")[0] for problem in problems(text)] == [
        "s.bpf.c:1:2", 'in "x".h:8:2', "s.bpf.c:3:2",
    ]  # fmt: skip
    commented = '/*\n#line 9 "no"\n*/\n PROBE()'
    assert problems(commented)[0].startswith("s.bpf.c:4:2: ")


def test_probes_of_the_schema_tcp_name_locations_or_nothing() -> None:
    schema = load([source.conf for source in find_sources(["tcp"])])
    assert problems(f'PROBE(p, "RTO SYNRTO", {WAYS})', schema) == [
        "s.bpf.c:1:15: expected the name of an event, found unknown 'SYNRTO' (did you"
        " mean 'RTO'?)"
    ]
    assert problems(f'PROBE(p, "", {WAYS})', schema) == []


def write(folder: Path, conf: str, text: str, name: str = "mine") -> tuple[Source, ...]:
    (folder / f"{name}.conf").write_text(conf)
    (folder / f"{name}.bpf.c").write_text(text)
    return find_sources([str(folder)], trusted_only=False)


def test_two_schemata_are_checked_together(tmp_path: Path) -> None:
    for name, events in (("a", "B_EVENT"), ("b", "C_EVENT")):
        folder = tmp_path / name
        folder.mkdir()
        text = f'\nPROBE({name}, "{events}", {WAYS})\n{{ }}'
        write(folder, f"event {name.upper()}_EVENT {{ int x }}", text, name)
    sources = find_sources([str(tmp_path / "a"), str(tmp_path / "b")], trusted_only=False)
    found = [
        str(problem).replace(f"{tmp_path}/", "") for problem in check_sources(sources).problems
    ]
    assert found == [
        "b/b.bpf.c:2:11: expected the name of an event, found unknown 'C_EVENT'"
        " (did you mean 'B_EVENT'?)"
    ]


def test_the_guide_shows_what_is_so() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "schemata.md").read_text()
    example = guide.partition("```c\n")[2].partition("```")[0]
    assert problems(example, parse("event SCHEDOUT { int pid }")) == []
    kinds = re.findall(r"^\| `(\w+)` +\|", guide, re.MULTILINE)
    assert kinds == list(KINDS)
    shown = guide.partition("```\n./mine/mine.conf")[2].partition("```")[0].splitlines()
    schema = parse("event SCHEDOUT { int pid; ulonglong faults }")
    text = '\n\n\n\nPROBE(switched, "SCHEDOTU", "tp:sched_switch")\n{\n}\n'
    assert shown[1:] == [f"./mine/mine.{p.removeprefix('s.')}" for p in problems(text, schema)]


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_schemata_have_no_mistakes(name: str) -> None:
    assert [str(problem) for problem in check_sources(find_sources([name])).problems] == []


@pytest.mark.parametrize(
    "text",
    [" PROBE(" * 40_000, "PROBE(a,\"\",\"\"){\n" * 15_000, f'PROBE(a,"{"X " * 99_000}","b")',
     "#define " * 25_000, "#define \\\n" * 25_000, "/*" * 125_000, '"' * 250_000, '\\"' * 125_000,
     "'\"" * 100_000, "\n#line 1 \"a\"\n PROBE(A)" * 8_000,
     "\n#line 1 \"a\"" * 15_000 + " PROBE()" * 9_000, "PROBE(a,\n" * 25_000],
    ids=["open", "probes", "events", "defines", "continued", "comments", "quotes", "escapes",
         "mixed", "lines", "after", "unclosed"],
)  # fmt: skip
def test_hostile_text_takes_little_time(text: str) -> None:
    started = time.process_time()
    assert len(problems(text)) <= 1000
    # Anything quadratic would take many times as long.
    assert time.process_time() - started < 3


_PIECES = st.sampled_from(["PROBE", "(", ")", "{", ",", '"', "'", "/*", "*/", "//", "\n", "\\",
                           "#define ", "IN", '\n#line 3 "a"\n', "btf:a", " ",
                           '\nPROBE(p, "IN"'])  # fmt: skip


@given(st.lists(_PIECES, max_size=30).map("".join) | st.text(max_size=50))
def test_any_text_is_looked_at(text: str) -> None:
    for problem in check_probes(parse(CONF, "s.conf"), text):
        assert problem.line >= 1 and problem.column >= 1
    blank = blank_comments(text)
    assert len(blank) == len(text) and blank.count("\n") == text.count("\n")
