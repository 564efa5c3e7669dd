# SPDX-License-Identifier: Apache-2.0
"""Folders of segments as inputs of fuzzing: one file that holds them, and what is asked of them.

    u16 length of the name, name, u32 length, bytes    for each file of the folder
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tcpkmon.formats.base.errors import TcpkmonError
from tests.fuzz.mutate import mend

READ, LOST, DAMAGED = 0, 3, 5
_NAME = re.compile(r"[\w.-]{1,80}(/kernlog\.dump\.cpu\d)?\Z", re.ASCII)


def pack(folder: Path) -> bytes:
    """A folder as one input."""
    found = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        name, data = str(path.relative_to(folder)).encode(), path.read_bytes()
        found.append(struct.pack("<H", len(name)) + name + struct.pack("<I", len(data)) + data)
    return b"".join(found)


def unpack(data: bytes, folder: Path) -> None:
    """Make the folder; what has no name of a segment's file is left out."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    at = 0
    while at + 2 <= len(data):
        (length,) = struct.unpack_from("<H", data, at)
        name = data[at + 2 : at + 2 + length].decode("latin-1")
        at += 2 + length
        if at + 4 > len(data):
            return
        (length,) = struct.unpack_from("<I", data, at)
        content = data[at + 4 : at + 4 + length]
        at += 4 + length
        if not _NAME.match(name) or name.strip(".") == "":
            continue
        path = folder / name
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(mend(content))


def seeds() -> Iterator[tuple[str, bytes]]:
    """Of each format, with a loss; one that lacks a segment; a dump."""
    from tests.unit.makers import make, make_logs
    from tests.unit.test_recorder import last_second

    with tempfile.TemporaryDirectory() as base:
        for name, write in (
            ("psc", lambda path: make(path, 3, 4, 1)),
            ("logs", lambda path: make_logs(path, 3, 4, 1)),
            ("clean-logs", lambda path: make_logs(path, 2, 3)),
            ("states", _with_states),
        ):
            write(Path(base, name))
            yield name, pack(Path(base, name))
        shutil.rmtree(next(Path(base, "logs").glob("*-000002.klog")))
        yield "missing", pack(Path(base, "logs"))
        made = last_second(Path(base, "dump"))
        for _ in range(3):
            made.second(3)
        made.stream.ask()
        made.second(3)
        made.close()
        yield "dump", pack(Path(base, "dump"))


def _with_states(path: Path) -> None:
    """Segments that repeat what earlier ones know of open connections."""
    from tests.unit.makers import Maker

    maker = Maker(path)
    for _ in range(3):
        maker.columns = {"conn_id": [7, 9, 7, 12]}
        maker.records(4)
        maker.rotate()
    maker.close()


def check(data: bytes, folder: Path) -> None:
    """Verify, open and decode a folder; what verify passes has no loss."""
    import tcpkmon
    from tcpkmon.formats.registry import format_of, open_sources

    unpack(data, folder)
    codes = set()
    with suppress(TcpkmonError):
        reports = format_of(folder).verify(folder)
        json.dumps([report.as_json() for report in reports])
        codes = {report.exit_code for report in reports}
        is_chain = reports[-1].path == str(folder)
    with suppress(TcpkmonError):
        for source in open_sources(folder):
            with source:
                serial = 0
                for batch in source.batches():
                    assert int(batch.serials[0]) > serial
                    serial = int(batch.serials[-1])
    with suppress(TcpkmonError), tcpkmon.open(folder) as reader:
        for tables in reader.for_export("parquet").tables():
            assert all(table.num_rows >= 0 for table in tables.values())
        state = reader.lost, reader.damaged, reader.complete
        if codes == {READ} and is_chain:
            assert state == (0, False, True), f"verify passed what says {state}"
