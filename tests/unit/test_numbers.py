# SPDX-License-Identifier: Apache-2.0
"""The numbers of locations, states and congestion states are written once: formats/base/tcp.py."""

from __future__ import annotations

import ast
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
COLUMN = re.compile(r"(^|_)(location|state|ca_state)$")
"""What an expression is called that holds one of the numbers."""
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


def numbers_in(node: ast.expr | None) -> list[int]:
    """The integers that an expression has written out: alone, or in a tuple, list, set or dict."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [node.value]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [number for one in node.elts for number in numbers_in(one)]
    if isinstance(node, ast.Dict):
        return [number for one in node.keys for number in numbers_in(one)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):  # frozenset((1, 21))
        return [number for one in node.args for number in numbers_in(one)]
    return []


def is_column(node: ast.expr) -> bool:
    """Whether it is called as a column of these numbers is."""
    if isinstance(node, ast.Subscript):
        key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return COLUMN.search(key.value) is not None
        return is_column(node.value)
    if isinstance(node, ast.Attribute):
        return COLUMN.search(node.attr) is not None
    return isinstance(node, ast.Name) and COLUMN.search(node.id) is not None


def is_member(name: object, number: object) -> bool:
    return isinstance(name, str) and (
        (name.strip("_").removeprefix("TCP_").upper(), number) in MEMBERS
    )


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr, int]]:
    """Names and what is assigned to them, one by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, value, node.lineno
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                for one, its in zip(target.elts, value.elts, strict=False):
                    if isinstance(one, ast.Name):
                        yield one.id, its, node.lineno


def literals(text: str) -> list[int]:
    """The lines in which one of the numbers is written out."""
    tree, found = ast.parse(text), set[int]()
    constants: dict[str, list[int]] = {}
    for name, value, line in assigned(tree):
        numbers = constants.setdefault(name, numbers_in(value))
        is_column_itself = name in ("location", "state", "ca_state") and any(numbers)
        if is_column_itself or (len(numbers) == 1 and is_member(name, numbers[0])):
            found.add(line)

    def written(node: ast.expr) -> bool:
        numbers = constants.get(node.id, []) if isinstance(node, ast.Name) else numbers_in(node)
        return any(number > 0 for number in numbers)

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in ("isin", "get"):
                continue
            sides = [node.func.value, *node.args]
        elif isinstance(node, ast.Subscript) and is_column(node.slice):  # NAMES[location]
            sides = [node.value, node.slice]
        elif isinstance(node, ast.keyword):
            if node.arg in ("location", "state", "ca_state") and written(node.value):
                found.add(node.value.lineno)
            continue
        elif isinstance(node, ast.Dict):
            for key, its in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(its, ast.Constant):
                    pair = key.value, its.value
                    if is_member(*pair) or is_member(*pair[::-1]):
                        found.add(key.lineno)
            continue
        else:
            continue
        if any(map(is_column, sides)) and any(map(written, sides)):
            found.add(node.lineno)
    return sorted(found)


@pytest.mark.parametrize(
    "text",
    [
        'rows["location"] == 4', "state != 1", "self.ca_state >= 3", 'row["state"] in (1, 4, 5)',
        "_SYN_SENT, _CLOSE = 2, 7", "TCP_LISTEN: int = 10", '{14: "RTO"}', '{"RTO": 14}',
        '_DATA = (1, 3)\nnp.isin(piece["state"], _DATA)', 'np.isin(end.location, (1, 21))',
        "class Mark:\n    location: ClassVar[int] = 229", "make(location=2)",
        "NAMES = {2: 'again'}\nNAMES.get(location)", "NAMES = {2: 'again'}\nNAMES[location]",
    ],
)  # fmt: skip
def test_each_way_to_write_one_out_is_found(text: str) -> None:
    assert literals(text)


def test_what_is_no_such_number_is_not_found() -> None:
    assert not literals(
        'state == State.CLOSE\nrows["location"] == 0\nsize == 4\n_CLOSE = 1\n'
        "make(state=0)\nnp.clip(state, 0, 127)\nfound[location] == limit"
    )


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
