# SPDX-License-Identifier: Apache-2.0
"""What fuzzing runs: each target takes the bytes of one input, and raises for a finding.

A refusal in words (exit codes 1 to 5) is right; an exception is a finding, and so is an answer
that contradicts another one: what verify passes, every reader must read without complaint.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
import shutil
import socket
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import click

from tcpkmon.formats.base import cli
from tcpkmon.formats.base.cli import CLOCKS
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError, UsageError
from tcpkmon.formats.base.expressions import ExpressionError

READ, FAILED, REFUSED, LOST, DAMAGED = 0, 1, 2, 3, 5
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DECODE = ("perl", "json", "csv", "spreadsheet", "parquet")


@dataclass(frozen=True)
class Target:
    """kind: of the inputs. share: of all runs, in thousandths. run: raises for a finding.

    in_c: the target writes text by lines.c, and also runs under the compiler's sanitizers.
    """

    kind: str
    share: float
    run: Callable[[bytes], None]
    in_c: bool = False


@cache
def _folder(owner: int) -> Path:
    """A folder in memory for this process. Whoever starts it removes it."""
    base = os.environ.get("TCPKMON_FUZZ_TMP") or tempfile.mkdtemp(prefix="tcpkmon-fuzz-")
    path = Path(base, str(owner))
    path.mkdir(parents=True, exist_ok=True)
    return path


def _stored(data: bytes, name: str = "in") -> Path:
    path = _folder(os.getpid()) / name
    path.write_bytes(data)
    return path


def _fresh(name: str = "out") -> Path:
    """A path where nothing is."""
    path = _folder(os.getpid()) / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


class _Screen(io.TextIOWrapper):
    """A stdout that stays in memory."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: bytes
    complaints: str
    error: BaseException | None

    def check(self, allowed: tuple[int, ...]) -> Answer:
        if self.code not in allowed:
            raise AssertionError(f"exit code {self.code}: {self.complaints}") from self.error
        assert not (bad := _CONTROL.search(self.complaints)), f"not escaped: {bad}"
        return self


def ask(command: click.Command, *arguments: object, terminal: bool = False) -> Answer:
    """Run a command in this process."""
    before = sys.stdout, sys.stderr, cli._report
    screen, complaints = _Screen(terminal), io.StringIO()
    errors: list[BaseException] = []

    def report(error: TcpkmonError, name: str) -> int:
        errors.append(error)
        return before[2](error, name)

    sys.stdout, sys.stderr, cli._report = screen, complaints, report
    try:
        code = cli.run(command, [str(one) for one in arguments])
        screen.flush()
    finally:
        sys.stdout, sys.stderr, cli._report = before
    out = screen.buffer.getvalue()  # type: ignore[attr-defined]
    return Answer(code, out, complaints.getvalue(), errors[0] if errors else None)


def _pick(data: bytes, choices: tuple[Any, ...]) -> Any:
    """One of these by the content, so that an input always runs the same way."""
    return choices[zlib.crc32(data) % len(choices)]


# Captures and logs


def detect(data: bytes) -> None:
    import tcpkmon

    with suppress(TcpkmonError), tcpkmon.open(_stored(data)) as reader:
        assert reader.lost >= 0 and isinstance(reader.complete, bool)
        assert reader.damaged or all(isinstance(text, str) for text in reader.warnings)


def verify(data: bytes) -> None:
    """The report; if it says that nothing is lost, every reader must agree."""
    from tcpkmon.formats.commands.verify import command

    path = _stored(data)
    as_json = ["--json"] if zlib.crc32(data) % 8 else []
    answer = ask(command, *as_json, path).check((READ, LOST, DAMAGED))
    if as_json:
        assert json.loads(answer.out)["exit_code"] == answer.code
    if answer.code == READ:
        agree(path)


def agree(path: Path) -> None:
    """Every reader reads the file without complaint."""
    import tcpkmon
    from tcpkmon.formats.registry import format_of

    file_format = format_of(path)
    (report,) = file_format.verify(path)
    with tcpkmon.open(path) as reader:
        for tables in reader.for_export("parquet").tables():
            assert all(table.num_rows for table in tables.values())
        state = (list(reader.warnings), reader.damaged, reader.lost)
        assert state == ([], False, 0), f"verify passed what says {state}"
        assert reader.complete or not report.ledger, "verify passed what has no end"
    is_log = file_format.name != "psc"
    asked = [("export", form, export(path, form)) for form in ("csv", "json")]
    if file_format.name == "magnet":
        asked.append(("magnet-parse", "", parse_magnet(path)))
    if is_log:
        asked += [("decode", form, decode(path, form)) for form in DECODE]
        asked += [("decode", clock, decode(path, "csv", "--time", clock)) for clock in CLOCKS]
    else:
        asked += [("pmgraph", option, draw(path, option)) for option in ("-T", "-D")]
        asked.append(("pmgraph", "terminal", draw(path, terminal=True)))
    for name, how, answer in asked:
        no_end = name == "export" and not report.ledger  # a file as of 2000 has none
        nothing = how == "terminal" and answer.code == FAILED  # to draw
        if answer.code != READ and not nothing and not (no_end and answer.code == LOST):
            raise AssertionError(f"verify passed, {name} {how}: {answer}") from answer.error


def repair(data: bytes) -> None:
    """A repaired file is as its report says, and its readers see no damage in it."""
    import tcpkmon
    from tcpkmon.formats.registry import format_of

    path, new = _stored(data), _fresh()
    try:
        _, report = format_of(path).repair(path, new)
    except DamagedError:
        assert not new.exists()
        return
    except UsageError:
        return
    assert path.read_bytes() == data
    again = format_of(new).verify(new)[0]
    assert again.exit_code == report.exit_code, (again.exit_code, report.exit_code)
    assert report.exit_code in {READ, LOST, DAMAGED}
    if report.exit_code != DAMAGED:
        with tcpkmon.open(new) as reader:
            assert not reader.damaged, f"repaired, but {list(reader.warnings)}"


def anonymised(data: bytes) -> None:
    """What was anonymised is as proven as the file, or as its repair; and anonymised once more."""
    from tcpkmon.formats.anonymise import DEFAULT, Who, anonymise
    from tcpkmon.formats.registry import format_of

    path, new, again = _stored(data), _fresh(), _fresh().with_suffix(".again")
    again.unlink(missing_ok=True)
    who = Who(bytes(32), DEFAULT | {"ports"})
    try:
        done = anonymise(path, new, who)
    except (DamagedError, UsageError):
        assert not new.exists()
        return
    assert path.read_bytes() == data
    (report,) = format_of(path).verify(path)
    if report.exit_code != DAMAGED:
        assert done.exit_code == report.exit_code, (done.exit_code, report.exit_code)
        assert done.reports[0].entries == report.entries
    assert anonymise(new, again, who).exit_code == done.exit_code
    again.unlink()


def cut(data: bytes) -> None:
    """What is cut out of a file that verify passes is proven as that is; others are refused."""
    import numpy as np

    from tcpkmon.formats.psc.reader import open_capture
    from tcpkmon.formats.verify import cut_file, verify_file

    path, new = _stored(data), _fresh()
    try:
        with open_capture(path) as capture:
            report = cut_file(capture, new, lambda a, b: np.arange(a, b) % 3 == 0, {})
    except (DamagedError, UsageError):
        assert not new.exists()
        return
    assert path.read_bytes() == data
    assert report.exit_code == verify_file(path).exit_code


def export(path: Path, form: str) -> Answer:
    from tcpkmon.formats.commands.export import command

    output = ["-o", _fresh()] if form in ("parquet", "arrow", "pcapng") else []
    return ask(command, path, "--format", form, *output).check((READ, REFUSED, LOST, DAMAGED))


def decode(path: Path, form: str, *more: str) -> Answer:
    from tcpkmon.formats.commands.decode import command

    output = ["-o", _fresh()] if form == "parquet" else []
    return ask(command, path, "--format", form, *output, *more).check(
        (READ, REFUSED, LOST, DAMAGED)
    )


def draw(path: Path, *options: object, terminal: bool = False) -> Answer:
    from tcpkmon.formats.commands.pmgraph import command

    answer = ask(command, path, *options, terminal=terminal)
    answer.check((READ, FAILED, REFUSED, DAMAGED))  # failed: there is nothing to show
    assert not terminal or not _CONTROL.search(_COLOUR.sub("", answer.out.decode())), "not escaped"
    return answer


def parse_magnet(path: Path, *options: object) -> Answer:
    from tcpkmon.formats.commands.magnet_parse import command

    answer = ask(command, path, *options).check((READ, REFUSED, LOST, DAMAGED))
    widths = {line.count(b"\t") for line in answer.out.split(b"\n")[:-1]}
    assert len(widths) <= 1, f"rows of {sorted(widths)} cells"
    return answer


def as_magnet(data: bytes) -> None:
    """The MAGNeT file of a log: verify says the same of both."""
    from tcpkmon.formats.commands.export import command
    from tcpkmon.formats.registry import format_of

    path, new = _stored(data), _fresh()
    answer = ask(command, path, "--format", "magnet", "-o", new)
    answer.check((READ, REFUSED, LOST, DAMAGED))
    assert new.exists() or answer.code in (REFUSED, DAMAGED)
    if new.exists():
        (one,), (other,) = format_of(path).verify(path), format_of(new).verify(new)
        assert one.exit_code == other.exit_code, (one.verdict, other.verdict, other.problems)
        assert one.verdict == other.verdict or one.problems_total, (one.verdict, other.verdict)


def magnet_table(data: bytes) -> None:
    parse_magnet(_stored(data), "--time", _pick(data, CLOCKS))


def magnet_records(data: bytes) -> None:
    """The same bytes as a file of another program: any array of records can be read."""
    order, bits = _pick(data, ((), ("--big-endian",))), _pick(data[::-1], ("32", "64"))
    more = _pick(data[1:], ((), ("--data", "--event=3=MAGNET_TCP_SEND", "--event=4=IP_SEND")))
    data = data[24:]
    size = {"32": 20, "64": 24}[bits] if not more else {"32": 68, "64": 120}[bits]
    whole = data[: len(data) // size * size]
    answer = parse_magnet(_stored(whole), *order, "--bits", bits, *more)
    assert answer.code == REFUSED if not whole else answer.code in (READ, DAMAGED), answer


def exporting(form: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        check_text(form, export(_stored(data), form))

    return run


def decoding(form: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        more = [*_pick(data, ((), ("--merge",))), "--time", _pick(data[::-1], CLOCKS)]
        check_text(form, decode(_stored(data), form, *more))

    return run


def check_text(form: str, answer: Answer) -> None:
    """JSON is JSON, CSV has as many cells in each row, a trace has packets."""
    if form == "json":
        for line in answer.out.splitlines():
            assert isinstance(json.loads(line), dict)
    elif form == "perfetto":
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        assert not answer.out or Trace.FromString(answer.out).packet
    elif form in ("csv", "spreadsheet"):
        text = answer.out.decode().replace("\0", "")
        widths = {len(row) or 1 for row in csv.reader(io.StringIO(text, newline=""))}
        assert len(widths) <= 1, f"rows of {sorted(widths)} cells"


def drawing(*options: str, terminal: bool = False) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        more = ("--time", _pick(data, CLOCKS)) if "-T" in options or "-D" in options else ()
        draw(_stored(data), *options, *more, terminal=terminal)

    return run


def by_parameter(data: bytes) -> None:
    draw(_stored(data), "-P", terminal=True)


def xgraph(data: bytes) -> None:
    path, folder, before = _stored(data), _fresh("xgraph"), os.getcwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        draw(path, "-x")
    finally:
        os.chdir(before)


def picture(data: bytes) -> None:
    draw(_stored(data), "-o", _fresh().with_suffix(_pick(data, (".svg", ".png", ".pdf"))))


def analysis(data: bytes) -> None:
    from tcpkmon.formats.analysis import cpu_times, match_pairs, open_log

    path = _stored(data)
    with suppress(TcpkmonError), open_log(path) as log:
        for event in log:
            assert event.cpu >= 0
        with suppress(TcpkmonError):
            match_pairs(log).by_key()
        with suppress(TcpkmonError):
            match_pairs(log, "SCHEDIN", "SCHEDOUT", "cpu", same="pid").statistics()
        cpu_times(log)


def latency(data: bytes) -> None:
    """Every byte is in one state, and no part is negative or more than the whole."""
    from tcpkmon.formats.analysis import open_log
    from tcpkmon.formats.analysis.latency import Latency
    from tcpkmon.formats.commands.latency import command

    path = _stored(data)
    options = _pick(data, ((), ("--json",), ("-o", _fresh("out.parquet"))))
    ask(command, *options, path).check((READ, REFUSED, LOST, DAMAGED))
    with suppress(TcpkmonError), open_log(path) as log:
        for some in Latency(log, 64):
            parts = list(some.parts.values())
            assert all((part >= 0).all() for part in parts) and (some.sizes > 0).all()
            assert (sum(parts) == some.whole).all()


def why(data: bytes) -> None:
    """Every interval has a length, and the limits of a connection fill its certain time."""
    from tcpkmon.formats.analysis.why import Source, tally
    from tcpkmon.formats.commands import connections
    from tcpkmon.formats.commands.why import command

    path = _stored(data)
    some, options = _pick(data, (
        (command, ()), (command, ("-v",)), (command, ("--json",)), (command, ("--intervals",)),
        (connections.command, ("--columns", "all")),
        (connections.command, ("-o", _fresh("out.parquet"))),
    ))  # fmt: skip
    ask(some, *options, path).check((READ, REFUSED, LOST, DAMAGED))
    with suppress(TcpkmonError), Source(path) as source:
        for row in tally(source.blocks()):
            assert all(ns >= 0 for ns in row.limit_ns.values())
            assert row.certain_ns <= sum(row.limit_ns.values())


def tables(data: bytes) -> None:
    """Each table is as it is declared; a notebook's page has no tag of the file's."""
    from tcpkmon.formats.commands.sql import command
    from tcpkmon.formats.tables import Opened, as_html, views_of

    path = _stored(data)
    name = _pick(data, ("snapshots", "connections", "intervals", "ledger", "proof", "SCHEDIN"))
    options = _pick(data[::-1], (("--tables",), (f"select * from {name}", "--format", "json"),
                                 (f"select * from {name}", "--format", "csv")))  # fmt: skip
    ask(command, path, *options).check((READ, REFUSED, LOST, DAMAGED))
    with suppress(TcpkmonError):
        opened = Opened.of([path])
        with opened.reader:
            for view in views_of(opened).values():
                with suppress(TcpkmonError):
                    for table in view.tables(opened):
                        table.validate(full=True)
            page = as_html(opened)
            assert {*re.findall(r"<(\w+)", page)} <= {
                "div", "p", "b", "table", "caption", "thead", "tbody", "tr", "th", "td", "code",
                "br", "span",
            }  # fmt: skip


def host(data: bytes) -> None:
    """The commands of HP-UX and UBC."""
    from tcpkmon.formats.commands import condense, translate

    path = _stored(data)
    command, options = _pick(data, (
        (condense.command, ()), (condense.command, ("--json", "--discard-lossy", "0")),
        (translate.command, ()), (translate.command, ("-l",)),
        (translate.command, ("--records-1987", _fresh("old.out"))),
    ))  # fmt: skip
    ask(command, *options, path).check((READ, REFUSED, LOST, DAMAGED))


def disk(data: bytes) -> None:
    """Each request ends after it begins, and a queue has as many positions as it says, or fewer."""
    from tcpkmon.formats.analysis import open_log, queues, requests

    with suppress(TcpkmonError), open_log(_stored(data)) as log:
        found = requests(log)
        assert found["request"].all() and found.open >= 0
        assert len(set(found["request"].tolist())) == len(found)
        for number in set(found["device"].tolist()):
            one = found.where(device=number)
            if (one.served_ns < 0).any():
                continue
            assert one.busy_ns() <= max(one["completed_ns"]) - min(one["issued_ns"])
        for queue in queues(log, rebuild=_pick(data, (False, True))):
            assert queue.exact or queue.length == len(queue.positions)
            assert list(queue.positions) == sorted(
                queue.positions, key=lambda x: (x >= 0, x if x >= 0 else -x)
            )


def calls(data: bytes) -> None:
    """Each call has a start before its exit, and each start and exit is counted once."""
    from tcpkmon.formats.analysis import match_calls, open_log

    with suppress(TcpkmonError), open_log(_stored(data)) as log:
        found = match_calls(log)
        assert (found.pairs.durations_ns >= 0).all()
        assert sum(one.count for one in found.by_name().values()) == len(found.pairs)
        assert min((*found.without_exit.values(), *found.without_start.values()), default=1) > 0


@cache
def _partner() -> bytes:
    from tests.unit.log_files import clean_log

    return clean_log(1).finish().data()


def in_folder(data: bytes) -> None:
    """The log of CPU 0 beside a sound one of CPU 1."""
    from tcpkmon.formats.commands.verify import command

    folder = _folder(os.getpid()) / "logs"
    folder.mkdir(exist_ok=True)
    (folder / "kernlog.dump.cpu0").write_bytes(data)
    (folder / "kernlog.dump.cpu1").write_bytes(_partner())
    answer = ask(command, "--json", folder).check((READ, LOST, DAMAGED))
    exported = export(folder, "json")
    check_text("json", exported)
    assert answer.code != READ or exported.code == READ, f"verify passed it, but {exported}"


# Texts


def schema(data: bytes) -> None:
    """Mistakes have places; what is accepted is the same when it is printed and read again."""
    from tcpkmon.formats.schema import format_schema, load_partly, parse, place_fields

    path = _stored(data, "in.conf")
    partial = load_partly([path])
    assert all(one.line >= 1 and one.column >= 1 for one in partial.problems)
    if partial.problems:
        return
    for event in partial.schema.events:
        place_fields(partial.schema, event)
    text = format_schema(partial.schema)
    assert format_schema(parse(text)) == text


@cache
def _server(owner: int) -> Any:
    from tcpkmon.collector.control import server
    from tcpkmon.collector.control.server import ControlServer

    server.ROUND_S = 0.0  # else it answers 50 requests a second
    made = SimpleNamespace(wake=os.eventfd(0, os.EFD_NONBLOCK))
    made.server = ControlServer(_folder(owner), None, lambda: os.eventfd_write(made.wake, 1))
    made.server.__enter__()
    return made


class _Controls:
    """Answers of a capture; what the handlers do with a valid request is tested elsewhere."""

    def __getattr__(self, name: str) -> Any:
        return lambda *values: {"called": name, "values": repr(values)}


@cache
def _records() -> tuple[Any, Any]:
    """A layout of columns, and records with extreme values in them."""
    import numpy as np

    from tcpkmon.collector.plan.columns import (
        EVENT,
        choose_columns,
        load_schema,
        locations_of,
        make_layout,
    )

    schema = load_schema()
    layout = make_layout(schema, choose_columns(schema.event(EVENT), "default"), ())
    rows = np.zeros(64, layout.dtype)
    rows.view(np.uint8).reshape(64, -1)[:] = np.arange(64, dtype=np.uint8)[:, None] * 4
    rows["conn_id"], rows["time_ns"] = np.arange(64) % 5, np.arange(64) * 10**7
    rows["location"] = np.arange(64) % 21 + 1
    return (layout, locations_of(schema)), rows


def check_mistakes(error: ExpressionError, text: str) -> None:
    """Their words are escaped, and their places are in the text."""
    assert not _CONTROL.search("\n".join(error.lines())), "not escaped"
    assert all(0 <= mistake.at <= len(text) for _, mistake in error.mistakes)


def trigger(data: bytes) -> None:
    """A trigger is refused with places in its text, or it makes masks of any records."""
    from tcpkmon.collector.plan.trigger_watch import Watch
    from tcpkmon.collector.plan.triggers import compile_triggers

    (layout, locations), rows = _records()
    text = data.decode(errors="surrogateescape")
    try:
        found = compile_triggers([text], layout, locations)
    except ExpressionError as error:
        check_mistakes(error, text)
        return
    watch = Watch(found)
    for hit in [*watch.feed(rows, 0), *watch.tick(10**10)]:
        assert hit.number == 1 and 0 < hit.count <= len(rows)


@cache
def _checked(owner: int) -> Any:
    from tcpkmon.formats.analysis.check import Capture
    from tests.unit.psc_files import write_capture

    return Capture(write_capture(_folder(owner) / "checked.pm", 200, 3, {50}))


def assertion(data: bytes) -> None:
    """An assertion is refused with places in its text, or it has a result that can be printed."""
    from tcpkmon.formats.analysis.check import as_junit, as_lines, check, github_lines

    capture = _checked(os.getpid())
    text = data.decode(errors="surrogateescape")
    try:
        found = check(capture, [text])
    except ExpressionError as error:
        check_mistakes(error, text)
        return
    printed = [*as_lines(found[0]), *github_lines(capture, found)]
    assert not _CONTROL.search("\n".join(printed)), "not escaped"
    assert as_junit([(capture, found)])
    assert found[0].ok <= (not found[0].failed)


@cache
def _log(owner: int) -> Path:
    from tests.unit.log_files import LogMaker

    maker = LogMaker()
    maker.add("SCHEDOUT", {"pid": 5}).add("SCHEDOUT", {"pid": -5}).add("COUNTED", {"pid": 7})
    maker.add("EVERY", {"how": "RR", "text": "abc", "f": 1 << 63, "addr": bytes(15) + b"\1"})
    return maker.add("KLOGGER_FINISH").write(_folder(owner) / "where.log")


def where(data: bytes) -> None:
    """A condition on a log's events is refused in words, or it chooses among them."""
    from tcpkmon.formats.base.errors import UsageError
    from tcpkmon.formats.klogger.choose import Choice, parse_condition
    from tcpkmon.formats.klogger.logs import Logs
    from tcpkmon.formats.klogger.reader import LogReader

    text = data.decode(errors="surrogateescape")
    with LogReader(_log(os.getpid())) as reader:
        try:
            choice = Choice(conditions=(parse_condition(text),))
            [(_, records)] = Logs([reader], choice, "mono").streams()
        except UsageError as error:
            assert error.lines()
            return
        assert sum(len(batch) for batch, _ in records) <= 5


def fail_if(data: bytes) -> None:
    """A condition is refused with places in its text, or it is judged."""
    from tcpkmon.formats.analysis.diff import compare, judge, parse_conditions

    text = data.decode(errors="surrogateescape")
    try:
        (condition,) = parse_conditions([text])
    except ExpressionError as error:
        check_mistakes(error, text)
        return
    names = [metric.name for metric in condition.metrics]
    values = {name: [1.0 + n / 9 for n in range(9)] for name in names}
    larger = {name: [3 * one for one in values[name]] for name in names}
    found, _ = compare(values, larger, names)
    (judged,) = judge([condition], {one.metric.name: one for one in found})
    assert isinstance(judged.failed, bool) and names, judged


def sound() -> Path:
    """A capture to compare with."""
    return _sound(os.getpid())


@cache
def _sound(owner: int) -> Path:
    from tests.unit.psc_files import write_runs

    return write_runs(_folder(owner) / "sound.pm", [(1e6 + 1e5 * n, 500 + 9 * n) for n in range(8)])


def compared(data: bytes) -> None:
    """Against a sound capture: what cannot be read is refused."""
    from tcpkmon.formats.commands.diff import command

    sides = (_sound(os.getpid()), _stored(data))
    options = _pick(data, (
        ("--json",), (), ("--unit", "run"), ("--fail-if", "srtt_p50_us worse 0%"),
    ))  # fmt: skip
    answer = ask(command, *sides, "--unproven-ok", *options)
    answer.check((READ, REFUSED, LOST, DAMAGED))
    if answer.out and options == ("--json",):
        assert {one["result"] for one in json.loads(answer.out)["metrics"]}


def span(data: bytes) -> None:
    """Two marks that are there are found, or refused in words; what is cut out can be read."""
    from tcpkmon.formats.analysis.check import find_span, write_span
    from tcpkmon.formats.base.control import Mark
    from tcpkmon.formats.psc.reader import open_capture

    path, cut = _stored(data), _fresh()
    try:
        with open_capture(path) as capture:
            marks = [entry.number for _, entry in capture.controls() if isinstance(entry, Mark)]
            begin, end = (marks[0], marks[-1]) if marks else (0, 0)
            found = find_span(capture, begin, end, 0)
            if found is None:
                return
            assert found.proof.proven <= (not found.proof.lost)
            write_span(capture, found, cut)
    except TcpkmonError:
        return
    with open_capture(cut) as copy:
        assert len(copy) == found.stop - found.start


@cache
def _beside(owner: int) -> Path:
    from tests.fuzz.seeds import beside

    return beside(_folder(owner) / "beside.pm")


def joined(data: bytes) -> None:
    """A packet capture of anybody beside records; what comes out can be joined again."""
    from tcpkmon.formats.commands.join import command

    records, packets, out = _beside(os.getpid()), _stored(data), _fresh("joined")
    table = _fresh("table.csv")
    answer = ask(command, records, packets, "-o", out, "--table", table)
    answer.check((READ, FAILED, REFUSED, DAMAGED))
    was_made = answer.code == READ or "is joined" in answer.complaints
    assert out.exists() == table.exists() == was_made
    if out.exists():
        again = _fresh("again")
        assert ask(command, records, out, "-o", again).code == READ


def joined_records(data: bytes) -> None:
    """Records of anybody beside a packet capture."""
    from tcpkmon.formats.commands.join import command
    from tests.fuzz.seeds import packets

    _stored(packets(), "packets")
    beside = _folder(os.getpid()) / "packets"
    answer = ask(command, _stored(data), beside, "--table", _fresh("t.csv"))
    answer.check((READ, FAILED, REFUSED, LOST, DAMAGED))


@cache
def _dumps(owner: int) -> tuple[bytes, bytes]:
    from tests.fuzz.seeds import dumps

    first, second = dumps(_folder(owner) / "dumps")
    return first.read_bytes(), second.read_bytes()


def overlapping(data: bytes) -> None:
    """A dump in front of one that shares records with it, and behind one: read, or refused."""
    import tcpkmon

    first, second = _dumps(os.getpid())
    for files in ((data, second), (first, data)):
        folder = _fresh()
        folder.mkdir()
        for number, each in enumerate(files, 1):
            (folder / f"h-20261122T090000Z-{number:06}.pm").write_bytes(each)
        try:
            with tcpkmon.open(folder) as capture:
                assert len(capture.seq()) == len(capture)
                assert capture.lost >= 0
        except TcpkmonError:
            continue


def config(data: bytes) -> None:
    """A configuration is refused with all mistakes, or each capture of it can be made."""
    from tcpkmon.collector.daemon.config import check, make_capture
    from tcpkmon.collector.daemon.toml_files import MOST_TOLD, Sources, parse

    try:
        file = parse(Path("x.toml"), data)
        captures = check(Sources((file,), file.table))
    except TcpkmonError as error:
        assert all(error.lines()) and len(error.lines()) <= MOST_TOLD + 1
        return
    table = json.loads(json.dumps(file.table, allow_nan=False))
    for name, capture in captures.items():
        capture.request.filters.close()
        make_capture(name, table["capture"][name]).request.filters.close()


@cache
def _requests(owner: int) -> Any:
    """The daemon's socket, whose reload refuses."""
    from tcpkmon.collector.daemon.requests import Requests

    # For this alone: the live tests run in the same process as those that play the corpus.
    with patch.dict(os.environ, {"TCPKMON_RUN": os.fspath(_folder(owner) / "run")}):
        return Requests()


def daemon_request(data: bytes) -> None:
    """The daemon answers any line in JSON, and the next client too."""
    handlers: dict[str, Callable[[Any], None]] = {
        "status": lambda answer: answer({"pid": 1}),
        "reload": lambda answer: answer(UsageError("no")),
    }
    requests = _requests(os.getpid())
    for sent in (data, b'{"op": "status"}\n'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(os.fspath(requests._path))
            client.setblocking(False)
            requests.serve(handlers)
            answer = b""
            with suppress(BrokenPipeError, ConnectionResetError):
                for part in _parts(sent):
                    client.send(part)
                    requests.serve(handlers)
                client.shutdown(socket.SHUT_WR)
            requests.serve(handlers)
            with suppress(BlockingIOError, ConnectionResetError):
                answer = client.recv(1 << 16)
        assert not answer or json.loads(answer)["ok"] in (True, False)
    assert json.loads(answer) == {"ok": True, "result": {"pid": 1}}


def worker_message(data: bytes) -> None:
    """What a capture's process sends is taken, or the process is cut off; all can be told, and no
    descriptor stays. Each line is a message, with as many descriptors as there are b"+" before it.
    What it left is told to the next process."""
    from tcpkmon.collector.daemon.channel import pair
    from tcpkmon.collector.daemon.child import Child, State
    from tcpkmon.collector.daemon.held import Held
    from tcpkmon.collector.daemon.messages import Ear
    from tcpkmon.collector.daemon.systemd import Systemd
    from tcpkmon.collector.daemon.telling import Telling

    before = len(os.listdir("/proc/self/fd"))
    held = Held(Systemd({}), "a", {})
    child = Child("a", {"folder": "/", "table": {}}, None, held)
    child.state = _pick(data, (State.STARTING, State.ATTACHED))
    child._ear = Ear(trusted=child.state is State.STARTING)
    child.channel, theirs = pair()
    with socket.socket(fileno=os.dup(theirs.fileno())) as end, open(os.devnull) as file:
        theirs.close()
        for line in data.split(b"\n")[:100]:
            if child.channel is None:
                break
            with suppress(OSError):
                told = line.lstrip(b"+")
                socket.send_fds(end, [told], [file.fileno()] * min(len(line) - len(told), 253))
                child.hear()
            json.dumps([child.records, child.lost, held.state], allow_nan=False)
            Telling(Systemd({})).tell([child], True)
            assert all(len(text) < 2000 for text in child.said)
    child._hang_up()
    json.dumps({"parked": {"state": held.state, "names": [*held.fds]}})
    held.close()
    assert len(os.listdir("/proc/self/fd")) == before


def answer(data: bytes) -> None:
    """What a collector answers is shown, or refused in words."""
    from rich.console import Console

    from tcpkmon.collector.commands import openmetrics, status
    from tcpkmon.collector.commands.top_screen import Screen
    from tcpkmon.collector.control.client import making_sense, parse_answer

    try:
        found = parse_answer(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(found, dict):  # the client refuses it
        return
    text = io.StringIO()
    console = Console(file=text, width=100, markup=False, highlight=False)
    with suppress(TcpkmonError), making_sense():
        console.print(status.draw(found))
    screen = Screen()
    with suppress(TcpkmonError), making_sense():
        screen.take(found)
        console.print(screen.draw(100, 30))
    with suppress(TcpkmonError):
        openmetrics.check(found)
        assert all(openmetrics.make_metrics({"one": found, "other": found}, 0))
    assert not (bad := _CONTROL.search(text.getvalue())), f"not escaped: {bad}"


def groups(data: bytes) -> None:
    """What a file tells of control groups, its settings and then control entries; and the same
    bytes as a file in which Docker or Podman names containers."""
    from tcpkmon.collector.session.container_names import Names
    from tcpkmon.formats.base.group_names import MOST_GROUPS, group_of
    from tcpkmon.formats.base.whose import MOST_TEXT, GroupPart, Groups

    head, _, rest = data.partition(b"\n")
    try:
        settings = json.loads(head)
    except (ValueError, RecursionError):
        settings = None
    found = Groups(settings)
    for at in range(0, len(rest) - 43, 44):
        callvalue, *words = struct.unpack_from("<11I", rest, at)
        found.feed(GroupPart.from_words(callvalue, words))
    assert len(found) <= 4 * MOST_GROUPS and found.unknown >= 0
    for _, group in found.items():
        told = group.told()
        assert group_of(**told) == group and len(group.path) <= MOST_TEXT
    path = _stored(data)
    for name in ("docker-{}.scope", "libpod-{}.scope"):
        before = group_of("/" + name.format("0f" * 32))
        after = Names(lambda which, data: os.open(path, os.O_RDONLY)).of(before)
        assert all(isinstance(one, str) for one in after.told().values())
        assert after.path == before.path and len(after.container) <= 253


def control(data: bytes) -> None:
    """A client sends these bytes: the server answers in JSON or not at all, and lives on."""
    running = _server(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(30)
        client.connect(os.fspath(running.server.path))
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in _parts(data):
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
        answer = b""
        client.settimeout(0.001)
        while True:
            with suppress(BlockingIOError):
                os.eventfd_read(running.wake)
                running.server.serve_pending(_Controls())
            try:
                received = client.recv(1 << 16)
            except TimeoutError:
                assert running.server._thread.is_alive(), "the server's thread has ended"
                continue
            except ConnectionResetError:
                break
            if not received:
                break
            answer += received
    assert not answer or json.loads(answer)["ok"] in (True, False)


def _parts(data: bytes) -> Iterator[bytes]:
    """The input in one piece or in two."""
    at = _pick(data, (len(data), len(data) // 2))
    yield data[:at]
    if data[at:]:
        yield data[at:]


def lines(data: bytes) -> None:
    from tests.fuzz.line_cases import check_case

    check_case(int.from_bytes(data[:8].ljust(8, b"\0"), "big"))


def in_a_folder(module: str, check: str) -> Callable[[bytes], None]:
    """A function of a module of tests.fuzz: it takes the bytes, and a folder to work in."""

    def run(data: bytes) -> None:
        function = getattr(importlib.import_module(f"tests.fuzz.{module}"), check)
        function(data, _folder(os.getpid()) / f"{module}.{check}")

    return run


TARGETS = {
    "detect-psc": Target("psc", 60, detect),
    "verify-psc": Target("psc", 80, verify),
    "repair-psc": Target("psc", 20, repair),
    "anonymise-psc": Target("psc", 20, anonymised),
    "cut-psc": Target("psc", 20, cut),
    "csv-psc": Target("psc", 20, exporting("csv"), in_c=True),
    "json-psc": Target("psc", 20, exporting("json"), in_c=True),
    "spreadsheet": Target("psc", 10, exporting("spreadsheet"), in_c=True),
    "parquet-psc": Target("psc", 20, exporting("parquet")),
    "arrow-psc": Target("psc", 20, exporting("arrow"), in_c=True),
    "perfetto-psc": Target("psc", 10, exporting("perfetto")),
    "text": Target("psc", 40, drawing("-T"), in_c=True),
    "gaps": Target("psc", 30, drawing("-D")),
    "memory": Target("psc", 30, drawing("-M")),
    "terminal": Target("psc", 10, drawing(terminal=True)),
    "parameters": Target("psc", 5, by_parameter),
    "xgraph": Target("psc", 5, xgraph),
    "picture": Target("psc", 0.1, picture),
    "detect-klogger": Target("klogger", 30, detect),
    "verify-klogger": Target("klogger", 50, verify),
    "repair-klogger": Target("klogger", 20, repair),
    "anonymise-klogger": Target("klogger", 20, anonymised),
    "csv-klogger": Target("klogger", 10, exporting("csv"), in_c=True),
    "arrow-klogger": Target("klogger", 10, exporting("arrow")),
    "magnet-klogger": Target("klogger", 20, as_magnet),
    "perfetto-klogger": Target("klogger", 10, exporting("perfetto")),
    **{
        f"decode-{form}": Target("klogger", 15, decoding(form), in_c=form != "parquet")
        for form in DECODE
    },
    "folder": Target("klogger", 10, in_folder),
    "analysis": Target("klogger", 20, analysis),
    "detect-magnet": Target("magnet", 20, detect),
    "verify-magnet": Target("magnet", 50, verify),
    "json-magnet": Target("magnet", 10, exporting("json"), in_c=True),
    "arrow-magnet": Target("magnet", 10, exporting("arrow")),
    "perfetto-magnet": Target("magnet", 10, exporting("perfetto")),
    "decode-magnet": Target("magnet", 10, decoding("csv"), in_c=True),
    "magnet-table": Target("magnet", 20, magnet_table, in_c=True),
    "magnet-records": Target("magnet", 20, magnet_records, in_c=True),
    "latency": Target("klogger", 20, latency),
    "host": Target("klogger", 20, host),
    "disk": Target("klogger", 20, disk),
    "calls": Target("klogger", 20, calls),
    "why-klogger": Target("klogger", 10, why),
    "tables-psc": Target("psc", 5, tables),
    "tables-klogger": Target("klogger", 5, tables),
    "tables-magnet": Target("magnet", 5, tables),
    "why-psc": Target("psc", 20, why),
    "span": Target("psc", 20, span),
    "pcapng-psc": Target("psc", 20, exporting("pcapng")),
    "join-packets": Target("packets", 30, joined),
    "join-psc": Target("psc", 10, joined_records),
    "schema": Target("schema", 200, schema),
    "control": Target("control", 200, control),
    "groups": Target("groups", 20, groups),
    "trigger": Target("trigger", 50, trigger),
    "overlapping": Target("psc", 10, overlapping),
    "config": Target("config", 20, config),
    "daemon": Target("daemon", 10, daemon_request),
    "worker": Target("worker", 20, worker_message),
    "answer": Target("answer", 20, answer),
    "assertion": Target("assertion", 20, assertion),
    "fail-if": Target("fail-if", 20, fail_if),
    "where": Target("where", 20, where),
    "diff-psc": Target("psc", 10, compared),
    "diff-klogger": Target("klogger", 10, compared),
    "lines": Target("lines", 20, lines, in_c=True),
    "segments": Target("segments", 30, in_a_folder("segment_folders", "check")),
    "folders": Target("folders", 20, in_a_folder("folder_changes", "check_folder")),
    "archive": Target("archive", 20, in_a_folder("folder_changes", "check_archive")),
    "index": Target("index", 10, in_a_folder("folder_changes", "check_index")),
    "forgeries": Target("folders", 20, in_a_folder("forgeries", "check")),
}
