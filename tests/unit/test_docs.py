# SPDX-License-Identifier: Apache-2.0
"""The generated documentation: up to date, complete, and well-formed man pages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tcpkmon.collector.commands import collect, tcpkmon
from tcpkmon.collector.plan.columns import (
    EVENT,
    LOCATIONS,
    SETS,
    choose_columns,
    load_schema,
    make_layout,
)
from tcpkmon.formats.base.control import FIRST_CONTROL
from tcpkmon.formats.schema import field_type

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MAN = sorted(path.name.removesuffix(".1.in") for path in (DOCS / "man").glob("*.1.in"))


def run_docs(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs.py"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=200,
    )


def rows_of(name: str) -> dict[str, list[str]]:
    """The rows of the file's tables by the first cell that is code; cells without its marks."""
    rows: dict[str, list[str]] = {}
    for line in (DOCS / name).read_text().splitlines():
        if line.startswith("|"):
            cells = [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]
            key = next((part.strip("`") for part in cells if part.startswith("`")), None)
            if key is not None:
                rows.setdefault(key, cells)
    return rows


def test_what_is_generated_is_up_to_date() -> None:
    done = run_docs("--check")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_every_column_is_described() -> None:
    schema = load_schema()
    rows = rows_of("columns.md")
    fields = schema.event(EVENT).fields
    assert set(rows) == {field.name for field in fields}
    for field in fields:
        row = rows[field.name]
        assert row[1] == str(field_type(schema, field).width)
        assert row[3] == field.unit
        assert row[4].replace("&lt;", "<").replace("&gt;", ">") == field.doc
    assert rows["bytes_acked"][2:] == [
        "full", "bytes", "bytes the peer acknowledged", "", "`tcp_sock.bytes_acked`",
    ]  # fmt: skip
    assert rows["min_rtt_us"][5] == "4294967295" and rows["comm"][5] == "empty"


def test_the_sizes_of_records_that_texts_name() -> None:
    event = load_schema().event(EVENT)
    sizes = {
        name: make_layout(load_schema(), choose_columns(event, name), ()).entry_size
        for name in SETS
    }
    capturing = " ".join((DOCS / "capturing.md").read_text().split())
    for name in ("classic", "default", "full"):
        assert f"`{name}` ({sizes[name]} bytes" in capturing
    limits = (DOCS / "limits.md").read_text()
    assert f"A record of the default capture takes {sizes['default']} bytes" in limits


def test_every_location_is_described() -> None:
    rows = rows_of("locations.md")
    members = load_schema().enum(LOCATIONS).members
    assert set(rows) == {member.name for member in members}
    for member in members:
        row = rows[member.name]
        assert row[0] == str(member.value)
        if member.value < FIRST_CONTROL:
            assert row[2] == ("no" if "extra" in member.tags else "yes")
            assert re.fullmatch(r"(`\w+:\w+`(, )?)+", row[5]), row
    assert rows["LOSS_PROBE"][3:] == [
        "the tail loss probe's timer fired", "retransmissions so far",
        "`btf:timer_expire_entry`, `raw:timer_expire_entry`",
    ]  # fmt: skip
    assert rows["CHECKPOINT"] == ["228", "`CHECKPOINT`", "the ledger follows", "its number, from 0"]


def options_of(command: click.Command) -> set[str]:
    return {name for p in command.params if isinstance(p, click.Option) for name in p.opts}


@pytest.mark.parametrize("name", MAN)
def test_man_pages_name_every_option(name: str) -> None:
    command: click.Command = collect.command
    if name != "collect":
        command = tcpkmon.command
        for word in name.split("-")[1:]:
            assert isinstance(command, click.Group)
            command = tcpkmon.parts(command)[word]
    wanted = options_of(command)
    if isinstance(command, click.Group):
        for part in tcpkmon.parts(command).values():
            wanted |= options_of(part)
    text = (DOCS / "man" / f"{name}.1").read_text()
    plain = re.sub(r"\\f[BIR]", "", text).replace("\\-", "-")
    listed = set(re.findall(r"(?:^|, )(--?[A-Za-z0-9][\w-]*)(?=[ ,\n])", plain, re.MULTILINE))
    assert wanted <= listed
    assert "@" not in re.sub(r'\\"[^\n]*', "", text)


@pytest.mark.parametrize("name", [*MAN, "pmgraph"])
def test_man_pages_have_the_sections_of_one(name: str) -> None:
    text = (DOCS / "man" / f"{name}.1").read_text()
    assert re.search(rf"^\.TH {name.upper()} 1 ", text, re.MULTILINE)
    sections = re.findall(r'^\.SH "?([A-Z ]+)"?$', text, re.MULTILINE)
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
        assert section in sections
    assert re.search(rf"^\.SH NAME\n{name} \\- \S", text, re.MULTILINE)


@pytest.mark.parametrize("name", MAN)
@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_groff_has_nothing_to_say(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(DOCS / "man" / f"{name}.1")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
