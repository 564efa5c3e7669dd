# SPDX-License-Identifier: Apache-2.0
"""Kept captures that somebody forged, as a target of fuzzing: files, archives, dumps, folders.

Records go or come twice, and what counts them is rewritten, in the file, its archive and its index,
but for some places. Where one of these tells it, verify does not end with 0, and no reader does.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow

from tcpkmon.formats.base.segments import INDEX
from tests.fuzz.folder_changes import Files, change_folder, read, write
from tests.fuzz.mutate import mutate
from tests.kept.make import unpack
from tests.unit.forging import LOG_PLACES, PLACES, LogFile, PscFile

KEPT = (
    "psc-plain", "psc-rotated", "psc-recorded", "psc-zst",
    "klogger-plain", "klogger-rotated", "klogger-recorded",
)  # fmt: skip
_KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "psc": (PscFile, PLACES), "klogger": (LogFile, LOG_PLACES),
}  # fmt: skip
_ON_THEIR_WAY = frozenset(("written", "attempts", "serials", "read"))
"""Of a dump these are counted after the end of its window: see docs/verify.md."""
_DRAWS_LOSSES = "pmgraph"
"""It ends with 0 for a file with losses, as it did in 2000."""


@dataclass
class Forged:
    """files: by name. left: what was not rewritten. is_told: something that was left tells it."""

    name: str
    files: Files
    is_told: bool = False
    left: list[str] = field(default_factory=list)


def check(data: bytes, folder: Path) -> None:
    """Forge a capture as these bytes say. What verify does not pass, a reader does not."""
    from tcpkmon.formats.commands import verify
    from tests.fuzz.targets import Answer, ask

    chance = random.Random(data)
    forged = forge(chance)
    write(forged.files, folder)
    is_file = forged.name == "psc-plain"
    path = folder / next(iter(forged.files)) if is_file else folder
    found: Answer = ask(verify.command, *chance.choice(([], ["--json"])), path)
    found.check((0, 1, 3, 5))
    assert found.code or not forged.is_told, f"verify passed {forged.name}: left {forged.left}"
    name, command, words = chance.choice(_readers(forged.name))
    read_: Answer = ask(command, *words, path).check((0, 1, 2, 3, 5, 6))
    may_pass = found.code == 0 or (name == _DRAWS_LOSSES and path.is_file() and found.code == 3)
    assert read_.code or may_pass, f"{name} passed what verify ends with {found.code} for"


def _readers(name: str) -> list[tuple[str, Any, list[str]]]:
    from tcpkmon.formats.commands import (
        check,
        connections,
        decode,
        diff,
        export,
        latency,
        pmgraph,
        requests,
        why,
    )

    as_rows = ("export", export.command, ["--format", "csv"])
    talks = [
        ("why", why.command, []), ("connections", connections.command, []),
        ("requests", requests.command, []),
    ]  # fmt: skip
    logs = [("decode", decode.command, ["--format", "csv"]), as_rows]
    return {
        "psc": [*talks, as_rows, (_DRAWS_LOSSES, pmgraph.command, ["-T"]),
                ("check", check.command, ["no_loss"]), ("diff", diff.command, [str(_sound())])],
        "klogger": [*talks, *logs, ("latency", latency.command, [])],
    }[name.partition("-")[0]]  # fmt: skip


@cache
def _sound() -> Path:
    from tests.fuzz import targets

    return targets.sound()


@cache
def _kept(name: str) -> Files:
    """The files of a capture; archives as well."""
    with tempfile.TemporaryDirectory() as base:
        unpack(name, Path(base))
        found = read(Path(base))
    return {file.removeprefix(f"{name}/"): data for file, data in found.items()}


def forge(chance: random.Random) -> Forged:
    """A kept capture with one file forged; of a folder, also rearranged at times."""
    name = chance.choice(KEPT)
    forged = Forged(name, dict(_kept(name)))
    if chance.random() < 0.8:
        _forge_file(forged, chance)
    else:  # anything, with checksums that are right
        which = chance.choice([*forged.files])
        forged.files[which] = mutate(forged.files[which], (), chance, 1 << 20)
    if INDEX in forged.files and chance.random() < 0.3:
        change_folder(forged.files, dict(_kept(chance.choice(KEPT))), chance)
        forged.is_told = False  # what told it may be gone
    return forged


def _forge_file(forged: Forged, chance: random.Random) -> None:
    make, places = _KINDS[forged.name.partition("-")[0]]
    names = [one for one in forged.files if one != INDEX]
    which = chance.choice(names)
    before, packing = _unpacked(which, forged.files[which])
    file = make(before)
    count = len(file.records)
    if not count:
        return
    drops = chance.random() < 0.6
    some = chance.sample(range(count), min(count, chance.choice((1, 1, 2, 5, 20, 70, count))))
    (file.drop if drops else file.double)(some)
    left = set(chance.sample(places, chance.choice((0, 0, 1, 1, 2, len(places)))))
    data = file.encode(left)
    hidden = left & _ON_THEIR_WAY if "recorded" in forged.name else set()
    forged.left, forged.is_told = sorted(left), data != file.encode(hidden)
    is_last = which.split("/")[0] == max(names).split("/")[0]
    forged.is_told |= forged.name.endswith(("rotated", "zst")) and not is_last
    old, forged.files[which] = forged.files[which], (packed := _packed(data, packing))
    if INDEX in forged.files:
        more = -len(some) if drops else len(some)
        sizes = len(data) - len(before), len(packed) - len(old)
        forged.is_told |= not _index(forged, which, more, sizes, data, chance)


def _unpacked(name: str, data: bytes) -> tuple[bytes, str]:
    from tcpkmon.formats.base.files import open_plain

    suffix = Path(name).suffix
    if suffix != ".zst":
        return data, ""
    with tempfile.TemporaryDirectory() as base:
        path = Path(base, "x")
        path.write_bytes(data)
        with open_plain(path) as file:
            return file.read(), suffix


def _packed(data: bytes, suffix: str) -> bytes:
    if not suffix:
        return data
    with tempfile.TemporaryDirectory() as base:
        packed = Path(base, "x")
        with pyarrow.CompressedOutputStream(str(packed), "zstd") as out:
            out.write(data)
        return packed.read_bytes()


def _index(
    forged: Forged, which: str, more: int, sizes: tuple[int, int], data: bytes,
    chance: random.Random,
) -> bool:
    """Rewrite its lines of a segment; whether all was rewritten that counts its records."""
    left = {word for word in ("records", "bytes", "sha256") if chance.random() < 0.2}
    segment = which.split("/", 1)[0]
    plain = re.sub(r"\.zst$", "", segment)
    lines, counts = [], set[str]()
    for line in forged.files[INDEX].splitlines():
        told = json.loads(line)
        if told["name"] in (segment, plain):
            new = {
                "records": told.get("records", 0) + more,
                "bytes": told["bytes"] + sizes[told["what"] == "archived"],
                "sha256": hashlib.sha256(data).hexdigest(),
            }
            counts |= told.keys() & left
            told |= {key: new[key] for key in new.keys() & told.keys() - left}
        lines.append(json.dumps(told).encode() + b"\n")
    forged.left += [f"index: {word}" for word in sorted(counts)]
    forged.files[INDEX] = b"".join(lines)
    return "records" not in counts and "sha256" not in counts
