# SPDX-License-Identifier: Apache-2.0
"""Folders of segments that somebody rearranged, archives and indexes, as targets of fuzzing.

What verify passes is whole: as many records are read from it as were written.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.segments import INDEX
from tests.fuzz.mutate import change_json

Files = dict[str, bytes]


def read(folder: Path) -> Files:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


@cache
def templates() -> dict[str, tuple[Files, Files, int]]:
    """By name: the files of a folder, those of another capture of its kind, records."""
    from tests.fuzz.seeds import dumps
    from tests.unit.makers import make, make_logs
    from tests.unit.test_retention import archive

    def _dumps(path: Path, segments: int, count: int) -> None:
        dumps(path)

    found = {}
    with tempfile.TemporaryDirectory() as base:
        for name, write, packs in (
            ("psc", make, False), ("zst", make, True), ("logs", make_logs, False),
            ("dumps", _dumps, False),
        ):  # fmt: skip
            Path(base, name).mkdir()
            for part in ("one", "other"):
                write(Path(base, name, part), 3, 4)
                if packs:
                    archive(Path(base, name, part))
            one, other = read(Path(base, name, "one")), read(Path(base, name, "other"))
            found[name] = one, other, records_in(Path(base, name, "one"))
    return found


def records_in(folder: Path) -> int:
    """Records of events that readers find."""
    import tcpkmon

    with tcpkmon.open(folder) as reader:
        records = reader.for_export("arrow")
        return sum(t.num_rows for found in records.tables() for t in found.values())


def check_folder(data: bytes, folder: Path) -> None:
    """Rearrange a folder as these bytes say; verify must see it, or all must still be there."""
    from tcpkmon.formats.registry import format_of

    chance = random.Random(data)
    kind = chance.choice([*templates()])
    files, other, records = templates()[kind]
    files = dict(files)
    change_folder(files, other, chance)
    write(files, folder)
    codes, is_chain = {5}, False
    with suppress(TcpkmonError):
        reports = format_of(folder).verify(folder)
        json.dumps([report.as_json() for report in reports])
        codes = {report.exit_code for report in reports}
        is_chain = reports[-1].path == str(folder)
    found = -1
    with suppress(TcpkmonError):
        found = records_in(folder)
    is_whole = codes == {0} and is_chain
    assert not is_whole or found == records, (
        f"verify passed {found} of {records} records"
    )


def check_archive(data: bytes, folder: Path) -> None:
    """Read a file as what was archived: it comes out as it was, or is refused."""
    from tcpkmon.formats.base.files import open_plain, read_head
    from tcpkmon.formats.registry import format_of

    write({"x.pm": data}, folder)
    path = folder / "x.pm"
    with suppress(TcpkmonError), open_plain(path) as file:
        whole = file.read()
        assert read_head(path, 16) == whole[:16]
    with suppress(TcpkmonError):
        json.dumps([report.as_json() for report in format_of(path).verify(path)])


def check_index(data: bytes, folder: Path) -> None:
    """Any index: verify says something of the folder, and never more than there is."""
    from tcpkmon.formats.registry import format_of

    files, _, records = templates()["psc"]
    write({**files, INDEX: data}, folder)
    reports = format_of(folder).verify(folder)
    json.dumps([report.as_json() for report in reports])
    assert reports[3].totals.in_file == records


@cache
def _small() -> list[bytes]:
    from tests.fuzz.seeds import seeds

    return [seeds("psc")[name] for name in ("few", "small", "LITTLE")]


def archives() -> Iterator[tuple[str, bytes]]:
    """Seeds of check_archive()."""
    import pyarrow

    with tempfile.TemporaryDirectory() as base:
        packed = Path(base, "x.zst")
        for number, data in enumerate(_small()):
            with pyarrow.CompressedOutputStream(str(packed), "zstd") as out:
                out.write(data)
            yield f"zstd-{number}", packed.read_bytes()


def indexes() -> Iterator[tuple[str, bytes]]:
    """Seeds of check_index()."""
    for name in ("psc", "zst"):
        yield name, templates()[name][0][INDEX]


def write(files: Files, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        with suppress(OSError):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)


# What is done to a folder.


def change_folder(files: Files, other: Files, chance: random.Random) -> None:
    """Rearrange it, in one to three steps. other: a capture from which segments come."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice(_CHANGES)(files, other, chance)


def _segments(files: Files) -> list[str]:
    return sorted({name.split("/")[0] for name in files if name != INDEX})


def _take(files: Files, segment: str) -> Files:
    """The files of a segment, by what follows its name."""
    chosen = [name for name in files if name == segment or name.startswith(f"{segment}/")]
    return {name[len(segment) :]: files.pop(name) for name in chosen}


def _put(files: Files, segment: str, content: Files) -> None:
    files.update({segment + name: data for name, data in content.items()})


def _remove(files: Files, other: Files, chance: random.Random) -> None:
    if names := _segments(files):
        _take(files, chance.choice(names))


def _swap(files: Files, other: Files, chance: random.Random) -> None:
    names = _segments(files)
    if len(names) > 1:
        one, two = chance.sample(names, 2)
        first, second = _take(files, one), _take(files, two)
        _put(files, one, second)
        _put(files, two, first)


def _double(files: Files, other: Files, chance: random.Random) -> None:
    if names := _segments(files):
        name = chance.choice(names)
        content = _take(files, name)
        _put(files, name, content)
        _put(files, _renamed(name, chance), content)


def _rename(files: Files, other: Files, chance: random.Random) -> None:
    if names := _segments(files):
        name = chance.choice(names)
        _put(files, _renamed(name, chance), _take(files, name))


def _renamed(name: str, chance: random.Random) -> str:
    number = chance.choice(("000001", "000002", "000004", "000009", "999999999999"))
    parts = name.split("-")
    end = parts[-1].partition(".")[2]
    found = "-".join([*parts[:-1], f"{number}.{end}"])
    return f".{found.lstrip('.')}.part" if chance.random() < 0.2 else found


def _foreign(files: Files, other: Files, chance: random.Random) -> None:
    names = _segments(files)
    if names:
        _take(files, name := chance.choice(names))
        _put(files, name, _take(dict(other), chance.choice(_segments(other))))


def _cut_out(files: Files, other: Files, chance: random.Random) -> None:
    """A file out of which entries are cut, numbered anew: see tests/unit/test_cut.py."""
    from tests.unit.test_cut import cut_log, cut_psc

    ways: dict[str, Callable[[Path], Iterator[Any]]] = {
        ".pm": cut_psc, ".cpu0": cut_log, ".cpu1": cut_log,
    }  # fmt: skip
    names = [name for name in files if Path(name).suffix in ways]
    if not names:
        return
    name = chance.choice(names)
    with tempfile.TemporaryDirectory() as base:
        path = Path(base, Path(name).name)
        path.write_bytes(files[name])
        with suppress(TcpkmonError, IndexError, ValueError):
            found = [data for cut, data in ways[Path(name).suffix](path) if cut.records]
            files[name] = chance.choice(found)


def _index(files: Files, other: Files, chance: random.Random) -> None:
    """Lines of the index lost, doubled or changed; none says that something was deleted."""
    lines = files.get(INDEX, b"").splitlines(keepends=True)
    if not lines:
        return
    at = chance.randrange(len(lines))
    what = chance.randrange(4)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(chance.randrange(len(lines) + 1), lines[at])
    elif what == 2:
        lines = []
    else:
        with suppress(ValueError):
            values = json.loads(lines[at])
            change_json(values, chance)
            if isinstance(values, dict) and values.get("what") != "deleted":
                lines[at] = json.dumps(values).encode() + b"\n"
    files[INDEX] = b"".join(lines)


def _bytes(files: Files, other: Files, chance: random.Random) -> None:
    """A file cut short, or emptied."""
    names = [name for name in files if name != INDEX]
    if names:
        name = chance.choice(names)
        files[name] = files[name][: chance.choice((0, chance.randrange(len(files[name]) + 1)))]


_CHANGES = (
    _remove, _swap, _double, _rename, _foreign, _cut_out, _cut_out, _index, _index, _bytes,
)  # fmt: skip
