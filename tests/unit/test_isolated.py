# SPDX-License-Identifier: Apache-2.0
"""Every Python that is started as root takes no module from the current folder."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector.linux import isolated
from tests.unit.test_rooms import NOT_OURS, ROOT

STARTER = ROOT / "collector" / "linux" / "isolated.py"


def python_files() -> Iterator[Path]:
    for room in ("collector", "formats", "scripts"):
        for path in (ROOT / room).rglob("*"):
            if not path.is_file() or NOT_OURS & set(path.parts) or path == STARTER:
                continue
            with path.open("rb") as file:
                if path.suffix == ".py" or b"python" in file.readline(80):
                    yield path


def lists_of(path: Path) -> Iterator[list[str]]:
    """The words of each list and tuple of a file; what is no text as its source."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.List, ast.Tuple)):
            yield [
                one.value if isinstance(one, ast.Constant) and isinstance(one.value, str)
                else ast.unparse(one) for one in node.elts
            ]  # fmt: skip


def test_no_python_is_started_but_isolated() -> None:
    """-c and -m begin with the current folder, unless -I is before them."""
    wrong = []
    for path in python_files():
        for words in lists_of(path):
            is_python = words and ("python" in words[0].lower() or words[0] == "sys.executable")
            if not is_python or not {"-c", "-m"} & set(words[1:4]):
                continue
            if "-I" not in words[1:3] and "pytest" not in words:  # pytest: in this tree itself
                wrong.append(f"{path.relative_to(ROOT)}: {' '.join(words)[:80]}")
    assert not wrong, "\n".join(wrong)


def test_the_package_starts_python_by_the_helper_alone() -> None:
    found = [
        path.relative_to(ROOT) for path in python_files()
        if "scripts" not in path.parts and "sys.executable" in path.read_text()
    ]  # fmt: skip
    assert found == [Path("collector/commands/demo.py")], "it prints the folder"


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": ":."}])
def test_the_helper(tmp_path: Path, variables: dict[str, str]) -> None:
    for name in ("click", "collector", "formats", "tcpkmon", "importlib", "json", "re"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'imported {__name__}')")
    done = subprocess.run(
        isolated.command("tcpkmon.collector.commands.tcpkmon", "--version"), cwd=tmp_path,
        check=False, capture_output=True, text=True, env=variables,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("tcpkmon, ")


def test_the_commands_of_the_environment_are_isolated() -> None:
    """scripts/setup makes them so."""
    folder = Path(sys.executable).parent
    if not (folder.parent / ".tcpkmon-setup").exists():
        pytest.skip("this environment is not of scripts/setup")
    for name in ("collect", "pmgraph", "tcpkmon"):
        first = (folder / name).read_text().splitlines()[:2]
        assert any(" -I" in line for line in first), f"{name}: run scripts/setup again"
