# SPDX-License-Identifier: Apache-2.0
"""The limits of formats/base/limits.py at their edges: the last that is read, the first refused."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.analysis import disk, open_log, queues
from tcpkmon.formats.base import cli, files, limits, segments
from tcpkmon.formats.base.errors import DamagedError, FileError, SchemaError, UsageError
from tcpkmon.formats.base.files import open_plain, read_head
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.commands import pmgraph as pmgraph_command
from tcpkmon.formats.klogger import LogReader
from tcpkmon.formats.klogger.encode import DUMP_HEAD, DUMP_MAGIC, HEAD_CRC_AT, encode_preamble
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.klogger.walk import DumpWalk
from tcpkmon.formats.pmgraph import connections, xgraph
from tcpkmon.formats.pmgraph import pages as pages_module
from tcpkmon.formats.pmgraph.connections import find_connections
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import build_pages
from tcpkmon.formats.psc.header import decode_header
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.schema import Suggestions, parse
from tcpkmon.formats.verify import chain
from tcpkmon.formats.verify.report import Problems
from tests.unit.log_files import LogMaker, sample_header
from tests.unit.makers import make as make_segments
from tests.unit.psc_files import END, Builder, describe, entry_size, record
from tests.unit.test_disk_analysis import write as write_disk_log

DOCS = Path(__file__).parents[2] / "docs" / "limits.md"


def test_every_limit_is_in_the_documentation() -> None:
    rows = re.findall(r"^\| `(MOST_\w+)` \| ([0-9,]+) ", DOCS.read_text(), re.MULTILINE)
    documented = {name: int(number.replace(",", "")) for name, number in rows}
    assert documented == {n: v for n, v in vars(limits).items() if n.startswith("MOST_")}


def test_schema_bytes() -> None:
    text = "event A { int x }".ljust(limits.MOST_SCHEMA_BYTES)
    assert len(parse(text).events) == 1
    with pytest.raises(SchemaError, match=f"at most {limits.MOST_SCHEMA_BYTES} characters"):
        parse(text + " ")


def test_fields_from_groups() -> None:
    group = f"fields f {{ {' '.join(f'int x{n}' for n in range(256))} }}\n"
    events = [f"event e{n} {{ fields f }}\n" for n in range(limits.MOST_GROUP_FIELDS // 256)]
    text = group + "".join(events)
    assert len(parse(text).events) == len(events)
    with pytest.raises(SchemaError, match=f"at most {limits.MOST_GROUP_FIELDS} fields from"):
        parse(text + "event last { fields f }")


def test_schema_problems() -> None:
    lines = [f"event e{number} {{ no_type x }}" for number in range(limits.MOST_SCHEMA_PROBLEMS)]
    for text in ("\n".join(lines), "\n".join([*lines, "event last { no_type x }"])):
        with pytest.raises(SchemaError) as caught:
            parse(text)
        assert len(caught.value.problems) == limits.MOST_SCHEMA_PROBLEMS


def test_suggestions() -> None:
    several = Suggestions()
    found = [several.suggest("stat", ["state"]) for _ in range(limits.MOST_SUGGESTIONS + 1)]
    assert found == [" (did you mean 'state'?)"] * limits.MOST_SUGGESTIONS + [""]


def test_candidates_of_a_suggestion() -> None:
    others = ["q"] * (limits.MOST_CANDIDATES - 1)
    assert suggest("stat", [*others, "state"])
    assert not suggest("stat", ["q", *others, "state"])
    name = "x" * (limits.MOST_SIMILAR_CHARACTERS - 1)
    assert suggest(name, [name + "y"])
    assert not suggest(name, [name + "yy"])
    assert not suggest(name + "yy", [name])


def test_psc_header_records_and_columns() -> None:
    def header(records: int, columns: int) -> bytes:
        names = b"".join(describe(f"c{n}", n, 1) for n in range(columns))
        fill = record(99, b"") * (records - columns - 2)
        return entry_size(columns) + names + fill + END

    for records, columns in ((limits.MOST_HEADER_RECORDS, 4), (5000, limits.MOST_COLUMNS)):
        data = header(records, columns)
        assert len(decode_header(data, len(data))[0].columns) == columns
    data = header(limits.MOST_HEADER_RECORDS + 1, 4)
    with pytest.raises(DamagedError, match="more than 65536 records"):
        decode_header(data, len(data))
    data = header(5000, limits.MOST_COLUMNS + 1)
    with pytest.raises(DamagedError, match="more than 4096 columns"):
        decode_header(data, len(data))


@pytest.mark.parametrize("beyond", [0, 1])
def test_psc_settings(tmp_path: Path, beyond: int) -> None:
    text = '{"a": 1'.ljust(limits.MOST_SETTINGS_CHARACTERS - 1 + beyond) + "}"
    parts = [text[at : at + 65000].encode() for at in range(0, len(text), 65000)]
    data = entry_size(4) + describe("c", 0, 4) + b"".join(record(0x104, p) for p in parts) + END
    path = tmp_path / "s.pm"
    path.write_bytes(data)
    with tcpkmon.open(path) as found:
        assert found.settings == ({} if beyond else {"a": 1})
        assert bool(found.warnings) == bool(beyond)


@pytest.mark.parametrize("beyond", [0, 8])
def test_log_header_bytes(tmp_path: Path, beyond: int) -> None:
    def padded(size: int) -> dict[str, Any]:
        header = sample_header("event A { int a }", settings={"pad": ""})
        room = size - (len(encode_preamble(header)) - 24)
        return {**header, "settings": {"pad": "x" * room}}

    most = limits.MOST_LOG_HEADER_BYTES
    maker = LogMaker("event A { int a }")
    maker.header = padded(most)
    data = maker.add("A", {}).data()
    assert struct.unpack_from("=I", data, 8)[0] == most
    path = tmp_path / "log"
    if not beyond:
        path.write_bytes(data)
        assert len(list(LogReader(path).batches())) == 1
        return
    with pytest.raises(UsageError, match="larger than"):
        encode_preamble(padded(most + 8))
    text = data[24 : 24 + most] + b" " * 8
    start = data[:8] + struct.pack("=IIQ", len(text), zlib.crc32(text), 0)
    path.write_bytes(start + text + data[24 + most :])
    with pytest.raises(DamagedError, match="too large"):
        LogReader(path)


def field(name: str, offset: int = 0, length: int = 1) -> dict[str, Any]:
    return {"name": name, "kind": "bytes", "offset": offset, "length": length, "type": "t"}


def read_event(fields: list[dict[str, Any]], size: int, name: str = "E") -> LogFormat:
    header = sample_header("event A { int a }")
    event = {"number": 200, "name": name, "size": size, "fields": fields}
    return LogFormat.of({**header, "events": [*header["events"], event]})


def test_fields_names_and_payload_of_a_log() -> None:
    for most, make in (
        (limits.MOST_FIELDS, lambda n: read_event([field(str(i), i) for i in range(n)], 8192)),
        (limits.MOST_NAME_CHARACTERS, lambda n: read_event([], 8, "n" * n)),
        (limits.MOST_NAME_CHARACTERS, lambda n: read_event([field("n" * n)], 8)),
        (limits.MOST_PAYLOAD_BYTES, lambda n: read_event([], (n + 7) // 8 * 8)),
    ):
        make(most)
        with pytest.raises(DamagedError, match="no good"):
            make(most + 1)


def test_dump_bytes() -> None:
    def walk(body: int) -> str:
        data = bytearray(DUMP_HEAD.pack(DUMP_MAGIC, 0, 1, body, 1, 0, 0, 0))
        struct.pack_into("=I", data, HEAD_CRC_AT, zlib.crc32(data[:HEAD_CRC_AT]))
        found = DumpWalk(lambda at, size: bytes(data[at : at + size]), 0, len(data), "<")
        assert not list(found)
        return str(found.damage[0])

    assert "is cut off" in walk(limits.MOST_DUMP_BYTES)
    assert "senseless size" in walk(limits.MOST_DUMP_BYTES + 8)


@pytest.mark.parametrize("beyond", [0, 1])
def test_damage_of_a_log_that_is_named(tmp_path: Path, beyond: int) -> None:
    maker = LogMaker()
    for _ in range(limits.MOST_DAMAGE + beyond):
        maker.add("SCHEDOUT", {"pid": 1}).end_dump()
    data = bytearray(encode_preamble(maker.header))
    for dump in maker.dumps:
        data += dump[:-1] + bytes([dump[-1] ^ 1])
    path = tmp_path / "log"
    path.write_bytes(data)
    with LogReader(path) as reader:
        assert not list(reader.batches())
        assert len(reader.problems) == limits.MOST_DAMAGE
        assert reader.damage.endswith("and 1 more") == bool(beyond)


def test_problems_that_verify_names() -> None:
    problems = Problems(0, 64)
    for entry in range(limits.MOST_ENTRIES + 1):
        assert len(problems.listed) == min(entry, limits.MOST_PROBLEMS)
        assert len(problems.entries) == entry
        problems.add(entry, "wrong")
    assert len(problems.entries) == limits.MOST_ENTRIES
    assert problems.total == limits.MOST_ENTRIES + 1


def many(path: Path, count: int, same_ports: bool = False) -> Path:
    """A capture of as many connections, of one record each."""
    builder = Builder(tcpkmon=True)
    builder.add(0.5, 7, 8, conn_id=1)
    data = np.tile(np.frombuffer(builder.entry(builder.rows[1]), np.uint8), (count, 1))
    numbers = np.arange(1, count + 1)
    data[:, 72:80] = numbers.astype("<u8").view(np.uint8).reshape(count, 8)
    if not same_ports:
        data[:, 20:22] = (numbers % 60000 + 1).astype(">u2").view(np.uint8).reshape(count, 2)
    path.write_bytes(builder.header() + builder.entry(builder.rows[0]) + data.tobytes())
    return path


def test_connections_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 30)
    with tcpkmon.open(many(tmp_path / "a.pm", 30)) as capture:
        assert len(find_connections(capture)) == 30
    with tcpkmon.open(many(tmp_path / "b.pm", 31)) as capture:
        with pytest.raises(FileError, match="more than 30 connections; -p chooses"):
            find_connections(capture)
        assert len(find_connections(capture, [(2, 8)])) == 1


def test_connections_that_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Selection(columns=("snd_cwnd",), connections=((7, 8),))
    for most, selection in (
        (limits.MOST_DRAWN, Selection(columns=("snd_cwnd",))),
        (limits.MOST_DRAWN_CHOSEN, chosen),
    ):
        for beyond in (0, 1):
            path = many(tmp_path / "a.pm", most + beyond, same_ports=True)
            with tcpkmon.open(path) as capture:
                pages, notes = build_pages(capture, selection, 100)
            assert len(pages) == most
            assert len(notes) == beyond
    monkeypatch.setattr(pages_module, "MOST_DRAWN", 3)
    with tcpkmon.open(path) as capture:
        assert len(build_pages(capture, Selection(columns=("snd_cwnd",)), 100)[0]) == 3


def test_connections_that_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (xgraph, pmgraph_command):
        monkeypatch.setattr(module, "MOST_LISTED", 5)
    for beyond in (0, 1):
        many(tmp_path / "a.pm", 5 + beyond)
        for args in (["-x", "-c"], ["-x", "-c", "-P"]):
            code = cli.run(pmgraph_command.command, ["a.pm", *args, "--force"], prog="pmgraph")
            assert code == (2 if beyond else 0)
        capfd.readouterr()
        cli.run(pmgraph_command.command, ["a.pm", "-d", "-D"], prog="pmgraph")
        told = capfd.readouterr().err
        assert told.count(" 1 records") == 5
        assert ("and 1 more connections" in told) == bool(beyond)


@pytest.mark.parametrize("beyond", [0, 1])
def test_requests_in_a_rebuilt_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    monkeypatch.setattr(disk, "MOST_QUEUED", 5)
    inserts = [(n, "INSERT", {"request": n}) for n in range(1, 6 + beyond)]
    with open_log(write_disk_log(tmp_path, inserts)) as log:
        if beyond:
            with pytest.raises(DamagedError, match="more than 5 requests wait"):
                list(queues(log))
        else:
            assert len(list(queues(log))) == 5


@pytest.mark.parametrize("more", [0, 1])
def test_zstd_stops_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr(files, "FEW_UNPACKED_BYTES", 1 << 22)
    monkeypatch.setattr(files, "MOST_UNPACKED_TIMES", 1)
    path = tmp_path / "x.pm.zst"
    with pyarrow.CompressedOutputStream(str(path), "zstd") as out:
        out.write(bytes((1 << 22) + more))
    if not more:
        open_plain(path).close()
        return
    with pytest.raises(DamagedError, match="but holds more than 4194304"):
        open_plain(path)
    assert read_head(path, 99) == bytes(99)  # no more is unpacked than it takes


def test_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_segments(tmp_path / "out", 1, 9)
    index = tmp_path / "out" / segments.INDEX
    line = json.loads(index.read_text())
    text = json.dumps({**line, "why": ""})
    for more, found in ((0, 1), (1, 0)):
        rest = limits.MOST_INDEX_LINE - len(text) - 1 + more
        index.write_text(json.dumps({**line, "why": "x" * rest}) + "\n")
        assert len([*segments.read_index(index.parent)[0]]) == found
    most = 5
    monkeypatch.setattr(chain, "MOST_INDEX_CAPTURES", most)
    for more, code in ((0, 0), (1, 5)):
        others = [{**line, "what": "deleted", "capture": f"{n:032x}"} for n in range(most + more)]
        index.write_text("".join(json.dumps(one) + "\n" for one in (line, *others[1:])))
        reports = format_of(index.parent).verify(index.parent)
        assert max(report.exit_code for report in reports) == code
