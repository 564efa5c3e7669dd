# SPDX-License-Identifier: Apache-2.0
"""The rules between the rooms (DESIGN.md): who may import whom, licences, sizes of modules."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {".git", ".venv", "build", "dist", "__pycache__", "tcpkmon-demo", "LICENSES"}
MARKED = {".py", ".c", ".h", ".conf", ".toml", ".sh", ".md"}
MOST_LINES = 350


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


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports anywhere, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("import_module", "__import__"):
                found.add(str(node.args[0].value).partition(".")[0])
    return found


def test_formats_needs_neither_the_collector_nor_the_kernel() -> None:
    files = modules("formats")
    assert len(files) > 5
    for path in files:
        assert not imported(path) & {"collector", "bcc", "pyroute2", "tests"}, path


def test_only_one_module_imports_bcc() -> None:
    files = modules("collector") + modules("scripts")
    guilty = {path.name for path in files if "bcc" in imported(path)}
    assert guilty == {"bcc_child.py"}


def test_no_module_imports_tests() -> None:
    for path in modules("collector"):
        assert "tests" not in imported(path), path


@pytest.mark.parametrize("room", ["collector", "formats"])
def test_modules_are_short(room: str) -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in modules(room)
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert not long


@pytest.mark.parametrize("room", ["collector", "formats"])
def test_modules_say_where_they_stand(room: str) -> None:
    for path in modules(room):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree) or not tree.body, f"{path} has no docstring"


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
    script = "import formats, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    heavy = {"matplotlib", "pyarrow", "pyroute2", "bcc", "plotext"}
    assert not heavy & set(done.stdout.split())
