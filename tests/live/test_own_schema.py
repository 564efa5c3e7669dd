# SPDX-License-Identifier: Apache-2.0
"""A user's own schema on this kernel: what docs/schemata.md promises works, mistakes are placed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full import first
from tests.live.schema_logs import make_schema

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 200

CONF = """
enum how { NICE = 3, RUDE }

event LEFT {
    int pid;
    how way;                    // enum
    uint flags;                 // bitfield
    string16 comm;              // text
    string16 bytes;             // the same, raw @raw
    string8 nothing;
    longlong negative;
    ulonglong clock_ns; uint clock_low; ulonglong faults;
    uint arguments;
    uint count;
}
event CALLED { uint helper; uint constant; ulonglong parent }
event NEVER { int x }

arch any {
    counter1 cpu_clock;
    counter2 page_faults;
}
"""
TEXT = """#include "klogger.h"
#include "mine.h"

struct task_struct;
struct hlist_head;
enum hrtimer_restart;

BPF_HASH(counts, u32, u64);

static __always_inline void called(void *ctx, struct klogger_cpu *cpu, const int direct,
                                   struct task_struct *task) {
    u32 constant = 0;

#ifdef HAVE_HRTIMER_RESTART
    constant = HRTIMER_RESTART;
#endif
#ifdef CONFIG_KLOGGER
    klogger(CALLED, MINE, constant, READ(direct, READ(direct, task, real_parent), pid));
#endif
}

PROBE(switched, "LEFT CALLED", "btf:sched_switch raw:sched_switch")
{
    struct task_struct *task = (struct task_struct *)ARG(1);
    u32 pid = READ(DIRECT, task, pid), flags = 0;
    u64 one = 1, *count = counts.lookup(&pid);

    if (count)
        __sync_fetch_and_add(count, 1);
    else
        counts.update(&pid, &one);
#ifdef HAVE_task_struct_in_iowait
    if (DIRECT)
        flags = BITFIELD_task_struct_in_iowait(task);
#endif
    if (KLOGGER_ENABLED(LEFT))
        klogger(LEFT, pid, KLOGGER_how_RUDE, flags, &task->comm, &task->comm, 0, -5,
                klogger_get_counter_ll(KLOGGER_COUNTER1), klogger_get_cpu_clock(),
                klogger_get_page_faults_ll(), ARGUMENTS_sched_switch, count ? *count : 1);
    called(ctx, cpu, DIRECT, task);
}

#if USE_gone
PROBE(gone, "NEVER", "btf:no_such_thing raw:no_such_thing kprobe:no_such_thing")
{ no_such_function(); }
#endif
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """One of the commands, of this tree."""
    name = str(arguments[0])
    script = (
        f"import sys; sys.argv[0] = '{name}'; "
        f"from tcpkmon.collector.commands.{name} import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments[1:])],
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A schema that uses what the guide tells of, in a folder that only root can write."""
    folder = make_schema(tmp_path / "mine", CONF, TEXT)
    (folder / "mine.h").write_text("#define MINE 42\n")
    (folder / "mine.h").chmod(0o644)
    return folder


@pytest.mark.parametrize("way", ["btf", "raw"])
def test_what_the_guide_promises(mine: Path, tmp_path: Path, way: str) -> None:
    if way == "raw":
        text = (mine / "mine.bpf.c").read_text().replace('"btf:sched_switch ', '"')
        (mine / "mine.bpf.c").write_text(text)
    log = tmp_path / "log"
    # Two processes: the shell waits for the other, and so leaves its CPU.
    command = ["--", "sh", "-c", "sh -c : ; :"]
    done = run("collect", "--schema", mine, "-o", log, *command)
    assert done.returncode == 0, done.stderr
    decoded = run("tcpkmon", "decode", "--format", "json", *sorted(log.glob("kernlog.dump.cpu*")))
    assert decoded.returncode == 0, decoded.stderr
    events = [json.loads(line) for line in decoded.stdout.splitlines()]
    named = {
        type_: [event for event in events if event["header"]["type"] == type_]
        for type_ in ("LEFT", "CALLED", "NEVER", "LOGGING_EVENT")
    }
    states = {event["name"]: event["enabled"] for event in named["LOGGING_EVENT"]}
    assert (states["LEFT"], states["CALLED"], states["NEVER"]) == (1, 1, -1)
    assert named["NEVER"] == []
    assert len(named["LEFT"]) == len(named["CALLED"]) > 2
    for event in named["LEFT"]:
        assert (event["way"], event["negative"], event["nothing"]) == ("RUDE", -5, "")
        assert event["clock_ns"] & 0xFFFFFFFF <= event["clock_low"] or event["clock_low"] < 1 << 20
        assert event["arguments"] in (3, 4)
        assert event["flags"] in (0, 1)
        assert event["count"] >= 1
    assert "sh" in {event["comm"] for event in named["LEFT"]}
    assert {event["helper"] for event in named["CALLED"]} == {42}
    assert {event["constant"] for event in named["CALLED"]} == {1}
    assert max(event["parent"] for event in named["CALLED"]) > 0


@pytest.mark.parametrize(
    "command", first(1, [["collect", "--schema"], ["tcpkmon", "schema", "check"]])
)
def test_clang_reports_all_mistakes_at_once(mine: Path, command: list[str]) -> None:
    (mine / "mine.conf").write_text("event IN { int pid; ulonglong misses } event OUT { int pid }")
    text = """PROBE(p, "IN OUT", "btf:sched_switch raw:sched_switch")
{
    klogger(IN, 1);
    klogger(OUT, 1, 2);
    klogger(IN, , 2);
    klogger(OTU, 1);
    klogger(MARK, 1, 2);
    klogger(IN + 1, 2, 3);
    if (KLOGGER_ENABLED(OUTT)) return;
    klogger(OUT, klogger_get_task_clok());
    klogger(OUT, klogger_get_counter(KLOGGER_COUNTER3));
}
PROBE(p, "IN", "btf:sched_switch raw:sched_switch")
{
}
"""
    (mine / "mine.bpf.c").write_text(text)
    plain = run("tcpkmon", "schema", "check", mine)
    assert (plain.returncode, plain.stderr) == (0, "")
    log = mine.parent / "log"
    options = ["--compile"] if command[0] == "tcpkmon" else ["-o", log, "--duration", "1s"]
    done = run(*command, mine, *options)
    assert done.returncode == 2 and not log.exists()
    found: dict[int, str] = {}
    for line in done.stderr.splitlines():
        match = re.fullmatch(rf"{command[0]}: {mine}/mine\.bpf\.c:(\d+):\d+: (.+)", line)
        assert match is not None, line
        found[int(match[1])] = f"{found.get(int(match[1]), '')}{match[2]}; "
    expected = {
        3: "too few arguments", 4: "too many arguments", 5: "expected expression",
        6: "'klogger_log_OTU'", 7: "'klogger_log_MARK'", 8: "not a function",
        9: "'KLOGGER_ENABLED_OUTT'", 10: "'klogger_get_task_clok'", 11: "'KLOGGER_COUNTER3'",
        13: "redefinition of 'p",
    }  # fmt: skip
    assert found.keys() == expected.keys(), done.stderr
    assert [number for number, words in expected.items() if words not in found[number]] == []


def test_the_guide_shows_what_clang_reports(mine: Path) -> None:
    guide = (ROOT / "docs" / "schemata.md").read_text()
    shown = "./mine/mine.bpf.c" + guide.rpartition("```\n./mine/mine.bpf.c")[2].partition("```")[0]
    (mine / "mine.conf").write_text("event SCHEDOUT { int pid; ulonglong faults }\n")
    (mine / "mine.bpf.c").write_text(
        '#include "klogger.h"\n\nstruct task_struct;\n\n'
        'PROBE(switched, "SCHEDOUT", "raw:sched_switch")\n{\n'
        "    struct task_struct *task = (struct task_struct *)ARG(1);\n\n"
        "    u32 pid = READ(0, task, pidd);\n"
        "    klogger(SCHEDOUT, pid);\n}\n"
    )
    done = run("tcpkmon", "schema", "check", mine, "--compile")
    assert done.stderr.replace(f"tcpkmon: {mine}", "./mine") == shown


def test_what_this_kernel_lacks_is_a_warning(mine: Path) -> None:
    done = run("tcpkmon", "schema", "check", mine, "--compile")
    assert (done.returncode, done.stdout) == (0, "mine: 3 events\n"), done.stderr
    assert "warning: NEVER: this kernel offers none of btf:no_such_thing" in done.stderr


@pytest.mark.parametrize("command", [["collect", "--schema"], ["tcpkmon", "schema", "check"]])
def test_a_schema_that_others_can_write_is_not_compiled(mine: Path, command: list[str]) -> None:
    os.chmod(mine / "mine.h", 0o666)
    options = ["--compile"] if command[0] == "tcpkmon" else ["-o", mine.parent / "log"]
    done = run(*command, mine, *options)
    assert done.returncode == 1
    assert f"{mine}/mine.h may be written by others than root" in done.stderr
    assert f"chmod go-w {mine}/mine.h" in done.stderr
    assert not (mine.parent / "log").exists()
