# SPDX-License-Identifier: Apache-2.0
"""docs/then-and-now.md: every test, command, option, event and field that it names exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import click
import pytest

from tcpkmon.collector.commands import collect, tcpkmon
from tcpkmon.collector.plan.schema_sources import shipped_names
from tcpkmon.formats.history.names_1988 import NAMES
from tcpkmon.formats.schema import Schema, load

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "then-and-now.md"
SYSTEMS = ("MAGNeT", "The UBC event monitor", "The measurement system of HP-UX", "Klogger")
NONE = "Without meaning today: "
SCHEMATA = ROOT / "bpf" / "schemata"
EXPERIMENTS = {
    SYSTEMS[0]: ["M1 to M8"],
    SYSTEMS[1]: [f"U{number}" for number in range(1, 6)],
    SYSTEMS[2]: [f"H{number}" for number in range(1, 11)],
    SYSTEMS[3]: [],
}
WORDS = {
    "klogger()", "pid << 16 | priority << 8", "ring full", "find_stalls()", "open_log()",
    "without_collector()", "tcpkmon.collector.capturing", "x86_64", "arm64", "any", "PentiumIV",
}  # fmt: skip
"""Code that is none of the page's kinds; tests elsewhere use it."""


@cache
def rows() -> dict[str, list[tuple[str, str, str]]]:
    """The rows of each system: then, now, shown by."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    system = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            system = line[3:]
        elif line.startswith("| ") and not line.startswith(("| then |", "| --- |")):
            cells = [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 3, line
            found.setdefault(system, []).append((cells[0], cells[1], cells[2]))
    return found


@cache
def schemata() -> dict[str, Schema]:
    return {
        path.stem: load([path] if path.stem == "base" else [SCHEMATA / "base.conf", path])
        for path in SCHEMATA.glob("*.conf")
    }


@cache
def names() -> frozenset[str]:
    """Events, fields, and constants of enums."""
    found = set(shipped_names()) | set(NAMES.values())
    for schema in schemata().values():
        found |= {event.name for event in schema.events}
        found |= {field.name for event in schema.events for field in event.fields}
        found |= {name for enum in schema.enums for name in enum.names().values()}
    return frozenset(found)


def options(command: click.Command) -> set[str]:
    return {word for one in command.params for word in (*one.opts, *one.secondary_opts)}


def check_command(words: list[str]) -> None:
    """A command line: the command and its options exist."""
    command: click.Command = collect.command
    if words[0] == "tcpkmon":
        found = tcpkmon.parts(tcpkmon.command).get(words[1])
        assert found is not None, words
        command = found
        if isinstance(found, click.Group) and words[2] in found.commands:
            command = found.commands[words[2]]
    given = [word for word in words if re.fullmatch(r"--?[a-z][\w-]*", word)]
    assert set(given) <= options(command), (words, options(command))


def check_code(code: str) -> None:
    words = code.split()
    if words[0] in ("tcpkmon", "collect"):
        check_command(words)
    elif code.startswith(("tests/", "scripts/", "docs/")):
        assert (ROOT / code).is_file(), code
    elif code.startswith("--"):
        assert code in options(collect.command), code
    else:
        assert code.replace("\\", "") in names() | WORDS, code


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_row_works_or_says_why_not(system: str) -> None:
    assert list(rows()) == list(SYSTEMS)
    for then, now, shown in rows()[system]:
        if now.startswith(NONE):
            assert len(now) > len(NONE) + 10 and shown == "-", then
        else:
            files = re.findall(r"`([^`]+)`", shown)
            assert files, then
            assert all(re.fullmatch(r"tests/\w+/test_\w+\.py", one) for one in files), then
            assert re.sub(r"`[^`]+`|[, ]", "", shown) == "", then
        for code in re.findall(r"`([^`]+)`", f"{now} {shown}"):
            check_code(code)


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_experiment_is_there(system: str) -> None:
    text = [then for then, _, _ in rows()[system]]
    for name in EXPERIMENTS[system]:
        assert any(then.split(" ")[0] == name or then == name for then in text), name


def test_all_events_of_then_are_there() -> None:
    said = "\n".join(now for _, now, _ in rows()[SYSTEMS[2]])
    assert [event for event in NAMES if f"`{event}`" not in said] == []
    magnet = "\n".join(now for _, now, _ in rows()[SYSTEMS[0]])
    ours = {event.name for event in schemata()["magnet"].events}
    ours -= {event.name for event in schemata()["base"].events}
    assert [name for name in sorted(ours) if f"`{name}`" not in magnet] == []
