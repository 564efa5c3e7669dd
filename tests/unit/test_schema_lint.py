# SPDX-License-Identifier: Apache-2.0
"""C files against their schemata: each mistake in klogger() and PROBE() named with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.plan.c_scanner import blank_comments
from collector.plan.engine_config import KINDS
from collector.plan.schema_lint import check_calls, check_sources, find_oddities, read_checked
from collector.plan.schema_sources import Source, find_sources, shipped_names
from formats.base.errors import SchemaError
from formats.schema import Schema, load, parse

CONF = """
event IN { int pid; ulonglong misses }
event OUT { int pid }
event NONE { }
arch any { counter1 task_clock; counter2 page_faults; }
"""
WAYS = '"btf:sched_switch raw:sched_switch"'
PROBE = f'PROBE(p, "IN OUT NONE", {WAYS})'


def problems(text: str, schema: Schema | None = None) -> list[str]:
    found = check_calls(schema or parse(CONF, "s.conf"), Path("s.bpf.c"), text)
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    "text",
    [
        "klogger(IN, 1, 2);",
        "klogger (IN,\n  f(a, b),\n  (struct x){1, 2}.y[c, d]);",
        "klogger(IN, ({ int a, b; a; }), 'x');",
        "klogger(OUT, g(\",)(\", ','));",
        "klogger(OUT, a /* , b */); // klogger(WRONG)",
        "/* klogger(WRONG\n) */ klogger(NONE);",
        '"klogger(WRONG)" "// \\" " ; klogger(NONE)',
        "if (KLOGGER_ENABLED(IN) && KLOGGER_ENABLED( OUT )) ;",
        "#define LOG(e, ...) klogger(e, __VA_ARGS__)",
        "#define L(p) \\\n  klogger(IN, p, __VA_ARGS__)",
        "#define klogger(event, ...) klogger_log_##event(ctx, cpu, ##__VA_ARGS__)",
        "int my_klogger(WRONG);",
        f"{PROBE}\n{{ klogger(IN, ARG(0), klogger_get_counter_ll(KLOGGER_COUNTER2)); }}",
        "klogger(IN, klogger_get_task_clock(), klogger_get_page_faults_ll());",
        "klogger_get_counter(KLOGGER_COUNTER1);",
        'PROBE(p, "IN", "fentry:a kprobe:a.isra.0 fexit:b iter:tcp")',
    ],
)
def test_what_is_right_is_not_refused(text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("klogger(OTU, 1);", "1:9: expected the name of an event, found unknown 'OTU'"
         " (did you mean 'OUT'?)"),
        ("klogger(IN, 1);", "1:9: expected 2 values for 'IN' (int pid, ulonglong misses), found 1"),
        ("a;\n\n  klogger(OUT,\n 1, 2);", "3:11: expected 1 value for 'OUT' (int pid), found 2"),
        ("klogger(NONE, 0);", "1:9: expected 0 values for 'NONE', found 1"),
        ("klogger(IN, , 2);", "1:13: expected a value for 'pid', found nothing"),
        ("klogger(IN, 1, );", "1:16: expected a value for 'misses', found nothing"),
        ("klogger();", "1:1: expected an event in klogger()"),
        ("klogger(IN + 1, 2, 3);", "1:9: expected the name of an event, found 'IN + 1'"),
        ("f(klogger(IN, 1, 2;", "1:3: expected ')' at the end of klogger("),
        ("{ klogger(IN, 1, 2; }", "1:3: expected ')' at the end of klogger("),
        ("KLOGGER_ENABLED(OUTT)", "1:17: expected the name of an event, found unknown 'OUTT'"
         " (did you mean 'OUT'?)"),
        ("KLOGGER_ENABLED(IN, 1)", "1:21: expected one event in KLOGGER_ENABLED()"),
        ("#define L klogger(IN, 1)", "1:19: expected 2 values for 'IN' (int pid, ulonglong"
         " misses), found 1"),
        ("PROBE(p, \"IN\")", "1:1: expected PROBE(name, \"EVENT ...\", \"kind:target ...\")"),
        (f'PROBE("p", "IN", {WAYS})', "1:7: expected a probe's name, found '\"p\"'"),
        (f'PROBE(for, "IN", {WAYS})', "1:7: expected a probe's name, found 'for'"),
        (f"PROBE(p, IN, {WAYS})", '1:1: expected PROBE(name, "EVENT ...", "kind:target ...")'),
        (f'PROBE(p, "IN OT", {WAYS})', "1:14: expected the name of an event, found unknown 'OT'"
         " (did you mean 'OUT'?)"),
        (f'PROBE(p, "", {WAYS})', "1:10: expected the events that the probe logs, found none"),
        ('PROBE(p, "IN", "")', "1:16: expected at least one way to attach, such as"
         " 'btf:sched_switch'"),
        ('PROBE(p, "IN", ways)', '1:1: expected PROBE(name, "EVENT ...", "kind:target ...")'),
        ('PROBE(p, "IN", "btf:a tracepoint:b")', "1:23: expected a way to attach (btf, raw,"
         " fentry, fexit, kprobe, iter), found 'tracepoint' (did you mean 'btf'?)"),
        ('PROBE(p, "IN", "kprob:a")', "1:17: expected a way to attach (btf, raw, fentry, fexit,"
         " kprobe, iter), found 'kprob' (did you mean 'kprobe'?)"),
        ('PROBE(p, "IN", "btf")', "1:17: expected 'btf:TARGET', found 'btf'"),
        ('PROBE(p, "IN", "btf:")', "1:17: expected 'btf:TARGET', found 'btf:'"),
        ('PROBE(p, "IN", "raw:a+1")', "1:17: expected a name of the kernel after 'raw:', found"
         " 'a+1'"),
        (f"{PROBE}\n{PROBE}", "2:7: expected a new probe name, found 'p' again (first at"
         " s.bpf.c:1)"),
        (f"  {PROBE}", '1:3: expected PROBE(name, "EVENT ...", "kind:target ...") at the beginning'
         " of a line"),
        ("x = klogger_get_task_clok();", "1:5: expected a counter that an arch section binds,"
         " found 'task_clok' (did you mean 'task_clock'?)"),
        ("klogger_get_counter(KLOGGER_COUNTER3);", "1:21: expected a counter that an arch section"
         " binds, found 'KLOGGER_COUNTER3'"),
    ],
)  # fmt: skip
def test_each_mistake_is_named(text: str, problem: str) -> None:
    assert problems(text) == [f"s.bpf.c:{problem}"]


def test_line_directives_tell_the_place() -> None:
    text = 'klogger(A);\n#line 7 "in \\"x\\".h"\n\n  klogger(B);\n#line 3 "s.bpf.c"\nklogger(C);'
    assert [problem.split(": ")[0] for problem in problems(text)] == [
        "s.bpf.c:1:9", "s.bpf.c:3:9", 'in "x".h:8:11',
    ]  # fmt: skip


def test_events_of_base_are_the_collectors() -> None:
    sources = find_sources([])
    schema = load([source.conf for source in sources])
    assert problems("klogger(MARK, 1, 2)", schema) == [
        "s.bpf.c:1:9: expected an event of the kernel, found 'MARK' of the schema base, which the"
        " collector logs"
    ]


def write(folder: Path, conf: str, text: str, name: str = "mine") -> tuple[Source, ...]:
    (folder / f"{name}.conf").write_text(conf)
    (folder / f"{name}.bpf.c").write_text(text)
    return find_sources([str(folder)], trusted_only=False)


def test_ten_mistakes_get_ten_messages_at_once(tmp_path: Path) -> None:
    sources = write(
        tmp_path,
        """using on
enum how { FORK, EXEC = fast }
event START {
    u64 id;
    hwo kind;
}
event STOP { int id; int id2 [3]; int why }
loglevel one < include two >
""",
        """#include "klogger.h"
#include "helper.h"
PROBE(started, "START STRAT", "btf:sched_process_fork tp:fork") {
    klogger(START, 1);
    klogger(STPO, 1, 2, 3);
    klogger(STOP, 1);
    klogger(START, klogger_get_l2_misses(), 1);
}
""",
    )
    with pytest.raises(SchemaError) as caught:
        read_checked(sources)
    assert [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems] == [
        "mine.conf:1:7: expected the name of a log level, found unknown 'on' (did you mean 'one'?)",
        "mine.conf:2:25: expected an integer after 'EXEC =', found 'fast'",
        "mine.conf:4:5: expected a type, found 'u64' (did you mean 'ulonglong'?)",
        "mine.conf:5:5: expected a type, found 'hwo' (did you mean 'how'?)",
        "mine.conf:7:30: expected a type, found '['",
        "mine.conf:8:24: expected the name of a log level, found unknown 'two'",
        "mine.bpf.c:2:11: expected a header beside this file or of"
        f" {Path(__file__).resolve().parents[2]}/bpf/include, found 'helper.h'",
        "mine.bpf.c:3:23: expected the name of an event, found unknown 'STRAT'"
        " (did you mean 'START'?)",
        "mine.bpf.c:3:55: expected a way to attach (btf, raw, fentry, fexit, kprobe, iter), found"
        " 'tp' (did you mean 'btf'?)",
        # The two values of START are known, wrong as their types are; those of STOP are not.
        "mine.bpf.c:4:13: expected 2 values for 'START' (u64 id, hwo kind), found 1",
        "mine.bpf.c:5:13: expected the name of an event, found unknown 'STPO'"
        " (did you mean 'STOP'?)",
        "mine.bpf.c:7:20: expected a counter that an arch section binds, found 'l2_misses'",
    ]


def test_an_unreadable_declaration_makes_no_call_a_mistake(tmp_path: Path) -> None:
    sources = write(tmp_path, "", "klogger(A, 1); PROBE(p)")
    (tmp_path / "mine.conf").write_bytes(b"event A { int x }\xff")
    found = check_sources(sources).problems
    assert [problem.message for problem in found] == ["expected text in UTF-8"]


def test_what_looks_like_a_mistake_is_a_warning(tmp_path: Path) -> None:
    text = f'PROBE(p, "A", {WAYS})\n{{\n    klogger(B);\n}}\nvoid f(void) {{ klogger(C); }}\n'
    sources = write(tmp_path, "event A { }\nevent B { }\n\nevent C { }", text)
    checked = read_checked(sources)
    assert [str(warning).removeprefix(f"{tmp_path}/") for warning in checked.warnings] == [
        "mine.bpf.c:3:13: 'B' is logged here, but PROBE 'p' does not name it",
        "mine.conf:1:7: event 'A' is logged by no klogger() of mine.bpf.c",
    ]
    # Not told of schemata without a C file in the text.
    assert find_oddities(checked.schema, Path("other.bpf.c"), "") == []


def test_two_schemata_are_checked_together(tmp_path: Path) -> None:
    for name, line in (("a", "klogger(B_EVENT, 1); klogger(A_EVENT);"), ("b", "")):
        folder = tmp_path / name
        folder.mkdir()
        conf = f"event {name.upper()}_EVENT {{ int x }}"
        write(folder, conf, f'PROBE(p, "{name.upper()}_EVENT", {WAYS})\n{{ {line} }}', name)
    sources = find_sources([str(tmp_path / "a"), str(tmp_path / "b")], trusted_only=False)
    found = [
        str(problem).replace(f"{tmp_path}/", "") for problem in check_sources(sources).problems
    ]
    assert found == [
        "a/a.bpf.c:2:32: expected 1 value for 'A_EVENT' (int x), found 0",
        "b/b.bpf.c:1:7: expected a new probe name, found 'p' again (first at a/a.bpf.c:1)",
    ]


def test_the_guide_shows_what_is_so() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "schemata.md").read_text()
    example = guide.partition("```c\n")[2].partition("```")[0]
    assert problems(example, parse("event SCHEDOUT { int pid }")) == []
    kinds = re.findall(r"^\| `(\w+)` +\|", guide, re.MULTILINE)
    assert kinds == list(KINDS)
    shown = guide.rpartition("```\n./mine/mine.conf")[2].partition("```")[0].splitlines()
    schema = parse("event SCHEDOUT { int pid; ulonglong faults }")
    text = 'PROBE(switched, "SCHEDOTU", "raw:x")\n{\n    klogger(SCHEDOUT, 1);\n}\n'
    assert [line.partition(": ")[2] for line in shown[1:]] == [
        problem.partition(": ")[2] for problem in problems(text, schema)
    ]


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_schemata_have_no_mistakes(name: str) -> None:
    assert [str(problem) for problem in check_sources(find_sources([name])).problems] == []


@pytest.mark.parametrize(
    "text",
    ["klogger(" * 30_000, "klogger(A)" * 25_000, "PROBE(a,\"\",\"\"){" * 15_000, "(" * 250_000,
     "{(" * 75_000 + ")}" * 75_000, "#define " * 25_000, "/*" * 125_000, '"' * 250_000,
     "KLOGGER_COUNTER1 " * 15_000, "\n#line 1 \"a\"\nklogger(A)" * 8_000],
    ids=["open", "calls", "probes", "brackets", "nested", "defines", "comments", "quotes",
         "counters", "lines"],
)  # fmt: skip
def test_hostile_text_takes_little_time(text: str) -> None:
    # Anything quadratic would meet the test's time limit.
    schema = parse(CONF, "s.conf")
    assert len(check_calls(schema, Path("s.bpf.c"), text)) <= 1000
    assert find_oddities(schema, Path("s.bpf.c"), text) is not None


_PIECES = st.sampled_from(["klogger", "PROBE", "KLOGGER_ENABLED", "(", ")", "{", "}", ",", '"',
                           "'", "/*", "*/", "//", "\n", "\\", "#define ", "IN", "#line 3 \"a\"",
                           "btf:a", "klogger_get_x", "KLOGGER_COUNTER9"])  # fmt: skip


@given(st.lists(_PIECES, max_size=30).map("".join) | st.text(max_size=50))
def test_any_text_is_looked_at(text: str) -> None:
    schema = parse(CONF, "s.conf")
    for problem in check_calls(schema, Path("s.bpf.c"), text):
        assert problem.line >= 1 and problem.column >= 1
    blank = blank_comments(text, literals=True)
    assert len(blank) == len(text) and blank.count("\n") == text.count("\n")
