# SPDX-License-Identifier: Apache-2.0
"""The condenser: the report of a made-up session, and each rule of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.commands.condense import command
from tcpkmon.formats.history import NO_USER, Condensed, condense
from tests.unit.log_files import LogBuilder

TASK = "int tid; int tgid; uint uid; ulonglong cgroup; ulonglong cpu_time;"
REQUEST = """ulonglong request; uint device; ulonglong sector; uint bytes; uint operation;
    uint flags; uint priority_class;"""
SCHEMA = f"""
event TRANSACTION_START {{ {TASK} int tty; uint device; int raw }}
event TRANSACTION_END {{ {TASK} int tty; uint device; int raw }}
event LOGIN {{ {TASK} int session; uint loginuid }}
event LOGOUT {{ {TASK} int session; uint loginuid }}
event PAGEIN_START {{ {TASK} int with_io }}
event PAGEIN_END {{ {TASK} int with_io }}
event PAGEOUT_START {{ {TASK} }}
event DISK_INSERT {{ {TASK} {REQUEST} }}
event DISK_ISSUE {{ {TASK} {REQUEST} }}
event DISK_COMPLETE {{ {TASK} {REQUEST} int last }}
event DISK_MERGE {{ {TASK} {REQUEST} }}
event FORK {{ int child_pid; int child_tgid }}
event EXIT {{ int pid; int tgid; ulonglong runtime; int group_dead }}
event SCHEDIN {{ int pid; int prev_pid }}
event SCHEDOUT {{ int pid; int tgid; ulonglong runtime }}
event SAMPLE {{ {TASK} int state }}
"""
OWNED = SCHEMA.replace("event FORK {", "event FORK { uint uid; ulonglong cgroup;").replace(
    "event EXIT {", "event EXIT { uint uid; ulonglong cgroup;"
) + "event EXEC { int tgid; uint uid }"
"""As FORK, EXEC and EXIT are since they tell whose a process is."""
MS = 1_000_000
Told = tuple[int, str, dict[str, Any]]
"""When [ns since the start], what, and its fields."""


def write(
    folder: Path, events: list[Told], cpus: int = 1, schema: str = SCHEMA, **header: Any
) -> Path:
    """A log for each CPU; events without one are CPU 0's."""
    folder.mkdir()
    for cpu in range(cpus):
        build = LogBuilder(cpu, schema=schema, **header)
        for when, name, values in sorted(events, key=lambda one: one[0]):
            if values.get("cpu", 0) == cpu:
                fields = {key: value for key, value in values.items() if key != "cpu"}
                build.log(name, when, **fields)
        build.end_dump().finish()
        build.write(folder / f"kernlog.dump.cpu{cpu}")
    return folder


def task(tgid: int, uid: int = 7, cpu_time: int = 0, tid: int | None = None) -> dict[str, Any]:
    return {
        "tid": tgid if tid is None else tid, "tgid": tgid, "uid": uid, "cgroup": 5,
        "cpu_time": cpu_time,
    }  # fmt: skip


def condensed(path: Path, **options: Any) -> Condensed:
    with open_log(path) as log:
        return condense(log, **options)


def session(seed: int) -> list[Told]:
    """Terminals, processes, faults and disk requests as a machine might have them, at random."""
    chance = random.Random(seed)
    told: list[Told] = []
    used = dict.fromkeys(range(100, 106), 0)
    now = dict.fromkeys(used, 10 * MS)
    for tgid in used:
        user = 1000 + tgid % 3
        told.append((9 * MS, "SCHEDOUT", {"pid": tgid, "tgid": tgid, "runtime": 5 * MS}))
        used[tgid] = 5 * MS
        for _ in range(12):
            for _ in range(chance.randint(1, 3)):  # keys before the answer
                told.append((now[tgid], "TRANSACTION_START",
                             {**task(1, NO_USER), "tty": tgid, "device": 3}))
                now[tgid] += chance.randint(1, 20) * MS
            if chance.random() < 0.6:
                has_io = chance.random() < 0.5
                told.append((now[tgid], "PAGEIN_START", task(tgid, user, used[tgid])))
                if has_io:
                    told += request(chance, tgid, user, used[tgid], now[tgid] + MS)
                used[tgid] += chance.randint(1, 400_000)
                now[tgid] += 50 * MS
                told.append((now[tgid], "PAGEIN_END",
                             {**task(tgid, user, used[tgid]), "with_io": int(has_io)}))
            told += request(chance, tgid, user, used[tgid], now[tgid] + MS)
            used[tgid] += chance.randint(1, 3 ** (tgid - 100)) * MS
            now[tgid] += chance.randint(40, 200) * MS
            told.append((now[tgid], "TRANSACTION_END",
                         {**task(tgid, user, used[tgid]), "tty": tgid, "device": 3}))
            now[tgid] += chance.randint(5, 500) * MS
    return told


def request(
    chance: random.Random, tgid: int, user: int, used: int, when: int
) -> list[Told]:
    """A request. Some were not queued, some end in two parts, some become a part of another; and
    some began before the log: they have the id 0."""
    one = {
        **task(tgid, user, used), "request": chance.getrandbits(40) + 1,
        "device": 8 << 20 | tgid % 2, "bytes": 4096, "flags": chance.choice((0, 1, 32, 33)),
    }  # fmt: skip
    issued = when + chance.randint(0, 9) * MS
    done = issued + chance.randint(2, 20) * MS
    before: Told = (issued, "DISK_COMPLETE", {**one, "request": 0, "last": 1})
    inserted: Told = (when, "DISK_INSERT", one)
    if chance.random() < 0.2:
        return [before, inserted, (issued, "DISK_MERGE", one)]
    events: list[Told] = [inserted, (issued, "DISK_ISSUE", one)]
    if chance.random() < 0.3:
        events.append((done - MS, "DISK_COMPLETE", {**one, "bytes": 1024}))
        one = {**one, "bytes": 3072}
    return [*events, (done, "DISK_COMPLETE", {**one, "last": 1})]


def test_every_cell(tmp_path: Path) -> None:
    """Plain loops over the events computed the same figures when condensed.txt was made."""
    words = [str(write(tmp_path / "log", session(1))), "--classes", "40,400"]
    said = CliRunner().invoke(command, words, catch_exceptions=False).output
    assert said == Path(__file__).with_name("condensed.txt").read_text()


def test_cpus_by_switches(tmp_path: Path) -> None:
    """CPU 0 is idle for 30 of 100 ms, CPU 1 for all but 10."""
    switches: list[Told] = [
        (40 * MS, "SCHEDIN", {"pid": 0, "prev_pid": 9, "cpu": 0}),
        (70 * MS, "SCHEDIN", {"pid": 9, "prev_pid": 0, "cpu": 0}),
        (20 * MS, "SCHEDIN", {"pid": 8, "prev_pid": 0, "cpu": 1}),
        (30 * MS, "SCHEDIN", {"pid": 0, "prev_pid": 8, "cpu": 1}),
        (100 * MS, "SCHEDIN", {"pid": 0, "prev_pid": 9, "cpu": 0}),
    ]
    report = condensed(write(tmp_path / "log", switches, cpus=2), slices=2)
    assert report.cpus == {0: pytest.approx(0.7, abs=1e-3), 1: pytest.approx(0.1, abs=1e-3)}
    assert report.cpu is not None
    assert report.cpu.total == pytest.approx(0.4, abs=1e-3)
    assert [one.cpu for one in report.slices] == [pytest.approx(0.5, abs=2e-3),
                                                  pytest.approx(0.3, abs=2e-3)]  # fmt: skip


def test_sessions_and_processes(tmp_path: Path) -> None:
    events: list[Told] = [
        (10 * MS, "LOGIN", {**task(4), "session": 1}),
        (40 * MS, "LOGOUT", {**task(4), "session": 1}),
        (90 * MS, "LOGIN", {**task(5), "session": 2}),
        (5 * MS, "FORK", {"child_pid": 30, "child_tgid": 30}),
        (6 * MS, "FORK", {"child_pid": 31, "child_tgid": 30}),  # a thread
        (25 * MS, "EXIT", {"pid": 30, "tgid": 30, "runtime": 3 * MS, "group_dead": 1}),
    ]
    report = condensed(write(tmp_path / "log", events))
    overall = report.classes[-1]
    assert overall.login is not None and overall.login.mean == pytest.approx(0.030)
    assert overall.logout is not None and overall.logout.mean == pytest.approx(0.050)
    assert report.process_life is not None and report.process_life.mean == pytest.approx(0.020)
    assert report.between_processes is None  # none was made after that
    made = {g.name: g for g in report.users}[str(NO_USER)]
    assert made.cpu is not None and made.cpu.most == pytest.approx(0.003)  # it began with none


def test_whose_a_process_is(tmp_path: Path) -> None:
    """By FORK its parent's user, until EXEC or EXIT says another; by PROCESS_EXISTS, if no other
    event does; else nobody knows, and that is not root."""
    told: list[Told] = [
        (1 * MS, "PROCESS_EXISTS", {"pid": 10, "uid": 3}),
        (1 * MS, "PROCESS_EXISTS", {"pid": 11, "uid": 3}),  # did nothing: is not counted
        (2 * MS, "FORK", {"child_pid": 20, "child_tgid": 20, "uid": 4, "cgroup": 9}),
        (3 * MS, "FORK", {"child_pid": 21, "child_tgid": 21, "uid": 4, "cgroup": 9}),
        (4 * MS, "EXEC", {"tgid": 21, "uid": 5}),
        (5 * MS, "EXIT", {"pid": 22, "tgid": 22, "uid": 6, "cgroup": 9, "group_dead": 1}),
        *((6 * MS, "SCHEDOUT", {"pid": pid, "tgid": pid, "runtime": MS})
          for pid in (10, 20, 21, 23)),
    ]  # fmt: skip
    path = write(tmp_path / "log", told, schema=OWNED)
    assert {one.name: one.processes for one in condensed(path).users} == {
        "3": 1, "4": 1, "5": 1, "6": 1, str(NO_USER): 1,
    }  # fmt: skip
    assert {one.name: one.processes for one in condensed(path).cgroups} == {"0": 2, "9": 3}
    old = write(tmp_path / "old", [one for one in told if one[1] not in ("EXEC", "PROCESS_EXISTS")
                                   and "uid" not in one[2]])  # fmt: skip
    assert [one.name for one in condensed(old).users] == [str(NO_USER)]


def test_classes_of_users(tmp_path: Path) -> None:
    """Two processes of 6 ms are Light; their user, with 12 ms, is Medium."""
    told: list[Told] = []
    for pid, uid, used in ((30, 1, 6), (31, 1, 6), (32, 2, 6)):
        told += [
            (1 * MS, "FORK", {"child_pid": pid, "child_tgid": pid, "uid": uid}),
            (2 * MS, "SCHEDOUT", {"pid": pid, "tgid": pid, "runtime": used * MS}),
        ]
    path = write(tmp_path / "log", told, schema=OWNED)
    counts = [
        [one.processes for one in condensed(path, by_user=by_user).classes] for by_user in (0, 1)
    ]
    assert counts == [[3, 0, 0, 3], [1, 2, 0, 3]]
    said = CliRunner().invoke(command, [str(path), "--by-user"]).output
    assert "Classes of users by CPU time" in said


def test_a_transaction_does_not_cross_sessions(tmp_path: Path) -> None:
    """A START is of the leader of its session. What was typed in an earlier one has no answer, and
    nobody thinks from one session to the next."""
    events: list[Told] = []
    for when, name, tgid in (
        (0, "START", 10), (20, "START", 11), (30, "END", 99), (50, "START", 11), (60, "END", 99),
        (70, "START", 12), (75, "END", 12),
    ):  # fmt: skip
        values = {**task(tgid), "tty": 1, "device": 1}
        events.append((when * MS, f"TRANSACTION_{name}", values))
    overall = condensed(write(tmp_path / "log", events)).classes[-1]
    assert overall.response is not None and overall.think is not None
    assert (overall.response.count, overall.response.most) == (3, pytest.approx(0.010))
    assert (overall.think.count, overall.think.most) == (1, pytest.approx(0.020))


def test_the_collector_is_no_user_of_its_own(tmp_path: Path) -> None:
    told: list[Told] = [
        (1 * MS, "PROCESS_EXISTS", {"pid": 50, "uid": 0}),
        (2 * MS, "PAGEIN_END", task(50, uid=63_945)),
        (3 * MS, "EXIT", {"pid": 51, "tgid": 51, "uid": 63_945, "group_dead": 1}),
        (4 * MS, "PAGEIN_END", task(7, uid=1000)),
    ]
    path = write(tmp_path / "log", told, schema=OWNED, settings={"collector_pids": [50, 51]})
    assert {one.name: one.processes for one in condensed(path).users} == {"0": 2, "1000": 1}
    assert "Users seen: 2\n" in CliRunner().invoke(command, [str(path)]).output


def test_without_the_collector(tmp_path: Path) -> None:
    told = [one for pid in (50, 51) for seed in range(9)
            for one in request(random.Random(9 * pid + seed), pid, 7, 0, 10 * MS)]  # fmt: skip
    path = write(tmp_path / "log", told, settings={"collector_pids": [51, "x", -1]})
    both, one = condensed(path), condensed(path, without_collector=True)
    assert [len(both.devices), len(one.devices)] == [2, 1]
    assert [both.classes[-1].processes, one.classes[-1].processes] == [2, 1]
    said = CliRunner().invoke(command, [str(path), "--without-collector"]).output
    assert "device 8:0" in said and "device 8:1" not in said


def test_a_number_given_again(tmp_path: Path) -> None:
    """The kernel gives a dead thread's number to another one: both used CPU time."""
    told: list[Told] = [
        (1 * MS, "SCHEDOUT", {"pid": 30, "tgid": 30, "runtime": 100 * MS}),  # was there before
        (2 * MS, "SCHEDOUT", {"pid": 30, "tgid": 30, "runtime": 103 * MS}),
        (3 * MS, "FORK", {"child_pid": 30, "child_tgid": 30}),
        (4 * MS, "SCHEDOUT", {"pid": 30, "tgid": 30, "runtime": 2 * MS}),
        (5 * MS, "FORK", {"child_pid": 30, "child_tgid": 31}),
        (6 * MS, "SCHEDOUT", {"pid": 30, "tgid": 31, "runtime": 7 * MS}),
    ]
    report = condensed(write(tmp_path / "log", told))
    assert report.classes[3].cpu is not None
    assert sorted((report.classes[3].cpu.mean, report.classes[3].cpu.most)) == [0.006, 0.007]


def test_lossy_buffers_are_left_out(tmp_path: Path) -> None:
    build = LogBuilder(schema=SCHEMA)
    for number in range(3):
        build.log("TRANSACTION_START", **task(1), tty=number, device=1)
        build.log("TRANSACTION_END", **task(1), tty=number, device=1)
        build.lose("ring_full", number, "TRANSACTION_END")
        build.log("EXIT", pid=1, tgid=1).end_dump()
    build.lose("table_full", 2, "EXIT")  # these have no place, so no buffer is left out for them
    (tmp_path / "log").mkdir()
    build.finish().write(tmp_path / "log" / "kernlog.dump.cpu0")
    counts = []
    for most in (None, 2, 1, 0):
        report = condensed(tmp_path / "log", discard_lossy=most)
        response = report.classes[-1].response
        counts.append(response.count if response else 0)
        assert any("left out" in note for note in report.notes) == (most in (0, 1))
        assert report.head["lost"] == 5
    assert counts == [3, 3, 2, 1]


def test_the_command(tmp_path: Path) -> None:
    path = str(write(tmp_path / "log", session(1)))
    told = json.loads(CliRunner().invoke(command, [path, "--json"]).output)
    assert [group["name"] for group in told["classes"]] == ["Light", "Medium", "Heavy", "Overall"]
    page = tmp_path / "report.html"
    CliRunner().invoke(command, [path, "--html", str(page)], catch_exceptions=False)
    assert "Response time" in page.read_text()


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = str(write(tmp_path / "log", session(1)))
    out = tmp_path / "picture.svg"
    CliRunner().invoke(command, [path, "-o", str(out)], catch_exceptions=False)
    assert out.stat().st_size > 5000
    again = CliRunner().invoke(command, [path, "-o", str(out)])
    assert "--force" in str(getattr(again.exception, "hint", ""))


def test_names_of_a_hostile_log_do_no_harm(tmp_path: Path) -> None:
    build = LogBuilder(schema=SCHEMA, host="<script>alert(1)</script>\x1b[31m")
    (tmp_path / "log").mkdir()
    build.finish().write(tmp_path / "log" / "kernlog.dump.cpu0")
    page = tmp_path / "report.html"
    CliRunner().invoke(command, [str(tmp_path / "log"), "--html", str(page)])
    assert "<script>alert" not in page.read_text()
    shown = CliRunner().invoke(command, [str(tmp_path / "log")]).output
    assert "\x1b" not in shown


def test_a_fault_begins_when_it_says(tmp_path: Path) -> None:
    """START is logged just before its END: an I/O in between belongs to the fault by `since`."""
    schema = SCHEMA.replace("int with_io }", "int with_io; ulonglong since }")
    build = LogBuilder(schema=schema)
    told = request(random.Random(1), 7, 1000, 0, 3 * MS)
    last = max(when for when, _, _ in told)
    for when, name, values in sorted(told, key=lambda one: one[0]):
        build.log(name, when, **values)
    fault = {"with_io": 1, "since": MS}
    build.log("PAGEIN_START", last + 1, **task(7, 1000, 0), **fault)
    build.log("PAGEIN_END", last + 1, **task(7, 1000, 5), **fault)
    build.end_dump().finish()
    build.write(tmp_path / "kernlog.dump.cpu0")
    with open_log(tmp_path / "kernlog.dump.cpu0") as log:
        overall = condense(log).classes[-1]
    assert overall.io is None
    assert overall.physical_faults == 1
