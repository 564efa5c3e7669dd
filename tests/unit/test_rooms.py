# SPDX-License-Identifier: Apache-2.0
"""The rules between the rooms: who may import whom, licences."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {".git", ".venv", "build", "dist", "__pycache__", "tcpkmon-demo", "LICENSES"}
MARKED = {".py", ".c", ".h", ".conf", ".toml", ".sh", ".md"}

ROOMS = {
    "collector": (
        ("testing",),
        ("commands",),
        ("capturing",),
        ("daemon",),
        ("session",),
        ("lab",),
        ("control",),
        ("metrics",),
        ("loader",),
        ("plan",),
        ("writer",),
        ("sequencer",),
        ("ring",),
        ("linux",),
    ),
    "formats": (
        ("commands",),
        ("history",),
        ("report",),
        ("dataset",),
        ("tables",),
        ("export", "pmgraph"),
        ("timeline",),
        ("analysis", "anonymise"),
        ("registry",),
        ("verify",),
        ("magnet",),
        ("klogger", "psc"),
        ("conditions",),
        ("drawing", "lines", "packets", "schema"),
        ("base",),
    ),
}
"""The rooms of each package, top floor first: imports run downwards only."""


def walk() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in NOT_OURS and not name.endswith((".egg-info", "_cache"))
        ]
        for name in names:
            yield Path(folder, name)


def modules(room: str) -> list[Path]:
    return [path for path in walk() if path.suffix == ".py" and path.is_relative_to(ROOT / room)]


def dotted(path: Path) -> str:
    """The name by which a module is imported; a package's is that of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {dotted(path): path for package in ROOMS for path in modules(package)}


@lru_cache(None)
def tree_of(name: str) -> ast.Module:
    return ast.parse(SOURCES[name].read_text(encoding="utf-8"))


@lru_cache(None)
def imports(name: str) -> frozenset[str]:
    """What a module of SOURCES imports anywhere, inside functions too: modules and packages.

    `from package import name` counts as package.name: a module of ours, or a name of the package.
    Ours are named without tcpkmon, as their files are.
    """
    found: set[str] = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import"
            assert node.module is not None
            module = node.module.removeprefix("tcpkmon.")
            is_package = module in SOURCES and SOURCES[module].name == "__init__.py"
            found.update(
                f"{module}.{alias.name}" if is_package else module for alias in node.names
            )
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("import_module", "__import__", "late"):
                found.add(str(node.args[0].value))
    return frozenset(one.removeprefix("tcpkmon.") for one in found)


def files_of(name: str) -> set[str]:
    """The modules of SOURCES that a module imports."""
    return {
        each if each in SOURCES else each.rpartition(".")[0]
        for each in imports(name)
        if each in SOURCES or each.rpartition(".")[0] in SOURCES
    } - {name}


def room_of(name: str) -> str:
    """Package and room (collector.ring), or the package's own module."""
    return ".".join(name.split(".")[:2])


def packages(name: str) -> set[str]:
    return {each.partition(".")[0] for each in imports(name)}


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_in_the_list(package: str) -> None:
    found = {room_of(name) for name in SOURCES if name.startswith(f"{package}.")}
    assert found == {f"{package}.{room}" for tier in ROOMS[package] for room in tier}


@pytest.mark.parametrize("package", ROOMS)
def test_imports_run_downwards(package: str) -> None:
    floor = {f"{package}.{room}": n for n, tier in enumerate(ROOMS[package]) for room in tier}
    upwards = [
        f"{name} imports {each}"
        for name in SOURCES
        for each in files_of(name)
        if room_of(name) in floor
        and room_of(each) in floor
        and room_of(name) != room_of(each)
        and floor[room_of(each)] <= floor[room_of(name)]
    ]
    assert not upwards


def test_no_circle_of_files() -> None:
    """Nor one that only types or imports inside functions close."""
    left = {name: files_of(name) for name in SOURCES}
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    # What is left stands in a circle or above one: going down from anywhere ends in it.
    path: list[str] = []
    step = min(left, default="")
    while step and step not in path:
        path.append(step)
        step = min(left[step] & left.keys())
    circle = path[path.index(step) :] if step else []
    assert not circle


def test_a_room_is_entered_by_its_front() -> None:
    """Others import only what the room's __init__ names in __all__."""
    past = []
    for name in SOURCES:
        for each in imports(name):
            parts = each.split(".")
            room = ".".join(parts[:2])
            if len(parts) < 3 or room not in SOURCES or room == room_of(name):
                continue
            if SOURCES[room].name == "__init__.py" and parts[2] not in front(room):
                past.append(f"{name} imports {each}")
    assert not past


@lru_cache
def front(room: str) -> frozenset[str]:
    """What a room's __init__ names in __all__."""
    for node in tree_of(room).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError(f"{room} has no __all__")


@pytest.mark.parametrize("room", sorted({room_of(name) for name in SOURCES if "." in name}))
def test_a_room_says_what_it_is_for(room: str) -> None:
    if SOURCES[room].name == "__init__.py":
        doc = ast.get_docstring(tree_of(room))
        assert doc and doc.partition("\n\n")[0].endswith(".")
        names = {name.rpartition(".")[2] for name in SOURCES if name.startswith(f"{room}.")}
        defined = {
            alias.asname or alias.name
            for node in tree_of(room).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert front(room) <= names | defined


_PATH = re.compile(
    r"(?<![\w/.-])((?:collector|formats|bpf|tests|scripts)/[\w/.-]*\w\.(?:py|h|c|conf))\b"
)
_NAME = re.compile(r"(?<![\w.])((?:collector|formats)(?:\.[a-z][a-z_]*)+)")


def test_files_that_texts_name_exist() -> None:
    """Comments, docstrings and pages that name a file or a module name one that is there.

    CHANGELOG.md names those that were.
    """
    wrong = []
    for path in walk():
        is_past = path.name == "CHANGELOG.md" or path.is_relative_to(ROOT / "tests")
        if path.suffix not in MARKED or is_past:
            continue
        for number, text in texts(path):
            missing = [name for name in _PATH.findall(text) if not (ROOT / name).exists()]
            missing += [name for name in _NAME.findall(text) if not exists(name)]
            wrong += [f"{path.relative_to(ROOT)}:{number}: {name}" for name in missing]
    assert not wrong


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and texts: of a module the comments and plain strings, else all lines."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(content.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and token.string[0] not in "fF":
            yield token.start[0], token.string


def exists(name: str) -> bool:
    """Whether a dotted name begins with a module of ours and goes on with a name in it."""
    parts = name.split(".")
    while ".".join(parts) not in SOURCES:
        parts.pop()
    rest = name.split(".")[len(parts) :]
    text = SOURCES[".".join(parts)].read_text(encoding="utf-8")
    return not rest or re.search(rf"\b{rest[0]}\b", text) is not None


def test_formats_needs_neither_the_collector_nor_the_kernel() -> None:
    for name in SOURCES:
        if name.startswith("formats"):
            assert not packages(name) & {"collector", "bcc", "pyroute2", "tests"}, name


def used_by(path: Path) -> set[str]:
    """The modules that a file of scripts or tests imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_product_imports_neither_scripts_nor_tests() -> None:
    for name in SOURCES:
        assert not packages(name) & {"scripts", "tests"}, name


def test_scripts_run_tests_and_import_none() -> None:
    for path in modules("scripts"):
        assert not [one for one in used_by(path) if one.startswith("tests")], path


def test_modules_say_where_they_stand() -> None:
    for name in SOURCES:
        tree = tree_of(name)
        assert ast.get_docstring(tree) or not tree.body, f"{name} has no docstring"


def test_every_file_names_its_licence() -> None:
    files = [
        path
        for path in walk()
        if path.suffix in MARKED or path.parent in (ROOT / "scripts", ROOT / ".ci")
    ]
    assert len(files) > 20
    for path in files:
        head = "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[:3])
        wanted = "GPL-2.0-only" if path.is_relative_to(ROOT / "bpf") else "Apache-2.0"
        assert f"SPDX-License-Identifier: {wanted}" in head, path


def test_formats_loads_without_heavy_libraries() -> None:
    """`import formats` is what every small command starts with."""
    script = "import tcpkmon.formats, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    heavy = {"matplotlib", "pyarrow", "pyroute2", "bcc", "plotext"}
    assert not heavy & set(done.stdout.split())
