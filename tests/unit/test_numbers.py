# SPDX-License-Identifier: Apache-2.0
"""The numbers of locations, states and congestion states are written once: formats/base/tcp.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector.plan.columns import load_schema
from tcpkmon.formats.base import facts
from tcpkmon.formats.base.tcp import CA_STATES, CaState, Location, State

ROOT = Path(__file__).resolve().parents[2]
HOME = "formats/base/tcp.py"
OTHERS = {"formats/history/condense.py": "states of CPUs", "collector/lab/lab.py": "of neighbours"}
COMPARED = re.compile(
    r"""(?<![a-z])(?:location|state)["']?\]? (?:[=!<>]=|[<>]|in) [\[({]?[1-9]"""
    r"""|isin\([^(]*(?:location|state)["']?\]?, [\[({][1-9]|\b(?:ca_)?(?:location|state)=[1-9]"""
)
ASSIGNED = re.compile(r"""(?<![.\w])_?(?:TCP_)?([A-Z][A-Z_]+)["']?(?:: \w+ =| =|:) (\d+)\b""")
KEYED = re.compile(r"""\b(\d+): ["'](?:TCP_)?([A-Z_]+)["']""")
MEMBERS = {
    (name, number)
    for kind in (Location, State, CaState)
    for name, number in vars(kind).items()
    if name.isupper()
}


def members(kind: type) -> dict[str, int]:
    return {name: number for name, number in vars(kind).items() if name.isupper()}


@pytest.mark.parametrize(
    "kind, enum", [(Location, "location"), (State, "tcp_state"), (CaState, "ca_state")]
)
def test_the_numbers_are_those_of_the_schema(kind: type, enum: str) -> None:
    declared = next(one for one in load_schema().enums if one.name == enum)
    names = {one.name.removeprefix("TCP_").upper(): one.value for one in declared.members}
    assert members(kind) == names


def test_each_control_entry_has_its_own() -> None:
    controls = {n for n in members(Location).values() if n >= Location.START}
    assert {*facts.KINDS} == controls - {Location.EXISTING}
    assert [name.upper() for name in CA_STATES] == [*members(CaState)]


def literals(text: str) -> Iterator[int]:
    """The lines in which one of the numbers is written out."""
    for number, line in enumerate(text.splitlines(), 1):
        pairs = [(one[1], one[2]) for one in ASSIGNED.finditer(line)]
        pairs += [(one[2], one[1]) for one in KEYED.finditer(line)]
        if COMPARED.search(line) or any((name, int(value)) in MEMBERS for name, value in pairs):
            yield number


@pytest.mark.parametrize("room", ["collector", "formats", "scripts", "tcpkmon"])
def test_nobody_writes_the_numbers_out(room: str) -> None:
    files = [path for path in sorted((ROOT / room).glob("**/*.py")) if path.is_file()]
    assert files
    found = [
        f"{name}:{line}"
        for path in files
        if (name := str(path.relative_to(ROOT))) != HOME and name not in OTHERS
        and not name.startswith(("tcpkmon/collector", "tcpkmon/formats"))
        for line in literals(path.read_text())
    ]  # fmt: skip
    assert not found, f"of {HOME}: {', '.join(found)}"
